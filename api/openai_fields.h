// Reads typed fields of a request object. The first wrong field is kept as the error, later reads go on harmlessly, so
// a parser reads everything and asks failed() once. An explicit null is the same as an absent field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/openai_json.h"
#include "core/result.h"

namespace hotset::api {

class FieldReader {
 public:
  // An object that outlives the reader; `path` stands before its fields' names in errors.
  explicit FieldReader(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  // The field's value; nullptr when absent or null.
  [[nodiscard]] const Json* find(std::string_view name) const;

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t lowest, std::int64_t highest);
  std::optional<double> real(std::string_view name, double lowest, double highest);  // both ends included
  std::optional<std::string> text(std::string_view name);

  // Token ids, each in [0, vocabulary). `path` names the list in errors.
  std::optional<std::vector<std::int32_t>> token_ids(const Json& list, std::string_view path, std::int32_t vocabulary);

  void fail(std::string_view name, std::string_view requirement);  // "The field 'PATH NAME' REQUIREMENT."
  void fail(Error error);
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] const Error& error() const { return *error_; }

 private:
  const Json& object_;
  std::string path_;
  std::optional<Error> error_;
};

}  // namespace hotset::api
