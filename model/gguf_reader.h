// Structure of a GGUF file (version 2 and 3, little endian): header, metadata, tensor table. Knows nothing about
// models. Every count, length and offset is checked against the file's size before it is used, so a short file that
// claims much fails at once and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "kernels/tensor.h"
#include "model/gguf_metadata.h"
#include "model/mapped_file.h"

namespace hotset::model {

struct GgufTensor {
  kernels::WeightType type = kernels::WeightType::kF32;
  std::vector<std::int64_t> shape;  // outermost first (the file stores the innermost first); each >= 1, 1 to 4 of them
  std::span<const std::byte> data;  // exactly as many bytes as type and shape say; inside the file
};

struct GgufFile {
  std::shared_ptr<const MappedFile> file;  // keeps every span valid
  std::shared_ptr<const GgufMetadata> metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// Errors: kNotFound; kCorrupt for a file that breaks the format; kInvalidArgument for a version, a byte order or a
// tensor type that is not supported, by name.
Result<GgufFile> read_gguf(const std::filesystem::path& path);

// The file's spelling: "Q4_K".
[[nodiscard]] std::string_view weight_type_name(kernels::WeightType type);

}  // namespace hotset::model
