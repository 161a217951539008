// The feed-forward part of a layer: a SiLU-gated MLP, or a mixture of them (DeepSeek-V3, arXiv 2412.19437, section
// 2.1.2). Owner: the Transformer. Thread: the stream that owns the backend.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "model/weights.h"

namespace hotset::model {

class FeedForward {
 public:
  FeedForward(const ModelWeights& weights, kernels::Backend& backend, std::int64_t max_rows);

  // residual [rows, hidden] += the layer's feed-forward part of normed [rows, hidden].
  void run(LayerId layer, const float* normed, std::int64_t rows, float* residual);

 private:
  void run(const MlpWeights& mlp, const float* normed, std::int64_t rows, float* residual);
  void run(const ExpertsWeights& weights, const float* normed, std::int64_t rows, float* residual);

  const ModelWeights& weights_;
  kernels::Backend& backend_;
  std::vector<float> gate_, up_;          // [max_rows, widest MLP]
  std::vector<float> router_logits_;      // [max_rows, experts]
  std::vector<std::int32_t> expert_ids_;  // [max_rows, experts of a token]
  std::vector<float> expert_weights_;     // the same
};

}  // namespace hotset::model
