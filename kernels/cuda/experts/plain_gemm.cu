#include <cuda_bf16.h>

#include "core/check.h"
#include "kernels/cuda/experts/plain_gemm.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 64;  // of a tile
constexpr int kTokens = 16;
constexpr int kDepth = 16;
constexpr int kPerThread = kChannels * kTokens / kThreads;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void store(const GroupedGemm& gemm, std::int64_t at, float sum) {
  if (gemm.out_type == ActivationType::kF32) {
    float* const out = static_cast<float*>(gemm.out) + at;
    *out = gemm.accumulate ? *out + sum : sum;
  } else {
    __nv_bfloat16* const out = static_cast<__nv_bfloat16*>(gemm.out) + at;
    *out = __float2bfloat16_rn(gemm.accumulate ? __bfloat162float(*out) + sum : sum);
  }
}

// blockIdx: (channels, group); a block takes all rows of its group. Thread t: token t % 16, every 16th channel from
// t / 16 on.
template <class Element, bool kGated>
__global__ void __launch_bounds__(kThreads) plain_kernel(const GroupedGemm gemm) {
  constexpr int kParts = kGated ? 2 : 1;
  __shared__ float tokens[kTokens][kDepth + 1];
  __shared__ float weights[kParts][kChannels][kDepth + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.y);
  const std::int64_t begin = gemm.begins == nullptr ? 0 : gemm.begins[group];
  const std::int64_t end = gemm.begins == nullptr ? gemm.row_bound : gemm.ends[group];
  const std::int64_t first_channel = std::int64_t{blockIdx.x} * kChannels;
  const auto* const rows = static_cast<const Element*>(gemm.rows);
  const auto* const weight = static_cast<const Element*>(gemm.weight) + group * kParts * gemm.n * gemm.k;
  for (std::int64_t first = begin; first < end; first += kTokens) {
    float sums[kParts][kPerThread] = {};
    for (std::int64_t k = 0; k < gemm.k; k += kDepth) {
      __syncthreads();
      const int deep = thread % kDepth;
      const std::int64_t row = first + thread / kDepth;
      tokens[thread / kDepth][deep] = row < end ? widen(rows[row * gemm.k + k + deep]) : 0.0F;
      for (int part = 0; part < kParts; ++part)
        for (int channel = thread / kDepth; channel < kChannels; channel += kThreads / kDepth) {
          const std::int64_t at = first_channel + channel;
          weights[part][channel][deep] = at < gemm.n ? widen(weight[(part * gemm.n + at) * gemm.k + k + deep]) : 0.0F;
        }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kDepth; ++i)
        for (int part = 0; part < kParts; ++part)
          for (int j = 0; j < kPerThread; ++j) {
            sums[part][j] =
                fmaf(tokens[thread % kTokens][i], weights[part][thread / kTokens + 16 * j][i], sums[part][j]);
          }
    }
    const std::int64_t row = first + thread % kTokens;
    for (int j = 0; j < kPerThread && row < end; ++j) {
      const std::int64_t channel = first_channel + thread / kTokens + 16 * j;
      if (channel >= gemm.n) continue;
      const float first_sum = sums[0][j];
      const float out =
          kGated ? __fmul_rn(__fdiv_rn(first_sum, __fadd_rn(1.0F, expf(-first_sum))), sums[kParts - 1][j]) : first_sum;
      store(gemm, row * gemm.out_stride + channel, out);
    }
  }
}

}  // namespace

void launch_grouped_plain(const GroupedGemm& gemm, ActivationType type, bool gated, Stream stream) {
  if (gemm.row_bound <= 0) return;
  HS_CHECK(gemm.k % kDepth == 0, "widths are multiples of 16");
  const dim3 grid(static_cast<unsigned>((gemm.n + kChannels - 1) / kChannels), static_cast<unsigned>(gemm.groups));
  if (type == ActivationType::kF32) {
    gated ? plain_kernel<float, true><<<grid, kThreads, 0, stream>>>(gemm)
          : plain_kernel<float, false><<<grid, kThreads, 0, stream>>>(gemm);
  } else {
    gated ? plain_kernel<__nv_bfloat16, true><<<grid, kThreads, 0, stream>>>(gemm)
          : plain_kernel<__nv_bfloat16, false><<<grid, kThreads, 0, stream>>>(gemm);
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
