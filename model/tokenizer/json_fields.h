// Reads JSON from a file that nobody vouches for: a wrong type is reported once, by its path, and reading goes on with
// an empty value. Callers check JsonErrors before they use what they read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/concat.h"
#include "core/result.h"

namespace hotset::model {

class JsonErrors {
 public:
  explicit JsonErrors(std::string file) : file_(std::move(file)) {}
  void report(std::string_view path, std::string_view what);       // kCorrupt; the first report stays
  void unsupported(std::string_view path, std::string_view kind);  // kInvalidArgument
  void set(Error error);
  [[nodiscard]] bool ok() const { return !first_; }
  [[nodiscard]] const Error& error() const { return *first_; }

 private:
  std::string file_;
  std::optional<Error> first_;
};

// An object of the document, which must outlive it. A null member counts as absent.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string path, JsonErrors& errors);

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
  [[nodiscard]] std::string text(std::string_view name) const;
  [[nodiscard]] std::string text_or(std::string_view name, std::string_view fallback) const;
  [[nodiscard]] bool flag_or(std::string_view name, bool fallback) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] std::int64_t integer_or(std::string_view name, std::int64_t fallback) const;
  [[nodiscard]] const nlohmann::json& array(std::string_view name) const;
  [[nodiscard]] const nlohmann::json& map(std::string_view name) const;  // an object as a table
  [[nodiscard]] JsonObject object(std::string_view name) const;
  [[nodiscard]] const nlohmann::json* find(std::string_view name) const;  // null if absent
  [[nodiscard]] std::string path(std::string_view name) const {
    return path_.empty() ? std::string(name) : concat(path_, ".", name);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] JsonErrors& errors() const { return *errors_; }

 private:
  const nlohmann::json* value_;
  std::string path_;
  JsonErrors* errors_;
};

// Nothing unless `value` is an integer that fits.
[[nodiscard]] std::optional<std::int64_t> json_integer(const nlohmann::json& value);

}  // namespace hotset::model
