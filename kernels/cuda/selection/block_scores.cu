// Three launches: every head's score of every candidate block, largest score and sum of each head (softmax only), and
// the heads joined.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/block_scores.h"
#include "kernels/cuda/selection/low_rank_parts.cuh"
#include "kernels/cuda/selection/row_batches.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504088896341F;

struct BlockWork {
  float* logits;        // [rows, heads, blocks]
  float2* totals;       // [rows, heads]: largest score, 1 / (heads * sum)
  std::int64_t blocks;  // of the longest row
};

__device__ float bound_at(const std::byte* bounds, bool wide, std::int64_t at) {
  if (wide) return reinterpret_cast<const float*>(bounds)[at];
  return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(bounds)[at]} << 16);
}

// The larger; NaN if either is.
__device__ __forceinline__ float larger(float a, float b) { return a != a || a > b ? a : b; }

// Nothing of a row that is not scored: its candidates may lie beyond work.blocks.
__device__ __forceinline__ std::int64_t last_scored(const BlockScoresDeviceParams& params, std::int64_t row) {
  return params.rows.lengths[row] == 0 ? 0 : params.last[row];
}

// Warp: (block, row = blockIdx.y).
__global__ void __launch_bounds__(kThreads) logits_kernel(const BlockScoresDeviceParams params, const BlockWork work) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t block = params.first[row] + (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (block >= last_scored(params, row)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const MetadataGeometry& geometry = params.rows.geometry;
  const int dim = geometry.dim;
  const int group = params.heads / geometry.kv_heads;
  const bool wide = geometry.bounds_bytes() == 4;
  const std::int64_t page_blocks = kPageTokens / geometry.block_tokens;
  const std::int64_t page = params.rows.pages[row * params.rows.page_stride + block / page_blocks];
  const std::byte* const bounds = params.rows.pool + page * geometry.page_bytes();
  const float* const q = params.q + query_row(params.rows, row) * params.q_stride;
  for (int head = 0; head < params.heads; ++head) {
    const std::int64_t minimum = (block % page_blocks * geometry.kv_heads + head / group) * 2 * dim;
    float sum = 0.0F;
    for (int c = lane; c < dim; c += 32) {
      const float x = q[std::int64_t{head} * dim + c];
      sum += larger(x * bound_at(bounds, wide, minimum + c), x * bound_at(bounds, wide, minimum + dim + c));
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane == 0) work.logits[(row * params.heads + head) * work.blocks + block] = sum * params.scale;
  }
}

// Block: (head = blockIdx.x, row = blockIdx.y). Threads take every 256th candidate; then a fixed tree.
__global__ void __launch_bounds__(kThreads) totals_kernel(const BlockScoresDeviceParams params, const BlockWork work) {
  __shared__ float2 shared[kThreads / 32];
  const std::int64_t row = blockIdx.y;
  const std::int64_t at = row * params.heads + blockIdx.x;
  const float* const logits = work.logits + at * work.blocks;
  const std::int64_t last = last_scored(params, row);
  float2 total = {-INFINITY, 0.0F};
  for (std::int64_t block = params.first[row] + threadIdx.x; block < last; block += kThreads) {
    total = join_sums(total, {tidy_logit(tidy_logit(logits[block]) * kLog2E), 1.0F});
  }
  for (int step = 16; step > 0; step /= 2) {
    const float2 other = {__shfl_down_sync(kAllLanes, total.x, step), __shfl_down_sync(kAllLanes, total.y, step)};
    total = join_sums(total, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) total = join_sums(total, shared[i]);
  const float sum = total.y * static_cast<float>(params.heads);
  work.totals[at] = {total.x, sum == 0.0F ? 0.0F : 1.0F / sum};
}

// Thread: a candidate of the row blockIdx.y. Heads ascend.
__global__ void __launch_bounds__(kThreads) combine_kernel(const BlockScoresDeviceParams params, const BlockWork work) {
  const std::int64_t row = blockIdx.y;
  const std::int64_t block = params.first[row] + std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (block >= last_scored(params, row)) return;
  const float share = 1.0F / static_cast<float>(params.heads);
  float score = params.combine == HeadCombine::kMax ? -INFINITY : 0.0F;
  for (int head = 0; head < params.heads; ++head) {
    const std::int64_t at = row * params.heads + head;
    const float logit = work.logits[at * work.blocks + block];
    if (params.combine == HeadCombine::kMax) {
      score = fmaxf(score, logit);  // NaN is left out
    } else if (params.combine == HeadCombine::kMean) {
      score = fmaf(share, logit, score);
    } else {
      const float2 total = work.totals[at];
      const float scaled = tidy_logit(tidy_logit(logit) * kLog2E);
      score = fmaf(total.y, exp2_fast(scaled - finite_shift(total.x)), score);
    }
  }
  params.rows.scores[row * params.rows.stride + block] = score;
}

void launch_batch(const BlockScoresDeviceParams& params, Stream stream) {
  BlockWork work;
  const ScoredPages& rows = params.rows;
  work.blocks = ceil_div(rows.max_length, rows.geometry.block_tokens);
  if (work.blocks == 0) return;
  work.totals = static_cast<float2*>(params.workspace);
  work.logits = reinterpret_cast<float*>(work.totals + rows.rows * params.heads);
  const auto batch = static_cast<unsigned>(rows.rows);
  logits_kernel<<<dim3(static_cast<unsigned>(ceil_div(work.blocks, kThreads / 32)), batch), kThreads, 0, stream>>>(
      params, work);
  HOTSET_CUDA_CHECK_LAUNCH();
  if (params.combine == HeadCombine::kSoftmax) {
    totals_kernel<<<dim3(static_cast<unsigned>(params.heads), batch), kThreads, 0, stream>>>(params, work);
    HOTSET_CUDA_CHECK_LAUNCH();
  }
  combine_kernel<<<dim3(static_cast<unsigned>(ceil_div(work.blocks, kThreads)), batch), kThreads, 0, stream>>>(params,
                                                                                                               work);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace

std::size_t block_workspace_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t block_tokens,
                                  std::int32_t heads) {
  const std::int64_t row_heads = std::min(rows, kMostLaunchRows) * heads;
  return static_cast<std::size_t>(row_heads * (8 + 4 * ceil_div(max_length, block_tokens)));
}

void launch_block_scores(const BlockScoresDeviceParams& params, Stream stream) {
  const MetadataGeometry& geometry = params.rows.geometry;
  HS_CHECK(geometry.kind == MetadataGeometry::Kind::kBlockBounds, "not block bounds");
  HS_CHECK(geometry.kv_heads > 0 && params.heads % geometry.kv_heads == 0, "query heads do not divide into KV heads");
  for_row_batches(params.rows, [&](const ScoredPages& rows) {
    BlockScoresDeviceParams batch = params;
    const std::int64_t moved = rows.lengths - params.rows.lengths;
    batch.rows = rows;
    batch.first += moved;
    batch.last += moved;
    if (rows.query_rows == nullptr) batch.q += moved * params.q_stride;
    launch_batch(batch, stream);
  });
}

}  // namespace hotset::kernels::cuda
