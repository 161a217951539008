// Index scores in the plain form, and the choice between the forms. A thread takes a token; eight heads at a time share
// a key's decoding. The sums run in the CPU's order: channels ascend in a fused chain, then heads.
#include <algorithm>

#include "core/check.h"
#include "core/fp8.h"
#include "core/half.h"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/index_scores.h"
#include "kernels/cuda/selection/index_scores_bf16.h"
#include "kernels/cuda/selection/index_scores_fp8.h"
#include "kernels/cuda/selection/row_batches.h"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeadBlock = 8;
constexpr int kBlocksPerMultiprocessor = 8;

template <KvDType kType>
__device__ float key_channel(const std::byte* key, const std::byte* scales, int channel) {
  if constexpr (kType == KvDType::kF32) return reinterpret_cast<const float*>(key)[channel];
  if constexpr (kType == KvDType::kBF16) {
    return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(key)[channel]} << 16);
  }
  const float scale = reinterpret_cast<const float*>(scales)[channel / kFp8ScaleChannels];
  return e4m3_to_f32(reinterpret_cast<const std::uint8_t*>(key)[channel]) * scale;
}

template <KvDType kType>
__device__ float token_score(const IndexScoresDeviceParams& params, const float* q, const float* weights,
                             const std::byte* page, int offset) {
  const int dim = params.rows.geometry.dim;
  const std::byte* const key = page + std::int64_t{offset} * dim * kv_dtype_bytes(kType);
  const std::byte* const scales = page + kPageTokens * dim + offset * 4 * fp8_scales(dim);
  float score = 0.0F;
  for (int head = 0; head < params.heads; head += kHeadBlock) {
    const int count = min(kHeadBlock, params.heads - head);
    float sums[kHeadBlock] = {};
    for (int channel = 0; channel < dim; ++channel) {
      const float value = key_channel<kType>(key, scales, channel);
#pragma unroll
      for (int i = 0; i < kHeadBlock; ++i) {
        if (i < count) sums[i] = fmaf(q[std::int64_t{head + i} * dim + channel], value, sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kHeadBlock; ++i) {
      if (i < count) score = fmaf(weights[head + i], sums[i] < 0.0F ? 0.0F : sums[i], score);  // NaN stays
    }
  }
  return score;
}

template <KvDType kType>
__global__ void __launch_bounds__(kThreads) plain_kernel(const IndexScoresDeviceParams params) {
  __shared__ RowUnits units;
  const ScoredPages& rows = params.rows;
  count_units(units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  for_my_units(units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t query = query_row(rows, row);
    const float* const q = params.q + query * params.q_stride;
    const float* const weights = params.weights + query * params.heads;
    const std::int64_t last = min(end * kPageTokens, rows.lengths[row]);
    for (std::int64_t token = begin * kPageTokens + threadIdx.x; token < last; token += kThreads) {
      const std::int64_t page = rows.pages[row * rows.page_stride + token / kPageTokens];
      rows.scores[row * rows.stride + token] = token_score<kType>(
          params, q, weights, rows.pool + page * rows.geometry.page_bytes(), static_cast<int>(token % kPageTokens));
    }
  });
}

}  // namespace

void launch_index_scores(const IndexScoresDeviceParams& params, Stream stream) {
  HS_CHECK(params.rows.geometry.kind == MetadataGeometry::Kind::kIndexKeys && params.heads > 0, "not index keys");
  const LaunchLimits& limits = launch_limits();
  for_row_batches(params.rows, [&](const ScoredPages& rows) {
    IndexScoresDeviceParams batch = params;
    batch.rows = rows;
    if (rows.query_rows == nullptr) {
      const std::int64_t first = (rows.lengths - params.rows.lengths);
      batch.q += first * params.q_stride;
      batch.weights += first * params.heads;
    }
    if (!params.plain && limits.hopper && index_scores_fp8_fits(batch)) {
      launch_index_scores_fp8(batch, stream);
      return;
    }
    if (!params.plain && limits.hopper && index_scores_bf16_fits(batch)) {
      launch_index_scores_bf16(batch, stream);
      return;
    }
    const std::int64_t most = ceil_div(rows.rows * pages_for_tokens(rows.max_length), 2);  // two pages feed a block
    const std::int64_t multiprocessors = limits.multiprocessors_beside(params.spared_multiprocessors);
    const std::int64_t chosen = std::min<std::int64_t>(most, multiprocessors * kBlocksPerMultiprocessor);
    const auto blocks =
        static_cast<unsigned>(params.grid_blocks > 0 ? params.grid_blocks : std::max<std::int64_t>(chosen, 1));
    switch (rows.geometry.dtype) {
      case KvDType::kF32: plain_kernel<KvDType::kF32><<<blocks, kThreads, 0, stream>>>(batch); break;
      case KvDType::kBF16: plain_kernel<KvDType::kBF16><<<blocks, kThreads, 0, stream>>>(batch); break;
      case KvDType::kFp8: plain_kernel<KvDType::kFp8><<<blocks, kThreads, 0, stream>>>(batch); break;
    }
    HOTSET_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace hotset::kernels::cuda
