#include "model/dummy_weights.h"

#include <cmath>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "core/splitmix.h"
#include "model/rope.h"

namespace hotset::model {
namespace {

using kernels::RandomNumbers;

class DummyMaker {
 public:
  DummyMaker(const ModelConfig& config, kernels::DenseBackend& backend, std::uint64_t seed)
      : config_(config), backend_(backend), seed_(seed) {}

  // In bfloat16, whatever the config says of FP8: see fp8_matrices().
  Matrix matrix(std::int64_t rows, std::int64_t cols, double factor = 1.0) {
    return backend_.random_matrix(kernels::random_rows(next_seed(), static_cast<float>(factor) * deviation(cols), cols),
                                  rows, cols);
  }
  Vector vector(std::int64_t size, float value) {
    const std::vector<float> values(static_cast<std::size_t>(size), value);
    return backend_.array_of(std::span<const float>(values));
  }

  LayerWeights layer(std::int32_t index) {
    LayerWeights out;
    out.attention_norm = vector(config_.hidden, 1.0F);
    out.mlp_norm = vector(config_.hidden, 1.0F);
    if (config_.latent) {
      out.attention = latent(index);
    } else {
      out.attention = grouped();
    }
    if (config_.experts && config_.experts->sparse_layer[static_cast<std::size_t>(index)]) {
      out.feed_forward = experts();
    } else {
      out.feed_forward = mlp(config_.intermediate, config_.mlp_bias);
    }
    return out;
  }

 private:
  // One for each matrix, in the order in which they are made.
  std::uint64_t next_seed() { return seed_ = splitmix64(seed_); }
  static float deviation(std::int64_t cols) { return 1.0F / std::sqrt(static_cast<float>(cols)); }

  [[nodiscard]] RandomNumbers projection(std::int64_t cols) {
    RandomNumbers numbers = kernels::random_rows(next_seed(), deviation(cols), cols);
    numbers.fp8 = config_.fp8_weights;
    return numbers;
  }

  Linear linear(std::int64_t rows, std::int64_t cols, bool bias = false) {
    Linear out{.weight = backend_.random_matrix(projection(cols), rows, cols), .bias = {}};
    if (bias) out.bias = vector(rows, 0.0F);
    return out;
  }

  // As linear() of each without biases, one after the other.
  Matrix joined(const std::vector<std::pair<Linear*, std::int64_t>>& parts, std::int64_t cols) {
    std::vector<kernels::DenseBackend::RandomPart> made;
    for (const auto& [linear, rows] : parts) made.push_back({projection(cols), rows, cols});
    kernels::JoinedMatrices packed = backend_.random_joined(made);
    auto part = packed.parts.begin();
    for (const auto& [linear, rows] : parts) linear->weight = std::move(*part++);
    return std::move(packed.all);
  }

  GroupedAttentionWeights grouped() {
    GroupedAttentionWeights out;
    const std::int64_t q_rows = std::int64_t{config_.heads} * config_.head_dim;
    const std::int64_t kv_rows = std::int64_t{config_.kv_heads} * config_.head_dim;
    if (config_.qkv_bias || config_.qk_norm) {
      out.q = linear(q_rows, config_.hidden, config_.qkv_bias);
      out.k = linear(kv_rows, config_.hidden, config_.qkv_bias);
      out.v = linear(kv_rows, config_.hidden, config_.qkv_bias);
    } else {
      out.qkv = joined({{&out.q, q_rows}, {&out.k, kv_rows}, {&out.v, kv_rows}}, config_.hidden);
    }
    out.o = linear(config_.hidden, q_rows, config_.o_bias);
    if (config_.qk_norm) {
      out.q_norm = vector(config_.head_dim, 1.0F);
      out.k_norm = vector(config_.head_dim, 1.0F);
    }
    return out;
  }

  LatentAttentionWeights latent(std::int32_t index) {
    const LatentConfig& shape = *config_.latent;
    LatentAttentionWeights out;
    const std::int64_t q_rows = std::int64_t{config_.heads} * config_.head_dim;
    std::vector<std::pair<Linear*, std::int64_t>> inputs;
    if (shape.q_rank > 0) {
      inputs.emplace_back(&out.q_a, shape.q_rank);
      out.q_norm = vector(shape.q_rank, 1.0F);
    }
    out.q = linear(q_rows, shape.q_rank > 0 ? shape.q_rank : config_.hidden);
    if (config_.indexer && config_.indexer->full_layer[static_cast<std::size_t>(index)]) {
      out.indexer = indexer();
      inputs.emplace_back(&out.indexer->k, config_.indexer->dim);
    }
    inputs.emplace_back(&out.kv_a, shape.kv_rank + shape.rope_dim);
    out.inputs = joined(inputs, config_.hidden);
    out.kv_norm = vector(shape.kv_rank, 1.0F);
    make_kv_b(out);
    out.o = linear(config_.hidden, std::int64_t{config_.heads} * shape.value_dim);
    return out;
  }

