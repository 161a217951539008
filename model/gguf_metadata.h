// Read access to the key-value part of a GGUF file. Immutable; shared by the checkpoint and the tokenizer, and keeps
// the file mapped as long as it lives, so string views stay valid that long. Safe from any thread.
//
// Every getter: nullopt = the key is absent; an error = the key has another type or a value that does not fit.
// Arrays are decoded on each call; their counts were checked against the file when it was opened.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "model/mapped_file.h"

namespace hotset::model {

// Numbers of the file format.
enum class GgufType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Where a value lies. For an array `type` is that of its elements.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  bool is_array = false;
  std::uint64_t count = 1;   // elements
  std::uint64_t offset = 0;  // of the first element, in the file
};

// Bytes of one scalar; 0 for strings and arrays.
[[nodiscard]] std::uint64_t gguf_scalar_bytes(GgufType type);

class GgufMetadata {
 public:
  // `values`: offsets and counts that lie inside `file` (GgufReader has walked over them).
  GgufMetadata(std::shared_ptr<const MappedFile> file, std::map<std::string, GgufValue, std::less<>> values);

  [[nodiscard]] bool has(std::string_view key) const { return values_.contains(key); }
  [[nodiscard]] std::vector<std::string_view> keys() const;  // ascending

  // A string is bytes: its UTF-8 is not checked here.
  [[nodiscard]] Result<std::optional<std::string_view>> string(std::string_view key) const;
  [[nodiscard]] Result<std::optional<bool>> boolean(std::string_view key) const;
  // Any integer type; a value above 2^63 - 1 is an error.
  [[nodiscard]] Result<std::optional<std::int64_t>> integer(std::string_view key) const;
  // float32 or float64.
  [[nodiscard]] Result<std::optional<double>> number(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::string_view>>> strings(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::int64_t>>> integers(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::vector<double>>> numbers(std::string_view key) const;

 private:
  [[nodiscard]] const GgufValue* find(std::string_view key) const;
  [[nodiscard]] const std::byte* data(const GgufValue& value) const;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

}  // namespace hotset::model
