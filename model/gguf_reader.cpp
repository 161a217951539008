#include "model/gguf_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "core/checked_math.h"
#include "core/concat.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie in the file");

using kernels::WeightType;

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint32_t kMaxDimensions = 4;
// The shortest possible entries: an empty key, a type and a byte; an empty name, one dimension, a type and an offset.
constexpr std::uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

struct TypeName {
  std::uint32_t number;
  std::string_view name;
  std::optional<WeightType> type;  // null: known but not supported
};
constexpr std::array kTensorTypes = {
    TypeName{0, "F32", WeightType::kF32},    TypeName{1, "F16", WeightType::kF16},
    TypeName{2, "Q4_0", WeightType::kQ4_0},  TypeName{3, "Q4_1", WeightType::kQ4_1},
    TypeName{6, "Q5_0", std::nullopt},       TypeName{7, "Q5_1", std::nullopt},
    TypeName{8, "Q8_0", WeightType::kQ8_0},  TypeName{9, "Q8_1", std::nullopt},
    TypeName{10, "Q2_K", std::nullopt},      TypeName{11, "Q3_K", std::nullopt},
    TypeName{12, "Q4_K", WeightType::kQ4_K}, TypeName{13, "Q5_K", WeightType::kQ5_K},
    TypeName{14, "Q6_K", WeightType::kQ6_K}, TypeName{15, "Q8_K", std::nullopt},
    TypeName{16, "IQ2_XXS", std::nullopt},   TypeName{17, "IQ2_XS", std::nullopt},
    TypeName{18, "IQ3_XXS", std::nullopt},   TypeName{19, "IQ1_S", std::nullopt},
    TypeName{20, "IQ4_NL", std::nullopt},    TypeName{21, "IQ3_S", std::nullopt},
    TypeName{22, "IQ2_S", std::nullopt},     TypeName{23, "IQ4_XS", std::nullopt},
    TypeName{24, "I8", std::nullopt},        TypeName{25, "I16", std::nullopt},
    TypeName{26, "I32", std::nullopt},       TypeName{27, "I64", std::nullopt},
    TypeName{28, "F64", std::nullopt},       TypeName{29, "IQ1_M", std::nullopt},
    TypeName{30, "BF16", WeightType::kBF16}, TypeName{34, "TQ1_0", std::nullopt},
    TypeName{35, "TQ2_0", std::nullopt},     TypeName{39, "MXFP4", std::nullopt},
};

// Reads forward through the file; every read says whether the bytes were there.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] std::uint64_t remaining() const { return bytes_.size() - offset_; }

  [[nodiscard]] bool skip(std::uint64_t count) {
    if (count > remaining()) return false;
    offset_ += count;
    return true;
  }
  template <class T>
  [[nodiscard]] bool read(T& out) {
    if (sizeof(T) > remaining()) return false;
    std::memcpy(&out, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return true;
  }
  [[nodiscard]] bool read_string(std::string_view& out) {
    std::uint64_t length = 0;
    if (!read(length) || length > remaining()) return false;
    out = std::string_view(reinterpret_cast<const char*>(bytes_.data() + offset_), length);
    offset_ += length;
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t offset_ = 0;
};

Error cut_short(std::string_view part) {
  return corrupt(concat("the GGUF file ends inside its ", part, " or a length in it is wrong"));
}

struct Header {
  std::uint64_t tensors = 0;
  std::uint64_t pairs = 0;
};

Result<Header> read_header(Cursor& cursor) {
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  Header header;
  if (!cursor.read(magic) || magic != 0x46554747) return corrupt("the file does not begin with GGUF");
  if (!cursor.read(version)) return cut_short("header");
  if (version != 0 && (version & 0xFFFF) == 0) return invalid_argument("big-endian GGUF files are not supported");
  if (version != 2 && version != 3) return invalid_argument(concat("GGUF version ", version, " is not supported"));
  if (!cursor.read(header.tensors) || !cursor.read(header.pairs)) return cut_short("header");
  if (header.pairs > cursor.remaining() / kMinPairBytes) {
    return corrupt(concat("the GGUF file claims ", header.pairs, " metadata entries, more than fit into it"));
  }
  if (header.tensors > cursor.remaining() / kMinTensorBytes) {
    return corrupt(concat("the GGUF file claims ", header.tensors, " tensors, more than fit into it"));
  }
  return header;
}

// Walks over `value.count` elements that begin at the cursor.
bool skip_value(Cursor& cursor, const GgufValue& value) {
  if (const auto element = gguf_scalar_bytes(value.type); element > 0) {
    const auto bytes = checked_mul(element, value.count);
    return bytes && cursor.skip(*bytes);
  }
  std::string_view text;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    if (!cursor.read_string(text)) return false;
  }
  return true;
}

