// Rotary embedding in place on the device, with the RMSNorm of each head before it where a model has one (QK-norm).
// Formula of RopeParams in kernels/backend.h. Angles in double precision, good for positions below 2^31; float32
// results lie within 1e-6 of the CPU's, relative to the larger of a pair. All pointers are the device's.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct RopeDeviceParams {
  void* x = nullptr;  // [rows, heads, head_dim] of `type`; row stride in elements below
  ActivationType type = ActivationType::kF32;
  std::int64_t row_stride = 0;              // 0: heads * head_dim
  const std::int64_t* positions = nullptr;  // [rows]; a negative one leaves its row alone (padding)
  const float* inv_freq = nullptr;          // [rotary_dim / 2]
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_begin = 0;  // first rotated channel of a head; the others stay (but are normalised)
  std::int32_t rotary_dim = 0;    // even, at most 8,192; pairs are (c, c + rotary_dim / 2)
  float attention_factor = 1.0F;
  // RMSNorm over the whole head first; nothing is rounded between. In float32 and up to 512 channels: the bits of
  // launch_rms_norm followed by this launcher without a weight. Heads of at most 1,500 channels.
  const float* norm_weight = nullptr;  // [head_dim]; null: no norm
  float epsilon = 1e-6F;
};

void launch_rope(const RopeDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
