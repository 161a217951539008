// y = x W^T (+ bias) (+ y) with weights in e4m3 and a float32 scale for each 128 x 128 of them (DeepSeek-V3's
// `weight_scale_inv`). x is quantised on the fly per row and 128 inputs: scale = largest / 448, code = e4m3(x / scale).
// 128 of k at a time are summed by the tensor cores, which cut aligned products: within 2^-12 of the sum of magnitudes
// of the quantised product; the parts are scaled and added in float32, in ascending order.
//
// A row's bits depend on that row only: not on m, the other rows or their places. Hopper only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"
#include "kernels/tensor.h"

namespace hotset::kernels::cuda {

// Whether a weight [n, k] can stay FP8: for these products, those of few rows (matmul/few_rows_fp8.h), and as a matrix
// of experts where both widths are multiples of 128.
[[nodiscard]] constexpr bool fp8_weight_fits(std::int64_t n, std::int64_t k) {
  return n % 8 == 0 && k % kFp8Block == 0;
}

// Device pointers, rows on 16 bytes. Strides in elements.
struct Fp8MatmulParams {
  const void* x = nullptr;  // [m, k] of x_type
  ActivationType x_type = ActivationType::kF32;
  std::int64_t x_stride = 0;             // 0: k
  const void* weight = nullptr;          // [n, k] e4m3, no padding
  const float* weight_scales = nullptr;  // [ceil(n / 128), k / 128]
  const float* bias = nullptr;           // [n] or null
  void* y = nullptr;                     // [m, n] of y_type
  ActivationType y_type = ActivationType::kF32;
  std::int64_t y_stride = 0;  // 0: n
  bool accumulate = false;
  std::int64_t m = 0;
  std::int64_t n = 0;  // n and k as fp8_weight_fits() says
  std::int64_t k = 0;
  void* workspace = nullptr;  // fp8_matmul_workspace_bytes(), 256-byte aligned; not shared with work on other streams
};

[[nodiscard]] std::size_t fp8_matmul_workspace_bytes(std::int64_t m, std::int64_t k);

// Throws CudaError where the device is not a Hopper.
void launch_fp8_matmul(const Fp8MatmulParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
