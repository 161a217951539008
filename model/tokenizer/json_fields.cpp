#include "model/tokenizer/json_fields.h"

#include <limits>

#include "model/printable.h"

namespace hotset::model {
namespace {

const nlohmann::json kEmptyObject = nlohmann::json::object();
const nlohmann::json kEmptyArray = nlohmann::json::array();

}  // namespace

void JsonErrors::report(std::string_view path, std::string_view what) { set(corrupt(concat(path, " ", what))); }

void JsonErrors::unsupported(std::string_view path, std::string_view kind) {
  set(invalid_argument(concat(path, " '", printable(kind), "' is not supported")));
}

void JsonErrors::set(Error error) {
  if (first_) return;
  error.message = concat(file_, ": ", error.message);
  first_ = std::move(error);
}

std::optional<std::int64_t> json_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  return std::nullopt;
}

JsonObject::JsonObject(const nlohmann::json& value, std::string path, JsonErrors& errors)
    : value_(&value), path_(std::move(path)), errors_(&errors) {
  if (value.is_object()) return;
  errors.report(path_.empty() ? "the file" : path_, "must be an object");
  value_ = &kEmptyObject;
}

const nlohmann::json* JsonObject::find(std::string_view name) const {
  const auto found = value_->find(name);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonObject::text(std::string_view name) const {
  const auto* value = find(name);
  if (value == nullptr || !value->is_string()) {
    errors_->report(path(name), "must be a string");
    return {};
  }
  return value->get<std::string>();
}

std::string JsonObject::text_or(std::string_view name, std::string_view fallback) const {
  return has(name) ? text(name) : std::string(fallback);
}

bool JsonObject::flag_or(std::string_view name, bool fallback) const {
  const auto* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    errors_->report(path(name), "must be true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::int64_t JsonObject::integer(std::string_view name) const {
  const auto* value = find(name);
  const auto number = value == nullptr ? std::nullopt : json_integer(*value);
  if (!number) errors_->report(path(name), "must be an integer");
  return number.value_or(0);
}

std::int64_t JsonObject::integer_or(std::string_view name, std::int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

const nlohmann::json& JsonObject::array(std::string_view name) const {
  const auto* value = find(name);
  if (value != nullptr && value->is_array()) return *value;
  errors_->report(path(name), "must be an array");
  return kEmptyArray;
}

const nlohmann::json& JsonObject::map(std::string_view name) const {
  const auto* value = find(name);
  if (value != nullptr && value->is_object()) return *value;
  errors_->report(path(name), "must be an object");
  return kEmptyObject;
}

JsonObject JsonObject::object(std::string_view name) const { return JsonObject(map(name), path(name), *errors_); }

}  // namespace hotset::model
