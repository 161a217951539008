// What the forms of low-rank scores share: the workspace, and exponentials joined without overflow. Logits are in units
// of log 2: the projected query carries log2(e).
#pragma once

#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kChunkPages = 4;
inline constexpr int kChunkTokens = kChunkPages * static_cast<int>(kPageTokens);
inline constexpr int kSliceHeads = 4;

// Query heads in slices of at most kSliceHeads heads of one KV head, in their order.
struct HeadSlices {
  int kv_heads;
  int group;  // query heads of a KV head
  int of_group;

  __host__ __device__ HeadSlices(int heads, int kv_heads)
      : kv_heads(kv_heads), group(heads / kv_heads), of_group((group + kSliceHeads - 1) / kSliceHeads) {}
  [[nodiscard]] __host__ __device__ int count() const { return kv_heads * of_group; }
  [[nodiscard]] __device__ int first_head(int slice) const {
    return slice / of_group * group + slice % of_group * kSliceHeads;
  }
  [[nodiscard]] __device__ int heads(int slice) const {
    return min(kSliceHeads, group - slice % of_group * kSliceHeads);
  }
};

struct LowRankWork {
  float* projected;     // [rows, heads, rank]
  float2* partials;     // [rows, heads, chunks]: largest logit of a chunk, sum of 2^(logit - it)
  float2* totals;       // [rows, heads]: largest logit, 1 / (heads * sum)
  std::int64_t chunks;  // of the longest row
};

__host__ __device__ inline std::int64_t chunks_of(std::int64_t length) { return ceil_div(length, kChunkTokens); }

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr float kLargestFloat = 3.402823466e+38F;
// Logits are cut off at +- this, beyond which float32 has no room for differences anyway.
constexpr float kMostLogit = 0x1p20F;
// NaN becomes minus infinity, infinity the largest number.
__device__ __forceinline__ float tidy_logit(float logit) { return fminf(fmaxf(logit, -INFINITY), kLargestFloat); }
__device__ __forceinline__ float finite_shift(float largest) { return largest == -INFINITY ? 0.0F : largest; }

// Sums of 2^logit as (largest logit, sum of 2^(logit - largest)); nothing is (-infinity, 0).
__device__ __forceinline__ float2 join_sums(float2 a, float2 b) {
  const float largest = fmaxf(a.x, b.x);
  const float shift = finite_shift(largest);
  return {largest, a.y * exp2_fast(a.x - shift) + b.y * exp2_fast(b.x - shift)};
}

// Blocks of the two passes on tensor cores that a multiprocessor holds.
constexpr int low_rank_mma_blocks(int rank) { return rank == 64 ? 2 : 3; }
[[nodiscard]] bool low_rank_mma_fits(const LowRankScoresDeviceParams& params);
void launch_low_rank_chunks_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream);
void launch_low_rank_scores_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream);

// Keys are read once: low_rank_one_read.cu.
[[nodiscard]] bool low_rank_one_read_fits(const LowRankScoresDeviceParams& params);
[[nodiscard]] std::int64_t low_rank_one_read_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t heads);
void launch_low_rank_one_read(const LowRankScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