  // Parts of one matrix [heads][nope + value][kv_rank], see LatentAttentionWeights.
  void make_kv_b(LatentAttentionWeights& out) {
    const LatentConfig& shape = *config_.latent;
    const std::int64_t rank = shape.kv_rank;
    const std::int64_t head_step = (shape.nope_dim + shape.value_dim) * rank;
    const RandomNumbers keys{.seed = next_seed(),
                             .deviation = deviation(rank),
                             .group_rows = shape.nope_dim,
                             .group_step = head_step,
                             .row_step = rank};
    RandomNumbers values = keys;
    values.first = shape.nope_dim * rank;
    values.group_rows = shape.value_dim;
    RandomNumbers transposed = keys;
    transposed.group_rows = rank;
    transposed.row_step = 1;
    transposed.col_step = rank;
    out.expand_k = backend_.random_matrix(keys, std::int64_t{config_.heads} * shape.nope_dim, rank);
    out.expand_v = backend_.random_matrix(values, std::int64_t{config_.heads} * shape.value_dim, rank);
    out.absorb_k = backend_.random_batch(transposed, config_.heads, rank, shape.nope_dim);
    out.output_v = backend_.random_batch(values, config_.heads, shape.value_dim, rank);
    for (const Matrix& one : out.absorb_k) out.absorb_k_views.push_back(one.get());
    for (const Matrix& one : out.output_v) out.output_v_views.push_back(one.get());
  }

  // All but k.
  IndexerWeights indexer() {
    const IndexerConfig& shape = *config_.indexer;
    IndexerWeights out;
    const std::int64_t rows = std::int64_t{shape.heads} * shape.dim;
    out.q = linear(rows, config_.latent->q_rank);
    out.k_norm = vector(shape.dim, 1.0F);
    out.k_norm_bias = vector(shape.dim, 0.0F);
    out.weights.weight = matrix(shape.heads, config_.hidden, 1.0 / std::sqrt(static_cast<double>(rows)));
    return out;
  }

  MlpWeights mlp(std::int64_t intermediate, bool bias) {
    MlpWeights out;
    if (bias) {
      out.gate = linear(intermediate, config_.hidden, bias);
      out.up = linear(intermediate, config_.hidden, bias);
    } else {
      out.gate_up = joined({{&out.gate, intermediate}, {&out.up, intermediate}}, config_.hidden);
    }
    out.down = linear(config_.hidden, intermediate, bias);
    return out;
  }

  ExpertsWeights experts() {
    const ExpertsConfig& shape = *config_.experts;
    ExpertsWeights out;
    out.router.weight = matrix(shape.count, config_.hidden);
    if (shape.correction_bias) out.correction_bias = vector(shape.count, 0.0F);
    const kernels::ExpertsShape of_experts{.count = shape.count,
                                           .hidden = config_.hidden,
                                           .intermediate = shape.intermediate,
                                           .fp8 = config_.fp8_weights &&
                                                  backend_.takes_fp8(shape.intermediate, config_.hidden) &&
                                                  backend_.takes_fp8(config_.hidden, shape.intermediate)};
    out.experts = backend_.make_experts(of_experts);
    out.experts->set_random(of_experts, next_seed(), deviation(config_.hidden), deviation(shape.intermediate));
    if (shape.shared > 0) out.shared = mlp(shape.shared * shape.intermediate, false);
    return out;
  }

  const ModelConfig& config_;
  kernels::DenseBackend& backend_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<ModelWeights> make_dummy_weights(const ModelConfig& config, kernels::DenseBackend& backend,
                                                 std::uint64_t seed) {
  auto weights = std::make_unique<ModelWeights>();
  weights->config = config;
  const RopeTable rope = make_rope(config);
  weights->inv_freq = backend.array_of(std::span<const float>(rope.inv_freq));
  weights->rope_attention_factor = rope.attention_factor;
  DummyMaker maker(weights->config, backend, seed);
  weights->embedding = maker.matrix(config.vocabulary, config.hidden);
  weights->final_norm = maker.vector(config.hidden, 1.0F);
  if (!config.tied_embeddings) weights->lm_head = maker.matrix(config.vocabulary, config.hidden);
  for (std::int32_t layer = 0; layer < config.layers; ++layer) weights->layers.push_back(maker.layer(layer));
  return weights;
}

}  // namespace hotset::model
