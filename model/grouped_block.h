// Grouped-query attention with RoPE (Llama, SmolLM2, Mistral, Qwen2, Qwen3).
#pragma once

#include "kernels/dense_backend.h"
#include "model/attention_block.h"
#include "model/weights.h"

namespace hotset::model {

class GroupedBlock final : public AttentionBlock {
 public:
  GroupedBlock(const ModelWeights& weights, kernels::DenseBackend& backend, std::int64_t max_rows);

  [[nodiscard]] AttentionShape shape() const override;
  LayerAttention project(LayerId layer, const StepRows& rows, kernels::Activations normed) override;
  void add_output(LayerId layer, const StepRows& rows, float* residual) override;

 private:
  [[nodiscard]] const GroupedAttentionWeights& of(LayerId layer) const;
  [[nodiscard]] LayerAttention finished(LayerAttention out, const GroupedAttentionWeights& weights,
                                        const StepRows& rows);
  void norm_heads(float* x, const Vector& weight, std::int64_t heads);
  void rotate(float* x, std::int32_t heads, std::int64_t stride, const StepRows& rows);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  kernels::DenseBackend& backend_;
  // Queries, keys and values of max_rows: side by side in a row where a layer's matrices are joined, else one behind
  // the other.
  kernels::Array<float> qkv_;
  kernels::ActivationArray context_;  // [max_rows, heads * head_dim]
};

}  // namespace hotset::model
