// Safetensors files as tests take them apart and put them together.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/safetensors_reader.h"

namespace hotset::model {

struct Tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};
using Tensors = std::map<std::string, Tensor>;

inline Tensors tensors_of(const std::filesystem::path& path) {
  auto file = read_safetensors(path);
  EXPECT_TRUE(file.ok());
  Tensors out;
  for (const auto& [name, tensor] : file.value().tensors) {
    out[name] = {tensor.dtype, tensor.shape,
                 std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size())};
  }
  return out;
}

// `padding`: spaces behind the header, which move the data.
inline std::string file_of(const Tensors& tensors, std::size_t padding = 0) {
  auto header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  const auto text = header.dump() + std::string(padding, ' ');
  std::string out(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(out.data(), &length, sizeof length);
  return out + text + data;
}

}  // namespace hotset::model
