// Structure of one safetensors file, by the rules of the reference library (huggingface/safetensors): a header below
// 100 MB of valid UTF-8 JSON, known dtypes, byte ranges that are sorted, contiguous, exactly as long as dtype and shape
// say, and that end with the file. Knows nothing about models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "model/mapped_file.h"

namespace hotset::model {

struct SafetensorsTensor {
  std::string dtype;                // the file's spelling: "BF16", "F8_E4M3"
  std::vector<std::int64_t> shape;  // outermost first; may be empty (a scalar) or hold zeros
  std::span<const std::byte> data;
};

struct SafetensorsFile {
  std::shared_ptr<const MappedFile> file;  // keeps every span valid
  std::map<std::string, SafetensorsTensor, std::less<>> tensors;
};

// Errors: kNotFound, kCorrupt (names the file and, where it is about one, the tensor).
Result<SafetensorsFile> read_safetensors(const std::filesystem::path& path);

}  // namespace hotset::model
