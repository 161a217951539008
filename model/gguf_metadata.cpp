#include "model/gguf_metadata.h"

#include <cstring>
#include <limits>
#include <utility>

#include "core/concat.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

Error wrong_type(std::string_view key, std::string_view wanted) {
  return corrupt(concat("GGUF metadata ", printable(key), " is not ", wanted));
}

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// nullopt: not an integer type, or too large.
std::optional<std::int64_t> load_integer(GgufType type, const std::byte* at) {
  switch (type) {
    case GgufType::kUint8: return load<std::uint8_t>(at);
    case GgufType::kInt8: return load<std::int8_t>(at);
    case GgufType::kUint16: return load<std::uint16_t>(at);
    case GgufType::kInt16: return load<std::int16_t>(at);
    case GgufType::kUint32: return load<std::uint32_t>(at);
    case GgufType::kInt32: return load<std::int32_t>(at);
    case GgufType::kInt64: return load<std::int64_t>(at);
    case GgufType::kUint64: {
      const auto value = load<std::uint64_t>(at);
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

std::optional<double> load_number(GgufType type, const std::byte* at) {
  if (type == GgufType::kFloat32) return load<float>(at);
  if (type == GgufType::kFloat64) return load<double>(at);
  return std::nullopt;
}

// A string is its length in 8 bytes, then its bytes. Moves `at` behind it.
std::string_view load_string(const std::byte*& at) {
  const auto length = load<std::uint64_t>(at);
  const std::string_view text(reinterpret_cast<const char*>(at + sizeof length), length);
  at += sizeof length + length;
  return text;
}

// Both array getters of numbers: `decode` returns nullopt for an element that does not fit.
template <class T, class Decode>
Result<std::optional<std::vector<T>>> load_array(std::string_view key, const GgufValue& value, const std::byte* at,
                                                 std::string_view wanted, Decode decode) {
  const auto element = gguf_scalar_bytes(value.type);
  if (!value.is_array || element == 0) return wrong_type(key, wanted);
  std::vector<T> out;
  out.reserve(value.count);
  for (std::uint64_t i = 0; i < value.count; ++i, at += element) {
    const auto decoded = decode(value.type, at);
    if (!decoded) return wrong_type(key, wanted);
    out.push_back(*decoded);
  }
  return std::optional(std::move(out));
}

}  // namespace

std::uint64_t gguf_scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64: return 8;
    default: return 0;
  }
}

GgufMetadata::GgufMetadata(std::shared_ptr<const MappedFile> file, std::map<std::string, GgufValue, std::less<>> values)
    : file_(std::move(file)), values_(std::move(values)) {}

std::vector<std::string_view> GgufMetadata::keys() const {
  std::vector<std::string_view> out;
  out.reserve(values_.size());
  for (const auto& [key, value] : values_) out.emplace_back(key);
  return out;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const std::byte* GgufMetadata::data(const GgufValue& value) const { return file_->bytes().data() + value.offset; }

Result<std::optional<std::string_view>> GgufMetadata::string(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->is_array || value->type != GgufType::kString) return wrong_type(key, "a string");
  const auto* at = data(*value);
  return std::optional(load_string(at));
}

Result<std::optional<bool>> GgufMetadata::boolean(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->is_array || value->type != GgufType::kBool) return wrong_type(key, "a boolean");
  return std::optional(load<std::uint8_t>(data(*value)) != 0);
}

Result<std::optional<std::int64_t>> GgufMetadata::integer(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<std::int64_t>();
  const auto number = value->is_array ? std::nullopt : load_integer(value->type, data(*value));
  if (!number) return wrong_type(key, "an integer of 63 bits");
  return number;
}

Result<std::optional<double>> GgufMetadata::number(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<double>();
  const auto number = value->is_array ? std::nullopt : load_number(value->type, data(*value));
  if (!number) return wrong_type(key, "a floating-point number");
  return number;
}

Result<std::optional<std::vector<std::string_view>>> GgufMetadata::strings(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (!value->is_array || value->type != GgufType::kString) return wrong_type(key, "an array of strings");
  std::vector<std::string_view> out;
  out.reserve(value->count);
  const auto* at = data(*value);
  for (std::uint64_t i = 0; i < value->count; ++i) out.push_back(load_string(at));
  return std::optional(std::move(out));
}

Result<std::optional<std::vector<std::int64_t>>> GgufMetadata::integers(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<std::vector<std::int64_t>>();
  return load_array<std::int64_t>(key, *value, data(*value), "an array of integers", load_integer);
}

Result<std::optional<std::vector<double>>> GgufMetadata::numbers(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::optional<std::vector<double>>();
  return load_array<double>(key, *value, data(*value), "an array of floating-point numbers", load_number);
}

}  // namespace hotset::model
