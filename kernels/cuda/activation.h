// The gate of an MLP on the device: out[r, c] = silu(gate[r, c]) * up[r, c], silu(x) = x / (1 + exp(-x)), in float32.
// Within 2e-6 of the CPU's, relative; bfloat16 results are rounded to nearest even.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's; strides in elements, 0: the width. One matrix for both, [rows, 2 width], is
// up = gate + width with both strides 2 width. out may equal gate where types and strides are equal.
struct SiluGateDeviceParams {
  const void* gate = nullptr;  // [rows, width] of in_type
  std::int64_t gate_stride = 0;
  const void* up = nullptr;  // [rows, width] of in_type
  std::int64_t up_stride = 0;
  ActivationType in_type = ActivationType::kF32;
  void* out = nullptr;  // [rows, width] of out_type
  std::int64_t out_stride = 0;
  ActivationType out_type = ActivationType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

void launch_silu_gate(const SiluGateDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
