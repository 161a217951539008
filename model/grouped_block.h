// Grouped-query attention with RoPE (Llama, SmolLM2, Mistral, Qwen2, Qwen3).
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "model/attention_block.h"
#include "model/weights.h"

namespace hotset::model {

class GroupedBlock final : public AttentionBlock {
 public:
  GroupedBlock(const ModelWeights& weights, kernels::Backend& backend, std::int64_t max_rows);

  [[nodiscard]] AttentionShape shape() const override;
  LayerAttention project(LayerId layer, const StepRows& rows, const float* normed) override;
  void add_output(LayerId layer, const StepRows& rows, float* residual) override;

 private:
  [[nodiscard]] const GroupedAttentionWeights& of(LayerId layer) const;
  void norm_heads(float* x, const std::vector<float>& weight, std::int64_t heads);
  void rotate(float* x, std::int32_t heads, const StepRows& rows);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  kernels::Backend& backend_;
  std::vector<float> q_, k_, v_, context_;  // [max_rows, ...]
};

}  // namespace hotset::model
