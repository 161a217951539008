#include "api/openai_fields.h"

#include "core/concat.h"

namespace hotset::api {
namespace {

// Integers only: 5.0, "5" and true are refused. False also for what does not fit 64 bits.
bool read_integer(const Json& value, std::int64_t& out) {
  if (value.is_number_unsigned()) {
    const auto raw = value.get<std::uint64_t>();
    if (raw > static_cast<std::uint64_t>(INT64_MAX)) return false;
    out = static_cast<std::int64_t>(raw);
    return true;
  }
  if (!value.is_number_integer()) return false;
  out = value.get<std::int64_t>();
  return true;
}

}  // namespace

const Json* FieldReader::find(std::string_view name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(name, "must be true or false");
  return std::nullopt;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t lowest, std::int64_t highest) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::int64_t number = 0;
  if (read_integer(*value, number) && number >= lowest && number <= highest) return number;
  fail(name, concat("must be an integer from ", lowest, " to ", highest));
  return std::nullopt;
}

std::optional<double> FieldReader::real(std::string_view name, double lowest, double highest) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= lowest && number <= highest) return number;
  }
  fail(name, concat("must be a number from ", lowest, " to ", highest));
  return std::nullopt;
}

std::optional<std::string> FieldReader::text(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  fail(name, "must be a string");
  return std::nullopt;
}

std::optional<std::vector<std::int32_t>> FieldReader::token_ids(const Json& list, std::string_view path,
                                                                std::int32_t vocabulary) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& item : list) {
    std::int64_t id = -1;
    if (!read_integer(item, id) || id < 0 || id >= vocabulary) {
      fail(concat(path, "[", tokens.size(), "]"), concat("must be a token id from 0 to ", vocabulary - 1));
      return std::nullopt;
    }
    tokens.push_back(static_cast<std::int32_t>(id));
  }
  return tokens;
}

void FieldReader::fail(std::string_view name, std::string_view requirement) {
  fail(invalid_argument(concat("The field '", path_, name, "' ", requirement, "."), concat(path_, name)));
}

void FieldReader::fail(Error error) {
  if (!error_) error_ = std::move(error);
}

}  // namespace hotset::api
