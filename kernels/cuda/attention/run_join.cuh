// The joining of a list's runs: every block leaves its run's partials in the workspace, and the last of them adds them
// up.
//
// First the maxima and sums of the runs, in an order that follows from their number; then the values, in ascending
// order. What a run counts for is known by then, so that no load waits for another. Partials are read past L1, which
// may hold what was there before.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/row_view.cuh"

namespace hotset::kernels::cuda {

// What all runs of a head have in common: their largest maximum, or 0 without any, and the sum relative to it.
struct RunTotal {
  float shift, sum;
};

// By one warp. A lane takes every 32nd run, ascending; the lanes join in a fixed tree. `tail`: behind the values of the
// first run; a run's partial has `stride` floats.
__device__ inline RunTotal total_of_runs(const float* tail, std::int64_t stride, std::int64_t runs, int lane) {
  float max = -INFINITY;
#pragma unroll 4
  for (std::int64_t run = lane; run < runs; run += 32) max = fmaxf(max, __ldcg(tail + run * stride));
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, step));
  RunTotal total{finite_or_zero(max), 0.0F};
#pragma unroll 4
  for (std::int64_t run = lane; run < runs; run += 32) {
    const float2 part = __ldcg(reinterpret_cast<const float2*>(tail + run * stride));
    total.sum = fmaf(exp2f(part.x - total.shift), part.y, total.sum);
  }
  for (int step = 16; step > 0; step /= 2) total.sum += __shfl_xor_sync(0xffffffffU, total.sum, step);
  return total;
}

// By all threads of the block that finished last. A thread takes four channels of a head. `totals`: in shared memory,
// of the block's heads.
template <int kThreads>
__device__ void join_runs(const AttentionArgs& args, std::int64_t row, int first_head, int heads, std::int64_t runs,
                          RunTotal* totals) {
  constexpr int kAhead = 8;
  const int thread = static_cast<int>(threadIdx.x);
  const int dim = args.view.value_dim;
  const std::int64_t stride = dim + kPartialTail;
  for (int head = thread / 32; head < heads; head += kThreads / 32) {
    const RunTotal total = total_of_runs(run_partial(args, row, first_head + head, 0) + dim, stride, runs, thread % 32);
    if (thread % 32 == 0) totals[head] = total;
  }
  __syncthreads();
  const int quads = dim / 4;
#pragma unroll 1
  for (int i = thread; i < heads * quads; i += kThreads) {
    const int head = i / quads;
    const int channel = i % quads * 4;
    const RunTotal total = totals[head];
    float4 acc{0.0F, 0.0F, 0.0F, 0.0F};
    const float* partial = run_partial(args, row, first_head + head, 0);
#pragma unroll kAhead
    for (std::int64_t run = 0; run < runs; ++run, partial += stride) {
      const float4 value = __ldcg(reinterpret_cast<const float4*>(partial + channel));
      const float take = exp2f(__ldcg(partial + dim) - total.shift);
      acc.x = fmaf(take, value.x, acc.x);
      acc.y = fmaf(take, value.y, acc.y);
      acc.z = fmaf(take, value.z, acc.z);
      acc.w = fmaf(take, value.w, acc.w);
    }
    const float factor = total.sum == 0.0F ? 0.0F : 1.0F / total.sum;
    const std::int64_t to = row * args.out_stride + std::int64_t{first_head + head} * dim + channel;
    store_activation(args.out, args.out_bf16, to, acc.x * factor);
    store_activation(args.out, args.out_bf16, to + 1, acc.y * factor);
    store_activation(args.out, args.out_bf16, to + 2, acc.z * factor);
    store_activation(args.out, args.out_bf16, to + 3, acc.w * factor);
  }
}

// By all threads of a block whose partials are written. Whoever is the last of the `runs` blocks joins them. Leaves the
// counter of arrivals as it was before the first.
template <int kThreads>
__device__ void join_by_last(const AttentionArgs& args, std::int64_t row, int first_head, int heads, std::int64_t runs,
                             RunTotal* totals) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    std::int32_t* const arrivals = args.arrivals + row * args.heads + first_head;
    last = atomicAdd(arrivals, 1) == static_cast<std::int32_t>(runs) - 1;
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  join_runs<kThreads>(args, row, first_head, heads, runs, totals);
}

// Columns of blocks that share a list's runs, for `lists` lists: a block for every run of lists of up to 2,048 entries.
// Blocks beyond a list's end cost time when max_count is far above the counts, so longer lists get columns only until
// the device is well filled.
inline std::int64_t run_columns(const AttentionArgs& args, std::int64_t lists) {
  constexpr std::int64_t kFillingBlocks = 4096;
  return std::min<std::int64_t>(args.max_runs, std::max<std::int64_t>(8, kFillingBlocks / lists));
}

}  // namespace hotset::kernels::cuda
