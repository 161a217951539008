// Expected failures (bad input, full, timeout, miss) travel as Result<T>; our own bugs are HS_CHECK (core/check.h); a
// broken environment (no memory at start, CUDA error) is an exception.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "core/check.h"

namespace hotset {

enum class ErrorCode {
  kInvalidArgument,        // the caller's input is wrong: HTTP 400
  kContextLengthExceeded,  // prompt or prompt + output longer than the server allows: HTTP 400
  kCapacityNever,          // can never fit the configured pools: HTTP 400, the message names the option
  kNotFound,               // unknown model, file, page
  kOverloaded,             // full now, retry later: HTTP 503 with retry-after
  kUnavailable,            // loading, draining or a lost peer: HTTP 503
  kCancelled,              // the client went away
  kTimeout,
  kCorrupt,  // a file or page that breaks its format
  kInternal,
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // one sentence for the user; never echoes input, never an exception's class name
  std::string param;    // the request field or option it is about; may be empty
};

// A value or an Error. Check before value(): reading the wrong side is a bug (HS_CHECK).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] T& value() & {
    HS_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  [[nodiscard]] const T& value() const& {
    HS_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    HS_CHECK(ok(), "value() of a failed Result");
    return std::get<0>(std::move(state_));
  }
  [[nodiscard]] const Error& error() const& {
    HS_CHECK(!ok(), "error() of a good Result");
    return std::get<1>(state_);
  }
  [[nodiscard]] Error&& error() && {
    HS_CHECK(!ok(), "error() of a good Result");
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    HS_CHECK(failed_, "error() of a good Result");
    return error_;
  }

 private:
  bool failed_ = false;
  Error error_;
};

inline Error invalid_argument(std::string message, std::string param = {}) {
  return Error{ErrorCode::kInvalidArgument, std::move(message), std::move(param)};
}
inline Error corrupt(std::string message) { return Error{ErrorCode::kCorrupt, std::move(message), {}}; }

}  // namespace hotset
