// y = x W^T for few rows of x with weights in e4m3 and a float32 scale for each 128 x 128 of them (DeepSeek-V3's
// `weight_scale_inv`): the twin of few_rows.h. The codes are read once, at the memory's bandwidth, and widened to
// bfloat16 in registers; x is not quantised. Its first copies of weights, too, come before the kernels ahead have
// ended.
//
// Products are exact, 128 of k are summed by the tensor cores (float32, which cut aligned products: within 2^-19 of the
// sum of magnitudes), scaled and added up in float32: blocks of 128 one after the other by warp, then the warps.
// A row's bits depend on its own x, the weights, n and k: they are the same for every m that is taken here, in every
// place, on any grid. There is to be no NaN among the codes: it counts as 480.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

inline constexpr std::int64_t kMostFewRowsFp8 = 16;

// Device pointers, x and W on 16 bytes. Strides in elements.
struct FewRowsFp8Params {
  const void* x = nullptr;        // [m, k] bfloat16
  std::int64_t x_stride = 0;      // 0: k; a multiple of 8
  const void* weight = nullptr;   // [n, k] e4m3, no padding. Nothing queued just before writes it
  const float* scales = nullptr;  // [ceil(n / 128), k / 128]
  const float* bias = nullptr;    // [n], or null; with y in float32 only
  void* y = nullptr;              // [m, n] of y_type
  ActivationType y_type = ActivationType::kF32;
  std::int64_t y_stride = 0;  // 0: n
  bool accumulate = false;    // y += instead of y =
  // W has 2n rows, gates, then ups, and scales are [2][ceil(n / 128), k / 128]: y = silu(x gates^T) * (x ups^T). n is a
  // multiple of 8; without a bias or accumulate.
  bool gated = false;
  std::int64_t m = 0;  // at most kMostFewRowsFp8
  std::int64_t n = 0;
  std::int64_t k = 0;  // a multiple of 128
};

// `tiles`: of 16 channels that a block multiplies at once, 1, 2 or 4 (a narrow weight's are always single); 0: as
// measured to be best; the bits are the same.
// Throws CudaError where the device is not a Hopper.
void launch_few_rows_fp8(const FewRowsFp8Params& params, Stream stream, int tiles = 0);

}  // namespace hotset::kernels::cuda
