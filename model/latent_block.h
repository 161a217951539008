// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) and the lightning indexer's projections
// (DeepSeek-V3.2). A cached row is [latent | rope]. Rows that attend to latent rows need their queries absorbed:
// q_nope . (W_UK latent) = (W_UK^T q_nope) . latent, and their contexts are sums of latents, which W_UV turns into
// values. Leading rows of a prompt that attend densely (SequenceSlice::dense_prompt_rows) go over expanded rows with
// plain queries instead.
#pragma once

#include <vector>

#include "kernels/dense_backend.h"
#include "model/attention_block.h"
#include "model/weights.h"

namespace hotset::model {

class LatentBlock final : public AttentionBlock {
 public:
  // `keeper`: see TieredAttention.
  LatentBlock(const ModelWeights& weights, kernels::DenseBackend& backend, const sparse::SelectionAlgorithm* keeper,
              std::int64_t max_rows);

  [[nodiscard]] AttentionShape shape() const override;
  LayerAttention project(LayerId layer, const StepRows& rows, kernels::Activations normed) override;
  void add_output(LayerId layer, const StepRows& rows, float* residual) override;

 private:
  struct RowRange {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  [[nodiscard]] const LatentAttentionWeights& of(LayerId layer) const;
  void find_latent_rows(std::span<const SequenceSlice> slices);
  void absorb_queries(const LatentAttentionWeights& weights);
  // What a layer projects from its input: side by side in a row of `stride` where its matrices are joined, else (0) one
  // behind the other, and index_k is made only where it is wanted.
  struct Inputs {
    float* q_latent = nullptr;
    float* index_k = nullptr;
    float* keys = nullptr;
    std::int64_t stride = 0;
  };
  Inputs project_inputs(const LatentAttentionWeights& weights, const StepRows& rows, kernels::Activations normed);
  void project_index(const IndexerWeights& weights, const StepRows& rows, kernels::Activations normed,
                     const Inputs& inputs, LayerAttention& out);
  // x: the first channel to turn of the first of `heads` heads, which lie `width` apart and fill their row.
  void rotate(float* x, std::int32_t heads, std::int32_t width, const StepRows& rows);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  const LatentConfig& latent_;
  kernels::DenseBackend& backend_;
  bool keeps_index_keys_;
  std::int32_t key_dim_;  // kv_rank + rope
  // Workspace [max_rows, ...].
  kernels::Array<float> inputs_;                   // q_rank + index dim + key_dim
  kernels::ActivationArray q_latent_normed_;       // q_rank
  kernels::Array<float> q_;                        // heads * (nope + rope)
  kernels::Array<float> absorbed_q_;               // heads * key_dim
  kernels::ActivationArray context_;               // heads * kv_rank
  kernels::ActivationArray values_;                // heads * value
  kernels::Array<float> index_q_, index_weights_;  // index heads * index dim; index heads
  std::vector<RowRange> latent_rows_;              // of the last project(): that attend to latent rows
};

}  // namespace hotset::model
