#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/replaced_selection.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) churn_kernel(const ChurnParams params) {
  const ReplacedRows& rows = params.rows;
  const std::int64_t row = blockIdx.x;
  const std::int64_t first = rows.first[row];
  const std::int64_t competing = rows.last[row] - first;
  const std::int64_t chosen = rows.counts[row] - (rows.blocks[row] - competing);  // without the forced ones
  if (chosen <= 0 || competing < chosen) return;
  const std::uint64_t seed = churn_seed(rows.layer, rows.sequences[row * rows.sequence_stride]);
  const std::int64_t length = rows.lengths[row];
  std::int32_t* const out = rows.selections + row * rows.stride + first;
  for (std::int64_t i = threadIdx.x; i < chosen; i += kThreads)
    out[i] = static_cast<std::int32_t>(churned_block(seed, params.share, length, i, first, competing / chosen));
}

// Each thread places a run of entries, behind those that the threads before it keep.
__global__ void __launch_bounds__(kThreads) recorded_kernel(const RecordedParams params) {
  __shared__ std::int32_t kept_by[kThreads];
  const ReplacedRows& rows = params.rows;
  const RecordedTables& tables = params.tables;
  const std::int64_t row = blockIdx.x;
  const std::int64_t now = rows.blocks[row];
  const std::int32_t most = rows.counts[row];
  if (most <= 0 || most >= now || rows.block_tokens[row] != tables.block_tokens) return;
  const auto number = static_cast<std::uint32_t>(rows.sequences[row * rows.sequence_stride]);
  const RecordedSequence sequence = tables.sequences[number % static_cast<std::uint32_t>(tables.sequence_count)];
  const std::int64_t step = rows.lengths[row] - sequence.first_length;
  const RecordedRow recorded = tables.rows[sequence.first_row + std::int64_t{params.recorded_layer} * sequence.rows +
                                           recorded_row(step, sequence.rows)];
  const std::int32_t* const source = tables.blocks + recorded.at;
  const std::int64_t taken = min(recorded.count, most);
  const std::int64_t near = near_blocks(recorded.blocks, now, tables.block_tokens);
  const auto place = [&](std::int64_t i) {
    return static_cast<std::int32_t>(spread_block(source[i * recorded.count / taken], recorded.blocks, now, near));
  };
  const auto kept = [&](std::int64_t i) { return i == 0 || place(i) != place(i - 1); };
  const std::int64_t run = (taken + kThreads - 1) / kThreads;
  const std::int64_t begin = min(taken, threadIdx.x * run);
  const std::int64_t end = min(taken, begin + run);
  std::int32_t own = 0;
  for (std::int64_t i = begin; i < end; ++i) own += kept(i);
  kept_by[threadIdx.x] = own;
  __syncthreads();
  std::int32_t* out = rows.selections + row * rows.stride;
  for (unsigned thread = 0; thread < threadIdx.x; ++thread) out += kept_by[thread];
  for (std::int64_t i = begin; i < end; ++i)
    if (kept(i)) *out++ = place(i);
  if (threadIdx.x == kThreads - 1)
    rows.counts[row] = static_cast<std::int32_t>(out - (rows.selections + row * rows.stride));
}

}  // namespace

void launch_churn(const ChurnParams& params, Stream stream) {
  if (params.rows.rows <= 0) return;
  churn_kernel<<<static_cast<unsigned>(params.rows.rows), kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

void launch_recorded(const RecordedParams& params, Stream stream) {
  if (params.rows.rows <= 0) return;
  recorded_kernel<<<static_cast<unsigned>(params.rows.rows), kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
