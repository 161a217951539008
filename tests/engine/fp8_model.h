// Small models with FP8 weights, in memory: projections are random E4M3 codes with block scales, the rest bfloat16.
#pragma once

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/fp8.h"
#include "core/half.h"
#include "model/checkpoint.h"

namespace hotset::testing {

// Widths as DeepSeek has them, multiples of 128 where a product needs it; blocks of scales that end within a matrix.
inline model::ModelConfig fp8_latent_config() {
  model::ModelConfig config{.architecture = model::Architecture::kDeepseekV32,
                            .vocabulary = 512,
                            .hidden = 256,
                            .intermediate = 384,
                            .layers = 3,
                            .heads = 4,
                            .kv_heads = 4,
                            .head_dim = 48,
                            .rotary_dim = 16,
                            .max_positions = 4096};
  config.latent = {.q_rank = 128, .kv_rank = 64, .nope_dim = 32, .rope_dim = 16, .value_dim = 32};
  config.indexer = {.heads = 4, .dim = 32, .top_k = 32, .full_layer = {true, true, true}};
  config.fp8_weights = true;
  return config;
}
inline model::ModelConfig fp8_experts_config() {
  model::ModelConfig config = fp8_latent_config();
  config.experts = {.count = 8, .per_token = 2, .intermediate = 128, .shared = 1, .sparse_layer = {false, true, true}};
  return config;
}
// Queries, keys and values join, or, with one head of keys, don't; of the MLP's matrices one is no multiple of 128
// wide.
inline model::ModelConfig fp8_grouped_config(std::int32_t kv_heads) {
  return {.architecture = model::Architecture::kLlama,
          .vocabulary = 512,
          .hidden = 256,
          .intermediate = 320,
          .layers = 3,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_dim = 64,
          .rotary_dim = 64,
          .max_positions = 4096,
          .fp8_weights = true};
}

class Fp8Model {
 public:
  explicit Fp8Model(const model::ModelConfig& config, std::uint64_t seed = 5) : random_(seed) {
    contents_.config = config;
    for (const model::ExpectedTensor& tensor : model::expected_tensors(config)) add(tensor);
  }
  Fp8Model(const Fp8Model&) = delete;
  Fp8Model& operator=(const Fp8Model&) = delete;

  // The model outlives it.
  [[nodiscard]] std::unique_ptr<model::Checkpoint> checkpoint() const {
    return std::make_unique<model::Checkpoint>(contents_);
  }

 private:
  void add(const model::ExpectedTensor& expected) {
    model::StoredTensor tensor{.file_name = expected.name, .info = {"BF16", expected.shape}};
    tensor.type = kernels::WeightType::kBF16;
    const bool matrix = expected.shape.size() == 2;
    const std::int64_t rows = expected.shape[0];
    const std::int64_t cols = matrix ? expected.shape[1] : 1;
    const float deviation = matrix ? 1.0F / std::sqrt(static_cast<float>(cols)) : 0.1F;
    const bool projection = expected.name.find("_proj") != std::string::npos ||
                            expected.name.ends_with("indexer.wq_b") || expected.name.ends_with("indexer.wk");
    if (matrix && projection) {
      constexpr float kCode = 150.0F;  // standard deviation of the codes
      std::vector<std::uint8_t> codes;
      for (std::int64_t i = 0; i < rows * cols; ++i) codes.push_back(f32_to_e4m3(kCode * normal_(random_)));
      std::vector<float> scales;
      for (std::int64_t i = 0; i < (rows + 127) / 128 * ((cols + 127) / 128); ++i)
        scales.push_back(deviation / kCode * std::uniform_real_distribution<float>(0.5F, 1.5F)(random_));
      tensor.info.type = "F8_E4M3";
      tensor.type = kernels::WeightType::kF32;
      tensor.data = keep(codes);
      tensor.scales = model::BlockScales{kernels::WeightType::kF32, keep(scales)};
    } else {
      std::vector<std::uint16_t> values;
      const float mean = !matrix && !expected.name.ends_with(".bias") ? 1.0F : 0.0F;
      for (std::int64_t i = 0; i < rows * cols; ++i) values.push_back(f32_to_bf16(mean + deviation * normal_(random_)));
      tensor.data = keep(values);
    }
    contents_.tensors.emplace(expected.name, std::move(tensor));
  }
  template <class T>
  std::span<const std::byte> keep(const std::vector<T>& values) {
    std::vector<std::byte>& kept = memory_.emplace_back(values.size() * sizeof(T));
    std::memcpy(kept.data(), values.data(), kept.size());
    return kept;
  }

  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
  std::deque<std::vector<std::byte>> memory_;
  model::CheckpointContents contents_;
};

}  // namespace hotset::testing
