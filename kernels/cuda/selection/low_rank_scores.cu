// Low-rank scores: the steps that all shapes share (projection of the queries, joining of chunks) and the plain form of
// the others, in which a thread takes a token.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/low_rank_parts.cuh"
#include "kernels/cuda/selection/low_rank_project.cuh"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/selection/row_batches.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kJoinThreads = 128;
constexpr int kPlainThreads = kChunkTokens;

// Block: (row, slice of heads).
__global__ void __launch_bounds__(kProjectThreads)
    project_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  let_next_kernel_start();
  wait_for_kernels_before();
  const std::int64_t row = blockIdx.x;
  const int slice = static_cast<int>(blockIdx.y);
  if (scored_length(params.rows, row) == 0) return;
  const HeadSlices slices(params.heads, params.rows.geometry.kv_heads);
  const int head = slices.first_head(slice);
  float* const out = work.projected + (row * params.heads + head) * params.rows.geometry.rank;
  project_heads(params, row, slice / slices.of_group, head, slices.heads(slice),
                [&](int i, float value) { out[i] = value; });
}

// Warp: (row, head). A lane takes every 32nd chunk in ascending order; then lanes join in a fixed tree.
__global__ void __launch_bounds__(kJoinThreads)
    join_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  let_next_kernel_start();
  wait_for_kernels_before();
  const std::int64_t at = (std::int64_t{blockIdx.x} * kJoinThreads + threadIdx.x) / 32;
  if (at >= params.rows.rows * params.heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t chunks = chunks_of(scored_length(params.rows, at / params.heads));
  const float2* const partials = work.partials + at * work.chunks;
  float2 total = {-INFINITY, 0.0F};
#pragma unroll 8
  for (std::int64_t chunk = lane; chunk < chunks; chunk += 32) total = join_sums(total, partials[chunk]);
  for (int step = 16; step > 0; step /= 2) {
    const float2 other = {__shfl_down_sync(kAllLanes, total.x, step), __shfl_down_sync(kAllLanes, total.y, step)};
    total = join_sums(total, other);
  }
  if (lane != 0) return;
  const float sum = total.y * static_cast<float>(params.heads);
  work.totals[at] = {total.x, sum == 0.0F ? 0.0F : 1.0F / sum};
}

__device__ float plain_logit(const LowRankScoresDeviceParams& params, const LowRankWork& work, std::int64_t row,
                             int head, const std::byte* page, int offset) {
  const MetadataGeometry& geometry = params.rows.geometry;
  const int rank = geometry.rank;
  const int kv_head = head / (params.heads / geometry.kv_heads);
  const std::byte* const part = page + kv_head * geometry.low_rank_head_bytes();
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(part) + std::int64_t{offset} * (rank / 2);
  const __half scale = reinterpret_cast<const __half*>(part + kPageTokens * (rank / 2))[offset];
  const float* const x = work.projected + (row * params.heads + head) * rank;
  float sum = 0.0F;
  for (int i = 0; i < rank; i += 2) {
    const int pair = codes[i / 2];
    sum = fmaf(x[i], static_cast<float>((pair & 15) - 8), sum);
    sum = fmaf(x[i + 1], static_cast<float>((pair >> 4) - 8), sum);
  }
  return tidy_logit(sum * __half2float(scale));
}

// Largest (of float) or sum over the block, the same for all threads; a fixed tree.
template <bool kLargest>
__device__ float over_block(float value, float* shared) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, step);
    value = kLargest ? fmaxf(value, other) : value + other;
  }
  __syncthreads();  // the call before is done with `shared`
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int i = 1; i < kPlainThreads / 32; ++i) value = kLargest ? fmaxf(value, shared[i]) : value + shared[i];
  return value;
}

// Unit: (chunk, head).
__global__ void __launch_bounds__(kPlainThreads)
    chunks_plain_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  __shared__ RowUnits units;
  __shared__ float shared[kPlainThreads / 32];
  const ScoredPages& rows = params.rows;
  const int heads = params.heads;
  count_units(units, rows.rows, [&](std::int64_t row) { return chunks_of(scored_length(rows, row)) * heads; });
  for_my_units(units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t chunk = unit / heads;
      const int head = static_cast<int>(unit % heads);
      const std::int64_t token = chunk * kChunkTokens + threadIdx.x;
      float logit = -INFINITY;
      if (token < rows.lengths[row]) {
        const std::int64_t page = rows.pages[row * rows.page_stride + token / kPageTokens];
        logit = plain_logit(params, work, row, head, rows.pool + page * rows.geometry.page_bytes(),
                            static_cast<int>(token % kPageTokens));
      }
      const float largest = over_block<true>(logit, shared);
      const float sum = over_block<false>(exp2_fast(logit - finite_shift(largest)), shared);
      if (threadIdx.x == 0) work.partials[(row * heads + head) * work.chunks + chunk] = {largest, sum};
    }
  });
}

