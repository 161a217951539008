#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 132 * 16;

__device__ void store(float value, float* out) { *out = __bfloat162float(__float2bfloat16_rn(value)); }
__device__ void store(float value, __nv_bfloat16* out) { *out = __float2bfloat16_rn(value); }

template <class T>
__global__ void __launch_bounds__(kThreads) random_fill_kernel(const RandomFillParams params, const RandomMaker maker) {
  const std::int64_t count = params.rows * params.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / params.cols;
    store(maker(params.numbers.number(row, i - row * params.cols)), static_cast<T*>(params.out) + i);
  }
}

}  // namespace

void launch_random_fill(const RandomFillParams& params, Stream stream) {
  const std::int64_t count = params.rows * params.cols;
  if (count <= 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  const RandomMaker maker(params.numbers);
  if (params.type == ActivationType::kF32) {
    random_fill_kernel<float><<<blocks, kThreads, 0, stream>>>(params, maker);
  } else {
    random_fill_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(params, maker);
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
