// Writes GGUF files for tests, good ones and, through the claimed counts and raw values, bad ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/gguf_metadata.h"

namespace hotset::model {

template <class T>
std::string as_bytes(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
inline std::string gguf_text(std::string_view text) { return as_bytes<std::uint64_t>(text.size()) + std::string(text); }

class GgufBuilder {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;  // of the data; say it in the metadata too where it isn't 32
  std::optional<std::uint64_t> claimed_tensors;
  std::optional<std::uint64_t> claimed_pairs;

  void raw(std::string_view key, std::uint32_t type, const std::string& value) {
    erase(key);
    pairs_.emplace_back(key, as_bytes(type) + value);
  }
  void text(std::string_view key, std::string_view value) { raw(key, 8, gguf_text(value)); }
  void u32(std::string_view key, std::uint32_t value) { raw(key, 4, as_bytes(value)); }
  void f32(std::string_view key, float value) { raw(key, 6, as_bytes(value)); }
  void boolean(std::string_view key, bool value) { raw(key, 7, as_bytes<std::uint8_t>(value ? 1 : 0)); }
  void array(std::string_view key, std::uint32_t type, std::uint64_t count, const std::string& elements) {
    raw(key, 9, as_bytes(type) + as_bytes(count) + elements);
  }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    std::string elements;
    for (const auto& value : values) elements += gguf_text(value);
    array(key, 8, values.size(), elements);
  }
  void erase(std::string_view key) {
    std::erase_if(pairs_, [&](const auto& pair) { return pair.first == key; });
  }
  void repeat_pair(std::string_view key) {
    for (const auto& pair : std::vector(pairs_)) {
      if (pair.first == key) pairs_.push_back(pair);
    }
  }

  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;  // outermost first
    std::uint32_t type = 0;            // the format's number
    std::string data;
    std::optional<std::uint64_t> claimed_offset;
    std::optional<std::uint32_t> claimed_dimensions;
  };
  Tensor& tensor(Tensor tensor) { return tensors_.emplace_back(std::move(tensor)); }
  Tensor& find_tensor(std::string_view name) {
    for (auto& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw std::out_of_range(std::string(name));
  }
  void erase_tensor(std::string_view name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  }

  // Where the data begins in the last built file.
  [[nodiscard]] std::size_t header_bytes() const { return header_bytes_; }

  std::string build() {
    std::string out = "GGUF" + as_bytes(version) + as_bytes(claimed_tensors.value_or(tensors_.size())) +
                      as_bytes(claimed_pairs.value_or(pairs_.size()));
    for (const auto& [key, value] : pairs_) out += gguf_text(key) + value;
    std::string data;
    for (const auto& tensor : tensors_) {
      out += gguf_text(tensor.name) +
             as_bytes(tensor.claimed_dimensions.value_or(static_cast<std::uint32_t>(tensor.shape.size())));
      for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) out += as_bytes(*it);
      out += as_bytes(tensor.type) + as_bytes<std::uint64_t>(tensor.claimed_offset.value_or(data.size()));
      data += tensor.data;
      data.resize(padded(data.size()));
    }
    out.resize(padded(out.size()));
    header_bytes_ = out.size();
    return out + data;
  }

 private:
  [[nodiscard]] std::size_t padded(std::size_t size) const { return (size + alignment - 1) / alignment * alignment; }

  std::vector<std::pair<std::string, std::string>> pairs_;
  std::vector<Tensor> tensors_;
  std::size_t header_bytes_ = 0;
};

// A block format of the file.
struct TensorFormat {
  std::uint32_t number;
  std::size_t elements;
  std::size_t bytes;
  std::vector<std::size_t> halves;  // offsets of its float16 scales
};
inline const TensorFormat kFormatF32{0, 1, 4, {}};
inline const TensorFormat kFormatF16{1, 1, 2, {0}};
inline const TensorFormat kFormatQ4_0{2, 32, 18, {0}};
inline const TensorFormat kFormatQ4_1{3, 32, 20, {0, 2}};
inline const TensorFormat kFormatQ8_0{8, 32, 34, {0}};
inline const TensorFormat kFormatQ4_K{12, 256, 144, {0, 2}};
inline const TensorFormat kFormatQ5_K{13, 256, 176, {0, 2}};
inline const TensorFormat kFormatQ6_K{14, 256, 210, {208}};
inline const TensorFormat kFormatBF16{30, 1, 2, {}};