Result<std::map<std::string, GgufValue, std::less<>>> read_metadata(Cursor& cursor, std::uint64_t pairs) {
  std::map<std::string, GgufValue, std::less<>> values;
  for (std::uint64_t i = 0; i < pairs; ++i) {
    std::string_view key;
    std::uint32_t type = 0;
    if (!cursor.read_string(key) || !cursor.read(type)) return cut_short("metadata");
    GgufValue value;
    if (type == static_cast<std::uint32_t>(GgufType::kArray)) {
      value.is_array = true;
      if (!cursor.read(type) || !cursor.read(value.count)) return cut_short("metadata");
    }
    value.type = static_cast<GgufType>(type);
    if (type > static_cast<std::uint32_t>(GgufType::kFloat64) || value.type == GgufType::kArray) {
      return corrupt(concat("GGUF metadata ", printable(key), " has the unknown type ", type));
    }
    value.offset = cursor.offset();
    if (!skip_value(cursor, value)) {
      return corrupt(concat("GGUF metadata ", printable(key), " runs past the end of the file"));
    }
    if (!values.emplace(key, value).second) return corrupt(concat("GGUF metadata ", printable(key), " appears twice"));
  }
  return values;
}

Result<std::uint64_t> read_alignment(const GgufMetadata& metadata) {
  auto alignment = metadata.integer("general.alignment");
  if (!alignment) return alignment.error();
  if (!alignment.value()) return kDefaultAlignment;
  const auto value = static_cast<std::uint64_t>(*alignment.value());
  if (!std::has_single_bit(value) || value > kMaxAlignment) {
    return corrupt("GGUF metadata general.alignment is not a power of two up to 1048576");
  }
  return value;
}

