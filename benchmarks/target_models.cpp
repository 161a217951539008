#include "benchmarks/target_models.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "model/kv_layout.h"
#include "sparse/dsa.h"
#include "sparse/low_rank.h"

namespace hotset {
namespace {

template <class T>
T require(Result<T> result) {
  HS_CHECK(result.ok(), result.ok() ? "" : result.error().message.c_str());
  return std::move(result).value();
}

}  // namespace

model::ModelConfig llama_8b() {
  return {.architecture = model::Architecture::kLlama,
          .name = "Llama-3.1-8B",
          .vocabulary = 128256,
          .hidden = 4096,
          .intermediate = 14336,
          .layers = 32,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .rotary_dim = 128,
          .rms_epsilon = 1e-5,
          .max_positions = 131072,
          .rope_theta = 5e5};
}

model::ModelConfig deepseek_v32() {
  model::ModelConfig config{.architecture = model::Architecture::kDeepseekV32,
                            .name = "DeepSeek-V3.2, 8 experts",
                            .vocabulary = 129280,
                            .hidden = 7168,
                            .intermediate = 18432,
                            .layers = 61,
                            .heads = 128,
                            .kv_heads = 128,
                            .head_dim = 192,
                            .rotary_dim = 64,
                            .max_positions = 163840};
  config.latent = {.q_rank = 1536, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  config.experts = {
      .count = 8, .per_token = 8, .correction_bias = true, .scaling_factor = 2.5, .intermediate = 2048, .shared = 1};
  config.experts->sparse_layer.assign(61, true);
  std::fill_n(config.experts->sparse_layer.begin(), 3, false);
  config.fp8_weights = true;
  config.indexer = {.heads = 64, .dim = 128, .top_k = 2048};
  config.indexer->full_layer.assign(61, true);
  return config;
}

std::shared_ptr<const sparse::SelectionAlgorithm> target_algorithm(const model::ModelConfig& config, KvDType dtype,
                                                                   std::int64_t budget, std::int32_t index_rank) {
  if (config.indexer)
    return require(sparse::make_dsa({.top_k = config.indexer->top_k, .dim = config.indexer->dim, .dtype = dtype}));
  const KvGeometry rows = model::kv_geometry_of(config, dtype);
  const sparse::IndexBasis shape{.layers = rows.layers,
                                 .kv_heads = rows.kv_heads,
                                 .key_dim = rows.key_dim,
                                 .rank = index_rank > 0 ? index_rank : sparse::default_index_rank(rows.key_dim, false),
                                 .u = {}};
  return require(sparse::make_low_rank(
      {.budget = budget, .basis = std::make_shared<const sparse::IndexBasis>(sparse::random_index_basis(shape, 2))}));
}

}  // namespace hotset
