#include <cuda_bf16.h>
#include <cuda_fp8.h>

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

__global__ void __launch_bounds__(kThreads)
    random_fp8_fill_kernel(const RandomFp8FillParams params, const RandomMaker maker, float scale) {
  const std::int64_t count = params.rows * params.cols;
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = first; i < count; i += step) {
    const std::int64_t row = i / params.cols;
    params.codes[i] =
        __nv_cvt_float_to_fp8(maker.fp8(params.numbers.number(row, i - row * params.cols)), __NV_SATFINITE, __NV_E4M3);
  }
  for (std::int64_t i = first; i < params.scale_count; i += step) params.scales[i] = scale;
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
}

}  // namespace

void launch_random_fill(const RandomFillParams& params, Stream stream) {
  const std::int64_t count = params.rows * params.cols;
  if (count <= 0) return;
  const unsigned blocks = blocks_for(count);
  const RandomMaker maker(params.numbers);
  if (params.type == ActivationType::kF32) {
    random_fill_kernel<float><<<blocks, kThreads, 0, stream>>>(params, maker);
  } else {
    random_fill_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(params, maker);
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

void launch_random_fp8_fill(const RandomFp8FillParams& params, Stream stream) {
  const std::int64_t count = params.rows * params.cols;
  if (count <= 0) return;
  random_fp8_fill_kernel<<<blocks_for(count), kThreads, 0, stream>>>(params, RandomMaker(params.numbers),
                                                                     params.numbers.fp8_scale());
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
