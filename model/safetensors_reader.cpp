#include "model/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "core/checked_math.h"
#include "core/concat.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kMaxDimension = std::numeric_limits<std::int64_t>::max();

struct DType {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array kDTypes = {
    DType{"BOOL", 8},    DType{"U8", 8},   DType{"I8", 8},   DType{"F8_E5M2", 8}, DType{"F8_E4M3", 8},
    DType{"F8_E8M0", 8}, DType{"I16", 16}, DType{"U16", 16}, DType{"F16", 16},    DType{"BF16", 16},
    DType{"I32", 32},    DType{"U32", 32}, DType{"F32", 32}, DType{"I64", 64},    DType{"U64", 64},
    DType{"F64", 64},    DType{"C64", 64}, DType{"F4", 4},   DType{"F6_E2M3", 6}, DType{"F6_E3M2", 6},
};

// The header as JSON. Two things that a plain parser would hide are errors: a key that stands twice in one object, and
// values nested deeper than a tensor's shape, whose tree would need far more memory than the file has bytes.
Result<json> parse_header(std::string_view text) {
  constexpr int kShapeDepth = 2;
  std::vector<std::set<std::string>> keys;
  bool repeated = false;
  bool nested = false;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    const bool starts = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    nested = nested || (starts && depth > kShapeDepth);
    if (nested) return false;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      repeated = repeated || !keys.back().insert(value.get_ref<const std::string&>()).second;
    }
    return true;
  };
  auto header = json::parse(text, watch, /*allow_exceptions=*/false);
  if (nested || !header.is_object()) return corrupt("its header is not a JSON object of tensors");
  if (repeated) return corrupt("its header names a tensor twice");
  return header;
}

// JSON's non-negative integers only: no sign, fraction or exponent.
std::optional<std::uint64_t> size_number(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const std::string* name = nullptr;
};

Result<std::vector<std::int64_t>> parse_shape(const json& entry) {
  const auto it = entry.find("shape");
  if (it == entry.end() || !it->is_array()) return corrupt("has no list 'shape'");
  std::vector<std::int64_t> shape;
  for (const auto& item : *it) {
    const auto dimension = size_number(item);
    if (!dimension || *dimension > kMaxDimension) return corrupt("has a dimension that is no size");
    shape.push_back(static_cast<std::int64_t>(*dimension));
  }
  return shape;
}

Result<Range> parse_range(const json& entry) {
  const auto it = entry.find("data_offsets");
  if (it == entry.end() || !it->is_array() || it->size() != 2) return corrupt("has no pair 'data_offsets'");
  const auto begin = size_number((*it)[0]);
  const auto end = size_number((*it)[1]);
  if (!begin || !end || *begin > *end) return corrupt("has data_offsets that are no range");
  return Range{*begin, *end, nullptr};
}

Result<std::uint64_t> byte_size(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  const auto* known =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DType& entry) { return entry.name == dtype; });
  if (known == kDTypes.end()) return corrupt("has an unknown dtype");
  std::uint64_t bits = known->bits;
  for (const auto dimension : shape) {
    const auto product = checked_mul(bits, static_cast<std::uint64_t>(dimension));
    if (!product) return corrupt("has too many elements");
    bits = *product;
  }
  if (bits % 8 != 0) return corrupt("does not end at a whole byte");
  return bits / 8;
}

// One entry of the header. Its range is checked against its shape here, against the file by check_ranges.
Result<Range> parse_entry(const json& entry, SafetensorsTensor& tensor) {
  if (!entry.is_object()) return corrupt("is not an object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return corrupt("has no text 'dtype'");
  auto shape = parse_shape(entry);
  if (!shape) return shape.error();
  auto range = parse_range(entry);
  if (!range) return range.error();
  auto bytes = byte_size(dtype->get_ref<const std::string&>(), shape.value());
  if (!bytes) return bytes.error();
  if (range.value().end - range.value().begin != bytes.value()) {
    return corrupt("has data_offsets of another length than its dtype and shape");
  }
  tensor.dtype = dtype->get<std::string>();
  tensor.shape = std::move(shape).value();
  return range;
}

Result<void> check_metadata(const json& entry) {
  const bool good =
      entry.is_object() && std::all_of(entry.begin(), entry.end(), [](const json& value) { return value.is_string(); });
  if (!good) return corrupt("its __metadata__ is not an object of strings");
  return {};
}

// Sorted, without holes or overlaps, and ending with the data.
Result<void> check_ranges(std::vector<Range>& ranges, std::uint64_t data_bytes) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  std::uint64_t expected = 0;
  for (const auto& range : ranges) {
    if (range.begin != expected) {
      return corrupt(concat("tensor ", printable(*range.name), " overlaps another tensor or leaves a hole before it"));
    }
    expected = range.end;
  }
  if (expected != data_bytes) {
    return corrupt(concat("its header describes ", expected, " bytes of data, but ", data_bytes,
                          " follow it; the file may be cut"));
  }
  return {};
}

Result<SafetensorsFile> parse_file(std::shared_ptr<const MappedFile> file) {
  const auto bytes = file->bytes();
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof header_bytes) return corrupt("it is shorter than its header's length field");
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) return corrupt("its header is larger than 100 MB");
  if (header_bytes > bytes.size() - sizeof header_bytes) return corrupt("its header runs past the end of the file");
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof header_bytes);
  auto header = parse_header(std::string_view(text, header_bytes));
  if (!header) return header.error();

  const auto data = bytes.subspan(sizeof header_bytes + header_bytes);
  SafetensorsFile out;
  out.file = std::move(file);
  std::vector<Range> ranges;
  for (const auto& [name, entry] : header.value().items()) {
    if (name == "__metadata__") {
      if (auto ok = check_metadata(entry); !ok) return ok.error();
      continue;
    }
    const auto it = out.tensors.emplace(name, SafetensorsTensor{}).first;
    auto range = parse_entry(entry, it->second);
    if (!range) return corrupt(concat("tensor ", printable(name), " ", range.error().message));
    range.value().name = &it->first;
    ranges.push_back(range.value());
  }
  if (auto ok = check_ranges(ranges, data.size()); !ok) return ok.error();
  for (const auto& range : ranges) {
    out.tensors.find(*range.name)->second.data = data.subspan(range.begin, range.end - range.begin);
  }
  return out;
}

}  // namespace

Result<SafetensorsFile> read_safetensors(const std::filesystem::path& path) {
  auto file = MappedFile::open(path);
  if (!file) return file.error();
  auto parsed = parse_file(std::move(file).value());
  if (!parsed) {
    return corrupt(concat("safetensors file ", path.filename().string(), ": ", parsed.error().message));
  }
  return parsed;
}

}  // namespace hotset::model
