// Typed reading of a JSON object's options. The first failure is kept and later reads return their fallback, so a
// parser reads everything and asks once. Also remembers which options were read: the others are unknown. Used by one
// thread; borrows the object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::model {

// Errors: kCorrupt when `text` is no JSON object, or is nested more than 64 deep. `file` names it in the message.
Result<nlohmann::json> parse_json_object(std::string_view text, std::string_view file);

class JsonOptions {
 public:
  // `path` precedes the option in messages: "" or "rope_scaling.".
  JsonOptions(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // null and absent are the same: nullptr.
  const nlohmann::json* find(std::string_view key);

  // nullopt when absent. A float with an integral value is taken as an integer.
  std::optional<std::int64_t> integer(std::string_view key);
  std::optional<double> number(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  // One integer or a list of them.
  std::optional<std::vector<std::int64_t>> integers(std::string_view key);
  std::int64_t required_integer(std::string_view key);
  // Same for numbers of 32 bits; 0 where the value does not fit, which is an error.
  std::optional<std::int32_t> small_integer(std::string_view key);
  std::int32_t required_small_integer(std::string_view key);
  std::int32_t narrow(std::string_view key, std::int64_t value);
  // A list of strings.
  std::optional<std::vector<std::string>> texts(std::string_view key);

  // Keeps the first error only.
  void fail(Error error);
  void unsupported(std::string_view key, std::string_view why);
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  // Options that were never asked for, ascending.
  [[nodiscard]] std::vector<std::string> unread() const;

 private:
  void wrong_type(std::string_view key, std::string_view wanted);

  const nlohmann::json& object_;
  std::string path_;
  std::set<std::string, std::less<>> read_;
  std::optional<Error> error_;
};

}  // namespace hotset::model
