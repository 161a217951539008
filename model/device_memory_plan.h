// What an engine on a GPU will take there beside the pools of the KV cache, before anything is allocated.
#pragma once

#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/activations.h"
#include "model/checkpoint.h"
#include "model/device_step_runner.h"
#include "model/model_config.h"

namespace hotset::model {

// In what a device holds weights.
struct DeviceWeightFormat {
  kernels::ElementType compute = kernels::ElementType::kBF16;
  bool fp8 = false;  // FP8 ones stay FP8 where kernels take them, see kernels/cuda/cuda_backend.h
};

// Bytes of all weights, scales of FP8 ones included. A checkpoint with a config alone: those of make_dummy_weights().
[[nodiscard]] std::int64_t device_weight_bytes(const Checkpoint& checkpoint, const DeviceWeightFormat& format);

// Captured graphs, loaded kernels, cuBLASLt's workspace: what the driver takes.
inline constexpr std::int64_t kDriverBytes = std::int64_t{768} << 20;

// Bytes of the workspace: activations of the longest step, logits, scores, lists and partial results of attention,
// tables of the batch, state of hot buffers, and kDriverBytes. An upper bound: parts that depend on lengths grow up to
// it as longer sequences come (kernels::cuda::GrowingMemory).
[[nodiscard]] std::int64_t device_workspace_bytes(const ModelConfig& config, const KvLayout& layout,
                                                  const DeviceWeightFormat& format, const DeviceRunnerLimits& limits);

}  // namespace hotset::model