// Random blocks whose scales are small positive numbers.
inline std::string random_blocks(const TensorFormat& format, std::size_t elements, std::mt19937& random) {
  std::string out(elements / format.elements * format.bytes, '\0');
  for (char& byte : out) byte = static_cast<char>(random() & 0xFF);
  for (std::size_t block = 0; block < out.size(); block += format.bytes) {
    for (const auto half : format.halves) {
      const auto bits = static_cast<std::uint16_t>(0x2000 + random() % 0x1000);  // 2^-7 to 2^-3
      std::memcpy(&out[block + half], &bits, sizeof bits);
    }
    if (format.number == kFormatF32.number) {
      const float value = static_cast<float>(random() % 1000) / 500.0F - 1.0F;
      std::memcpy(&out[block], &value, sizeof value);
    }
    if (format.number == kFormatBF16.number) {
      const auto bits = static_cast<std::uint16_t>(0x3E00 + random() % 0x180);
      std::memcpy(&out[block], &bits, sizeof bits);
    }
  }
  return out;
}

// A whole model of one layer that uses every supported format: 4 query heads and 2 KV heads of 8 channels, hidden 256,
// intermediate 32, vocabulary 8.
inline GgufBuilder small_model(const std::string& architecture, std::uint32_t seed = 7) {
  std::mt19937 random(seed);
  GgufBuilder builder;
  const auto key = [&](const char* option) { return architecture + "." + option; };
  builder.text("general.architecture", architecture);
  builder.text("general.name", "small");
  builder.u32(key("block_count"), 1);
  builder.u32(key("context_length"), 512);
  builder.u32(key("embedding_length"), 256);
  builder.u32(key("feed_forward_length"), 32);
  builder.u32(key("attention.head_count"), 4);
  builder.u32(key("attention.head_count_kv"), 2);
  builder.u32(key("attention.key_length"), 8);
  builder.u32(key("attention.value_length"), 8);
  builder.u32(key("rope.dimension_count"), 8);
  builder.f32(key("rope.freq_base"), 20000.0F);
  builder.f32(key("attention.layer_norm_rms_epsilon"), 1e-5F);
  builder.text("tokenizer.ggml.model", "gpt2");
  builder.texts("tokenizer.ggml.tokens", {"a", "b", "c", "d", "e", "f", "<s>", "</s>"});
  builder.u32("tokenizer.ggml.bos_token_id", 6);
  builder.u32("tokenizer.ggml.eos_token_id", 7);

  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape, const TensorFormat& format) {
    std::size_t elements = 1;
    for (const auto dimension : shape) elements *= dimension;
    builder.tensor({name, std::move(shape), format.number, random_blocks(format, elements, random), {}, {}});
  };
  add("token_embd.weight", {8, 256}, kFormatF16);
  add("output.weight", {8, 256}, kFormatQ8_0);
  add("output_norm.weight", {256}, kFormatF32);
  add("blk.0.attn_norm.weight", {256}, kFormatF32);
  add("blk.0.ffn_norm.weight", {256}, kFormatF16);
  add("blk.0.attn_q.weight", {32, 256}, kFormatQ4_K);
  add("blk.0.attn_k.weight", {16, 256}, kFormatQ4_0);
  add("blk.0.attn_v.weight", {16, 256}, kFormatQ5_K);
  add("blk.0.attn_output.weight", {256, 32}, kFormatQ8_0);
  add("blk.0.ffn_gate.weight", {32, 256}, kFormatQ6_K);
  add("blk.0.ffn_up.weight", {32, 256}, kFormatBF16);
  add("blk.0.ffn_down.weight", {256, 32}, kFormatQ4_1);
  if (architecture == "qwen2") {
    add("blk.0.attn_q.bias", {32}, kFormatF32);
    add("blk.0.attn_k.bias", {16}, kFormatF32);
    add("blk.0.attn_v.bias", {16}, kFormatF32);
  }
  if (architecture == "qwen3") {
    add("blk.0.attn_q_norm.weight", {8}, kFormatF32);
    add("blk.0.attn_k_norm.weight", {8}, kFormatF32);
  }
  return builder;
}

}  // namespace hotset::model
