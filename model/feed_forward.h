// The feed-forward part of a layer: a SiLU-gated MLP, or a mixture of them (DeepSeek-V3, arXiv 2412.19437, section
// 2.1.2). Owner: the Transformer. Thread: the stream that owns the backend.
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "kernels/dense_backend.h"
#include "model/weights.h"

namespace hotset::model {

class FeedForward {
 public:
  FeedForward(const ModelWeights& weights, kernels::DenseBackend& backend, std::int64_t max_rows);

  // residual [rows, hidden] += the layer's feed-forward part of normed [rows, hidden].
  void run(LayerId layer, kernels::Activations normed, std::int64_t rows, float* residual);

 private:
  void run(const MlpWeights& mlp, kernels::Activations normed, std::int64_t rows, float* residual);
  void run(const ExpertsWeights& weights, kernels::Activations normed, std::int64_t rows, float* residual);

  const ModelWeights& weights_;
  kernels::DenseBackend& backend_;
  // Of max_rows, for the widest MLP: side by side in a row where gate and up are joined, else one behind the other.
  kernels::Array<float> gate_up_;
  kernels::ActivationArray gated_;           // [max_rows, widest MLP]; none: it lies where the gates are
  kernels::Array<float> router_logits_;      // [max_rows, experts]
  kernels::Array<std::int32_t> expert_ids_;  // [max_rows, experts of a token]
  kernels::Array<float> expert_weights_;     // the same
};

}  // namespace hotset::model