// Type and offset as in the file; `data` is filled in when the start of the data is known.
struct TableEntry {
  std::string name;
  GgufTensor tensor;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Result<WeightType> tensor_type(std::uint32_t number, std::string_view name) {
  const auto* it = std::find_if(kTensorTypes.begin(), kTensorTypes.end(),
                                [&](const TypeName& entry) { return entry.number == number; });
  if (it == kTensorTypes.end()) {
    return corrupt(concat("tensor ", printable(name), " has the unknown type number ", number));
  }
  if (!it->type) {
    return invalid_argument(concat("tensor ", printable(name), " has type ", it->name, ", which is not supported"));
  }
  return *it->type;
}

// Sets `bytes` from type and shape.
Result<void> measure(TableEntry& entry) {
  const auto format = kernels::block_format(entry.tensor.type);
  std::uint64_t elements = 1;
  for (const auto dimension : entry.tensor.shape) {
    const auto product = checked_mul(elements, static_cast<std::uint64_t>(dimension));
    if (!product) return corrupt(concat("tensor ", printable(entry.name), " has too many elements"));
    elements = *product;
  }
  if (entry.tensor.shape.back() % format.elements != 0) {
    return corrupt(concat("tensor ", printable(entry.name), " has rows of ", entry.tensor.shape.back(),
                          " elements, not a multiple of the ", format.elements, " of a ",
                          weight_type_name(entry.tensor.type), " block"));
  }
  const auto bytes = checked_mul(elements / format.elements, format.bytes);
  if (!bytes) return corrupt(concat("tensor ", printable(entry.name), " has too many elements"));
  entry.bytes = *bytes;
  return {};
}

Result<TableEntry> read_table_entry(Cursor& cursor) {
  TableEntry entry;
  std::string_view name;
  std::uint32_t dimensions = 0;
  if (!cursor.read_string(name) || !cursor.read(dimensions)) return cut_short("tensor table");
  entry.name = name;
  if (dimensions < 1 || dimensions > kMaxDimensions) {
    return corrupt(concat("tensor ", printable(name), " has ", dimensions, " dimensions, not 1 to 4"));
  }
  entry.tensor.shape.resize(dimensions);
  for (auto it = entry.tensor.shape.rbegin(); it != entry.tensor.shape.rend(); ++it) {
    if (!cursor.read(*it)) return cut_short("tensor table");
    if (*it < 1) return corrupt(concat("tensor ", printable(name), " has a dimension that is zero or too large"));
  }
  std::uint32_t type = 0;
  if (!cursor.read(type) || !cursor.read(entry.offset)) return cut_short("tensor table");
  auto known = tensor_type(type, name);
  if (!known) return known.error();
  entry.tensor.type = known.value();
  if (auto measured = measure(entry); !measured) return measured.error();
  return entry;
}

// Gives each entry its bytes: aligned, inside `data`, and without sharing any with another tensor.
Result<void> place_tensors(std::vector<TableEntry>& entries, std::span<const std::byte> data, std::uint64_t alignment) {
  std::sort(entries.begin(), entries.end(),
            [](const TableEntry& a, const TableEntry& b) { return a.offset < b.offset; });
  std::uint64_t free_from = 0;
  for (auto& entry : entries) {
    const auto end = checked_add(entry.offset, entry.bytes);
    if (!end || *end > data.size()) {
      return corrupt(concat("tensor ", printable(entry.name), " runs past the end of the file; the file may be cut"));
    }
    if (entry.offset % alignment != 0) {
      return corrupt(concat("tensor ", printable(entry.name), " begins at an offset that is not aligned"));
    }
    if (entry.offset < free_from) return corrupt(concat("tensor ", printable(entry.name), " overlaps another tensor"));
    free_from = *end;
    entry.tensor.data = data.subspan(entry.offset, entry.bytes);
  }
  return {};
}

}  // namespace

std::string_view weight_type_name(WeightType type) {
  const auto* it =
      std::find_if(kTensorTypes.begin(), kTensorTypes.end(), [&](const TypeName& entry) { return entry.type == type; });
  HS_CHECK(it != kTensorTypes.end(), "weight type without a name");
  return it->name;
}

Result<GgufFile> read_gguf(const std::filesystem::path& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped) return mapped.error();
  GgufFile out;
  out.file = std::move(mapped).value();
  Cursor cursor(out.file->bytes());

  auto header = read_header(cursor);
  if (!header) return header.error();
  auto values = read_metadata(cursor, header.value().pairs);
  if (!values) return values.error();
  out.metadata = std::make_shared<const GgufMetadata>(out.file, std::move(values).value());
  auto alignment = read_alignment(*out.metadata);
  if (!alignment) return alignment.error();

  std::vector<TableEntry> entries;
  for (std::uint64_t i = 0; i < header.value().tensors; ++i) {
    auto entry = read_table_entry(cursor);
    if (!entry) return entry.error();
    entries.push_back(std::move(entry).value());
  }
  const auto padding = (alignment.value() - cursor.offset() % alignment.value()) % alignment.value();
  if (!entries.empty() && !cursor.skip(padding)) return cut_short("tensor table");
  const auto data = out.file->bytes().subspan(cursor.offset());
  if (auto placed = place_tensors(entries, data, alignment.value()); !placed) return placed.error();
  for (auto& entry : entries) {
    const auto [it, added] = out.tensors.emplace(std::move(entry.name), std::move(entry.tensor));
    if (!added) return corrupt(concat("tensor ", printable(it->first), " appears twice"));
  }
  return out;
}

}  // namespace hotset::model
