// The projection of a row's queries on the basis of low-rank keys.
#pragma once

#include <cstdint>

#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda {

constexpr int kProjectThreads = 512;
constexpr int kProjectWarps = kProjectThreads / 32;
constexpr int kProjectOutputs = 128;
constexpr float kLog2E = 1.44269504088896341F;

// All threads of a block of kProjectThreads. A warp sums its share of the channels, ascending; then the warps' sums are
// added in order. write(i, x): x is output i of [head][channel of the basis], in units of log 2. `heads` heads from
// `first_head` on, all of one KV head. A barrier follows the writes.
template <class Write>
__device__ void project_heads(const LowRankScoresDeviceParams& params, std::int64_t row, int kv_head, int first_head,
                              int heads, const Write& write) {
  __shared__ float sums[kProjectWarps][kProjectOutputs];
  const MetadataGeometry& geometry = params.rows.geometry;
  const int rank = geometry.rank;
  const int dim = geometry.dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int outputs = heads * rank;
  const float* const q = params.q + query_row(params.rows, row) * params.q_stride + std::int64_t{first_head} * dim;
  const float* const basis = params.basis + std::int64_t{kv_head} * dim * rank;
  const int begin = dim * warp / kProjectWarps;
  const int end = dim * (warp + 1) / kProjectWarps;
  for (int base = 0; base < outputs; base += kProjectOutputs) {
#pragma unroll
    for (int j = 0; j < kProjectOutputs / 32; ++j) {
      const int i = base + 32 * j + lane;
      float sum = 0.0F;
      if (i < outputs) {
        const float* const x = q + std::int64_t{i / rank} * dim;
        const float* const column = basis + i % rank;
#pragma unroll 8
        for (int c = begin; c < end; ++c) sum = fmaf(x[c], column[std::int64_t{c} * rank], sum);
      }
      sums[warp][32 * j + lane] = sum;
    }
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    if (i < kProjectOutputs && base + i < outputs) {
      float sum = 0.0F;
#pragma unroll
      for (int part = 0; part < kProjectWarps; ++part) sum += sums[part][i];
      write(base + i, sum * (params.scale * kLog2E));
    }
    __syncthreads();
  }
}

}  // namespace hotset::kernels::cuda