__global__ void __launch_bounds__(kPlainThreads)
    scores_plain_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  __shared__ RowUnits units;
  const ScoredPages& rows = params.rows;
  count_units(units, rows.rows, [&](std::int64_t row) { return chunks_of(scored_length(rows, row)); });
  for_my_units(units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t last = min(end * kChunkTokens, rows.lengths[row]);
    for (std::int64_t token = begin * kChunkTokens + threadIdx.x; token < last; token += kPlainThreads) {
      const std::int64_t page = rows.pages[row * rows.page_stride + token / kPageTokens];
      float score = 0.0F;
      for (int head = 0; head < params.heads; ++head) {
        const float2 total = work.totals[row * params.heads + head];
        const float logit = plain_logit(params, work, row, head, rows.pool + page * rows.geometry.page_bytes(),
                                        static_cast<int>(token % kPageTokens));
        score = fmaf(total.y, exp2_fast(logit - finite_shift(total.x)), score);
      }
      rows.scores[row * rows.stride + token] = score;
    }
  });
}

LowRankWork divide(void* workspace, std::int64_t rows, std::int64_t max_length, std::int32_t heads) {
  LowRankWork work;
  work.chunks = chunks_of(max_length);
  work.partials = static_cast<float2*>(workspace);
  work.totals = work.partials + rows * heads * work.chunks;
  work.projected = reinterpret_cast<float*>(work.totals + rows * heads);
  return work;
}

unsigned blocks_for(std::int64_t wanted, const LowRankScoresDeviceParams& params) {
  if (params.grid_blocks > 0) return static_cast<unsigned>(params.grid_blocks);
  const std::int64_t multiprocessors = launch_limits().multiprocessors_beside(params.spared_multiprocessors);
  const std::int64_t most = multiprocessors * low_rank_mma_blocks(params.rows.geometry.rank);
  return static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, most));
}

void launch_batch(const LowRankScoresDeviceParams& params, Stream stream) {
  if (!params.plain && low_rank_one_read_fits(params)) {
    launch_low_rank_one_read(params, stream);
    return;
  }
  const ScoredPages& rows = params.rows;
  const std::int32_t kv_heads = rows.geometry.kv_heads;
  const LowRankWork work = divide(params.workspace, rows.rows, rows.max_length, params.heads);
  const auto slices = static_cast<unsigned>(HeadSlices(params.heads, kv_heads).count());
  launch_dependent(project_kernel, dim3(static_cast<unsigned>(rows.rows), slices), kProjectThreads, 0, 0, stream,
                   params, work);
  const auto blocks = [&](std::int64_t wanted) { return blocks_for(wanted, params); };
  const bool tuned = !params.plain && low_rank_mma_fits(params);
  const std::int64_t chunks = rows.rows * work.chunks;
  if (tuned) {
    launch_low_rank_chunks_mma(params, work, blocks(ceil_div(chunks * kv_heads, 4)), stream);
  } else {
    chunks_plain_kernel<<<blocks(chunks * params.heads), kPlainThreads, 0, stream>>>(params, work);
    HOTSET_CUDA_CHECK_LAUNCH();
  }
  const auto joins = static_cast<unsigned>(ceil_div(rows.rows * params.heads, kJoinThreads / 32));
  launch_dependent(join_kernel, dim3(joins), kJoinThreads, 0, 0, stream, params, work);
  if (tuned) {
    launch_low_rank_scores_mma(params, work, blocks(ceil_div(chunks * kChunkPages, 4)), stream);
  } else {
    scores_plain_kernel<<<blocks(chunks), kPlainThreads, 0, stream>>>(params, work);
    HOTSET_CUDA_CHECK_LAUNCH();
  }
}

}  // namespace

std::size_t low_rank_workspace_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t heads,
                                     std::int32_t rank) {
  const std::int64_t batch = std::min(rows, kMostLaunchRows);
  const std::int64_t two_passes = batch * heads * (8 * chunks_of(max_length) + 8 + 4 * std::int64_t{rank});
  return static_cast<std::size_t>(std::max(two_passes, low_rank_one_read_bytes(batch, max_length, heads)));
}

void launch_low_rank_scores(const LowRankScoresDeviceParams& params, Stream stream) {
  const MetadataGeometry& geometry = params.rows.geometry;
  HS_CHECK(geometry.kind == MetadataGeometry::Kind::kLowRankKeys && geometry.rank % 2 == 0, "not low-rank keys");
  HS_CHECK(geometry.kv_heads > 0 && params.heads % geometry.kv_heads == 0, "query heads do not divide into KV heads");
  for_row_batches(params.rows, [&](const ScoredPages& rows) {
    LowRankScoresDeviceParams batch = params;
    batch.rows = rows;
    if (rows.query_rows == nullptr) batch.q += (rows.lengths - params.rows.lengths) * params.q_stride;
    launch_batch(batch, stream);
  });
}

}  // namespace hotset::kernels::cuda
