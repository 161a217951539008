#include "model/json_options.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/concat.h"
#include "model/json_nesting.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 64;  // real files have about 5

std::optional<std::int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < 0x1p53) return static_cast<std::int64_t>(number);
  }
  return std::nullopt;
}

}  // namespace

Result<json> parse_json_object(std::string_view text, std::string_view file) {
  if (nests_deeper(text, kMaxNesting)) return corrupt(concat(file, " is nested too deeply"));
  auto parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return corrupt(concat(file, " is not a JSON object"));
  return parsed;
}

const json* JsonOptions::find(std::string_view key) {
  read_.emplace(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> JsonOptions::integer(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number) wrong_type(key, "an integer");
  return number;
}

std::int64_t JsonOptions::required_integer(std::string_view key) {
  const auto value = integer(key);
  if (!value) fail(corrupt(concat("option ", path_, key, " is missing")));
  return value.value_or(0);
}

std::optional<double> JsonOptions::number(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  wrong_type(key, "a number");
  return std::nullopt;
}

std::optional<bool> JsonOptions::boolean(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(key, "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonOptions::text(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(key, "a string");
  return std::nullopt;
}

std::optional<std::vector<std::int64_t>> JsonOptions::integers(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> out;
  const json single = json::array({*value});
  for (const auto& item : value->is_array() ? *value : single) {
    const auto number = as_integer(item);
    if (!number) {
      wrong_type(key, "an integer or a list of integers");
      return std::nullopt;
    }
    out.push_back(*number);
  }
  return out;
}

std::int32_t JsonOptions::narrow(std::string_view key, std::int64_t value) {
  if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max()) {
    unsupported(key, "is out of range");
    return 0;
  }
  return static_cast<std::int32_t>(value);
}

std::optional<std::int32_t> JsonOptions::small_integer(std::string_view key) {
  const auto value = integer(key);
  if (!value) return std::nullopt;
  return narrow(key, *value);
}

std::int32_t JsonOptions::required_small_integer(std::string_view key) { return narrow(key, required_integer(key)); }

std::optional<std::vector<std::string>> JsonOptions::texts(std::string_view key) {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || !std::ranges::all_of(*value, [](const json& item) { return item.is_string(); })) {
    wrong_type(key, "a list of strings");
    return std::nullopt;
  }
  return value->get<std::vector<std::string>>();
}

void JsonOptions::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

void JsonOptions::unsupported(std::string_view key, std::string_view why) {
  fail(invalid_argument(concat("option ", path_, printable(key), " ", why), concat(path_, printable(key))));
}

void JsonOptions::wrong_type(std::string_view key, std::string_view wanted) {
  fail(corrupt(concat("option ", path_, key, " is not ", wanted)));
}

std::vector<std::string> JsonOptions::unread() const {
  std::vector<std::string> out;
  for (const auto& [key, value] : object_.items()) {
    if (!read_.contains(key)) out.push_back(key);
  }
  return out;
}

}  // namespace hotset::model
