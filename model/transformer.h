// The forward pass of Llama-like models (Llama, SmolLM2, Mistral, Qwen2, Qwen3), written once for all backends:
// RMSNorm, grouped-query attention with RoPE, SiLU-gated MLP, residual stream in float32. Thread: the stream that owns
// the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "kernels/backend.h"
#include "model/attention.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "model/rope.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

using Matrix = std::unique_ptr<kernels::PackedMatrix>;

struct Linear {
  Matrix weight;
  std::vector<float> bias;  // empty: none
};

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;  // [hidden]
  std::vector<float> q_norm, k_norm;            // [head_dim] or empty
  Linear q, k, v, o, gate, up, down;
};

// Packed weights of a validated checkpoint; the checkpoint may be closed afterwards.
struct ModelWeights {
  ModelConfig config;
  RopeTable rope;
  Matrix embedding;  // [vocabulary, hidden]
  Matrix lm_head;    // null when tied: the embedding is used
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;

  [[nodiscard]] const kernels::PackedMatrix& output() const { return lm_head ? *lm_head : *embedding; }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t parameters() const;
};
Result<std::unique_ptr<ModelWeights>> load_weights(Checkpoint& checkpoint, kernels::Backend& backend);

[[nodiscard]] KvGeometry kv_geometry_of(const ModelConfig& config, KvDType dtype);

class Transformer {
 public:
  // Allocates the workspace for steps of up to `max_rows` rows, of which one slice has up to `max_prefill_rows`.
  // Everything passed outlives it.
  // `keeper`: see TieredAttention.
  Transformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
              const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_prefill_rows);

  void observe(sparse::SelectionObserver* observer) { attention_.observe(observer); }
  void verify(double rate) { attention_.verify(rate); }
  [[nodiscard]] VerifyOutcome take_verified() { return attention_.take_verified(); }

  // One step: `tokens` [rows], slices in batch order, decode slices first. Writes the rows of every layer (commit_rows
  // is the caller's) and keeps the residual stream of all rows for logits().
  void forward(std::uint64_t step, std::span<const std::int32_t> tokens, std::span<const SequenceSlice> slices);

  static constexpr std::int64_t kLogitsRows = 16;  // the most rows of one logits() call

  // Logits of rows of the last forward(), [rows.size(), vocabulary]; valid until the next call.
  [[nodiscard]] std::span<float> logits(std::span<const std::int64_t> rows);

 private:
  void attention_block(std::uint64_t step, const LayerWeights& layer, LayerId id,
                       std::span<const SequenceSlice> slices);
  void mlp_block(const LayerWeights& layer);
  void norm_rows(const float* in, const std::vector<float>& weight, float* out, std::int64_t rows, std::int64_t width);
  void multiply(const Linear& linear, const float* x, float* y, bool accumulate);
  void rotate(float* x, std::int32_t heads);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  kernels::Backend& backend_;
  TieredAttention attention_;
  std::int64_t rows_ = 0;  // of the step
  // Workspace [max_rows, ...].
  std::vector<float> residual_, normed_, q_, k_, v_, context_, gate_, up_, logits_;
  std::vector<std::int64_t> positions_;
};

}  // namespace hotset::model
