// A model's weights as the backend wants them. Read-only once loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/result.h"
#include "kernels/dense_backend.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace hotset::model {

using Matrix = std::unique_ptr<kernels::PackedMatrix>;
using Vector = kernels::Array<float>;

struct Linear {
  Matrix weight;  // [N, K]
  Vector bias;    // [N] or empty

  // y [rows, N] = x [rows, K] W^T + bias.
  [[nodiscard]] kernels::MatmulParams product(kernels::Activations x, float* y, std::int64_t rows) const {
    return {.x = x, .weight = weight.get(), .bias = bias.data(), .y = y, .m = rows};
  }
  // The same added to y.
  [[nodiscard]] kernels::MatmulParams added_product(kernels::Activations x, float* y, std::int64_t rows) const {
    kernels::MatmulParams params = product(x, y, rows);
    params.accumulate = true;
    return params;
  }
};

struct GroupedAttentionWeights {
  Vector q_norm, k_norm;  // [head_dim] or empty
  Linear q, k, v, o;
  Matrix
      qkv;  // of which q, k and v are the rows; null: they lie apart (biases or norms of heads, or the backend's way)
};

struct IndexerWeights {
  Linear q;                    // [index heads * index dim, q_rank]
  Linear k;                    // [index dim, hidden]
  Vector k_norm, k_norm_bias;  // [index dim]
  Linear weights;              // [index heads, hidden] times (index heads * index dim)^-0.5
};

struct LatentAttentionWeights {
  Linear q_a;      // [q_rank, hidden]; no weight where q_rank is 0
  Vector q_norm;   // [q_rank]
  Linear q;        // [heads * (nope + rope), q_rank, or hidden where that is 0]
  Linear kv_a;     // [kv_rank + rope, hidden]
  Vector kv_norm;  // [kv_rank]
  Matrix inputs;   // of which q_a, the indexer's k where there is one, and kv_a are the rows; null: they lie apart
  // kv_b_proj, which makes K (without its rope part) and V of every head out of a latent, in the two forms in which it
  // is used: of all heads for rows that are expanded, by head for rows that stay latent.
  Matrix expand_k;               // [heads * nope, kv_rank]
  Matrix expand_v;               // [heads * value, kv_rank]
  std::vector<Matrix> absorb_k;  // [heads], each [kv_rank, nope]: the head's part of expand_k transposed
  std::vector<Matrix> output_v;  // [heads], each [value, kv_rank]
  std::vector<const kernels::PackedMatrix*> absorb_k_views, output_v_views;  // for BatchedMatmulParams
  Linear o;                                                                  // [hidden, heads * value]
  std::optional<IndexerWeights> indexer;                                     // of a layer that has its own
};

struct MlpWeights {
  Linear gate, up, down;
  Matrix gate_up;  // of which gate and up are the rows; null: they lie apart
};

struct ExpertsWeights {
  Linear router;           // [count, hidden]
  Vector correction_bias;  // [count] or empty
  std::unique_ptr<kernels::PackedExperts> experts;
  std::optional<MlpWeights> shared;
};

struct LayerWeights {
  Vector attention_norm, mlp_norm;  // [hidden]
  std::variant<GroupedAttentionWeights, LatentAttentionWeights> attention;
  std::variant<MlpWeights, ExpertsWeights> feed_forward;
};

// Packed weights of a validated checkpoint; the checkpoint may be closed afterwards.
struct ModelWeights {
  ModelConfig config;
  Vector inv_freq;                     // RopeTable's
  float rope_attention_factor = 1.0F;  // likewise
  Matrix embedding;                    // [vocabulary, hidden]
  Matrix lm_head;                      // null when tied: the embedding is used
  Vector final_norm;
  std::vector<LayerWeights> layers;

  [[nodiscard]] const kernels::PackedMatrix& output() const { return lm_head ? *lm_head : *embedding; }
  [[nodiscard]] std::int64_t parameters() const;    // numbers in the checkpoint's matrices
  [[nodiscard]] std::int64_t matrix_bytes() const;  // what those take; of forms that they have beside each other one
};

// Matrices, by canonical name, that load_weights() gives to a backend in FP8: those that the checkpoint has so, that
// the model multiplies by as they are (not the embeddings, routers, kv_b_proj, which is taken apart, and the indexer's
// weights_proj, which is scaled) and whose shape the backend takes; experts of a layer all or none.
using TakesFp8 = std::function<bool(std::int64_t rows, std::int64_t cols)>;
[[nodiscard]] std::set<std::string, std::less<>> fp8_matrices(const Checkpoint& checkpoint, const TakesFp8& takes);

// kInvalidArgument where a matrix that has to be taken apart is in a block format; Checkpoint::fp8_matrix()'s errors.
Result<std::unique_ptr<ModelWeights>> load_weights(Checkpoint& checkpoint, kernels::DenseBackend& backend);

}  // namespace hotset::model
