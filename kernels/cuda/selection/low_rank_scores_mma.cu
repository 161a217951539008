// The form in two passes of low-rank scores on tensor cores (low_rank_codes.cuh). Parts stream through a private ring
// of bulk copies. A part that is there is multiplied with each slice of its KV head's query heads in turn.
#include <cuda_fp16.h>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/low_rank_codes.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStages = 4;
constexpr int kMostSlices = 32;

// A warp's ring of parts. Every part started is taken, in order.
template <int kRank>
struct PartRing {
  struct Memory {
    alignas(16) std::byte parts[kWarps][kStages][PagePart<kRank>::kBytes];
    std::uint64_t filled[kWarps][kStages];
  };
  Memory& memory;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int to = 0;
  int from = 0;
  std::uint32_t parity = 0;

  // Before the block's next barrier.
  __device__ void init() {
    if (threadIdx.x < kWarps * kStages) init_copy_barrier(&memory.filled[0][0] + threadIdx.x);
  }
  // All lanes; the ring has room.
  __device__ void start(const std::byte* part) {
    if (threadIdx.x % 32 == 0) {
      start_bulk_copy(memory.parts[warp][to], part, PagePart<kRank>::kBytes, &memory.filled[warp][to]);
    }
    to = (to + 1) % kStages;
  }
  // All lanes: the part `ahead` of the next one to take; it stays in the ring.
  __device__ void load(PagePart<kRank>& part, int ahead) {
    const int at = from + ahead;
    wait_bulk_copy(&memory.filled[warp][at % kStages], at < kStages ? parity : parity ^ 1U);
    part.load(memory.parts[warp][at % kStages]);
  }
  // All lanes, which have loaded the next part: the ring has room for one more.
  __device__ void drop() {
    __syncwarp();
    from = (from + 1) % kStages;
    if (from == 0) parity ^= 1U;
  }
};

template <int kRank>
struct WarpsShared {
  static constexpr int kOperands = Codes<kRank>::kOperands;
  RowUnits units;
  alignas(16) std::uint32_t queries[kMostSlices][32][kOperands];  // a lane's operands
  alignas(16) std::int32_t starts[kMostSlices][2 * kSliceHeads];  // of a column
  float scales[kMostSlices][kSliceHeads];
  alignas(16) float4 totals[kMostSlices][kSliceHeads];  // of the row: largest logit, 1 / (heads * sum), head's scale
  typename PartRing<kRank>::Memory ring;

  // All warps; between barriers. `projected`: of the row.
  __device__ void load_queries(const float* projected, const HeadSlices& slices) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int slice = static_cast<int>(threadIdx.x) / 32; slice < slices.count(); slice += kWarps) {
      QueryPart<kRank> query;
      query.load(projected + std::int64_t{slices.first_head(slice)} * kRank, slices.heads(slice));
#pragma unroll
      for (int i = 0; i < kOperands; ++i) queries[slice][lane][i] = query.operands[i];
      if (lane % 4 == 0) starts[slice][lane / 4] = query.start;
      if (lane % 8 == 0) scales[slice][lane / 8] = query.scale;
    }
  }
  __device__ void query_of(int slice, std::uint32_t (&query)[kOperands]) const {
#pragma unroll
    for (int i = 0; i < kOperands; ++i) query[i] = queries[slice][threadIdx.x % 32][i];
  }
  // Of the lane's head.
  __device__ int4 start_of(int slice) const {
    const int2 start = *reinterpret_cast<const int2*>(&starts[slice][threadIdx.x % 4 * 2]);
    return {start.x, start.y, start.x, start.y};
  }
};

// Adds to the largest product, at least -most and at most `most`, and the sum of 2^(scale * (product - it)) of a lane's
// tokens so far. An exponential of NaN becomes 0, one of more than `most` 1.
__device__ __forceinline__ void add_products(float2& sum, const float (&products)[kLaneTokens], float scale,
                                             float most) {
  float largest = sum.x;
#pragma unroll
  for (const float product : products) largest = fmaxf(largest, product);  // NaN is left out
  largest = fminf(largest, most);
  const float shift = largest * scale;
  float total = sum.y * exp2_fast(fmaf(sum.x, scale, -shift));
#pragma unroll
  for (const float product : products) total += __saturatef(exp2_fast(fmaf(product, scale, -shift)));
  sum = {largest, total};
}

// A warp's (chunk, KV head) units of one row from `begin` on, every kWarps-th; parts are started ahead of their use.
struct ChunkCursor {
  std::int32_t unit;
  std::int32_t end;
  const std::int32_t* row_ids;
  std::int32_t row_pages;
  std::int32_t kv_heads;
  int page = 0;
  int pages = 0;              // of the unit's chunk
  std::int32_t ids = 0;       // lane p: the chunk's page p
  std::int32_t next_ids = 0;  // of the unit after

  __device__ std::int32_t ids_of(std::int32_t at) const {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
    const std::int32_t place = at / kv_heads * kChunkPages + lane;
    return at < end && lane < kChunkPages && place < row_pages ? row_ids[place] : 0;
  }
  __device__ void enter() {
    ids = next_ids;
    next_ids = ids_of(unit + kWarps);
    page = 0;
    pages = min(row_pages - unit / kv_heads * kChunkPages, kChunkPages);
  }
};

// A warp takes a (chunk, KV head), whose parts stay in the ring until the last slice of heads has taken them.
template <int kRank>
__global__ void __launch_bounds__(kThreads, low_rank_mma_blocks(kRank))
    chunks_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpsShared<kRank>*>(memory);
  PartRing<kRank> ring{shared.ring};
  ring.init();
  let_next_kernel_start();
  wait_for_kernels_before();
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const HeadSlices slices(params.heads, kv_heads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = rows.geometry.page_bytes();
  const std::int64_t part_bytes = rows.geometry.low_rank_head_bytes();
  count_units(shared.units, rows.rows,
              [&](std::int64_t row) { return chunks_of(scored_length(rows, row)) * kv_heads; });
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t length = rows.lengths[row];
    ChunkCursor ahead{static_cast<std::int32_t>(begin) + warp, static_cast<std::int32_t>(end),
                      rows.pages + row * rows.page_stride, static_cast<std::int32_t>(pages_for_tokens(length)),
                      kv_heads};
    ahead.next_ids = ahead.ids_of(ahead.unit);
    if (ahead.unit < ahead.end) ahead.enter();
    const auto start_next = [&] {
      if (ahead.unit >= ahead.end) return;
      const std::int64_t id = __shfl_sync(kAllLanes, ahead.ids, ahead.page);
      ring.start(rows.pool + id * page_bytes + ahead.unit % kv_heads * part_bytes);
      if (++ahead.page < ahead.pages) return;
      ahead.unit += kWarps;
      if (ahead.unit < ahead.end) ahead.enter();
    };
    for (int i = 0; i < kStages; ++i) start_next();
    __syncthreads();  // the row before is done with the queries
    shared.load_queries(work.projected + row * params.heads * kRank, slices);
    __syncthreads();
    for (auto unit = static_cast<std::int32_t>(begin) + warp; unit < ahead.end; unit += kWarps) {
      const std::int32_t chunk = unit / kv_heads;
      const std::int32_t kv_head = unit % kv_heads;
      const auto left = static_cast<int>(min(length - std::int64_t{chunk} * kChunkTokens, std::int64_t{kChunkTokens}));
#pragma unroll 1
      for (int slice = kv_head * slices.of_group; slice < (kv_head + 1) * slices.of_group; ++slice) {
        const bool last = slice + 1 == (kv_head + 1) * slices.of_group;
        std::uint32_t query[Codes<kRank>::kOperands];
        shared.query_of(slice, query);
        const int4 start = shared.start_of(slice);
        const float head_scale = shared.scales[slice][lane % 4];
        const float scale = isnan(head_scale) ? 0.0F : head_scale;
        const float most = fminf(kMostLogit / scale, 1e30F);
        float2 sum = {-most, 0.0F};
        int page = 0;
#pragma unroll 1
        for (int tokens = left; tokens > 0; tokens -= static_cast<int>(kPageTokens)) {
          PagePart<kRank> part;
          ring.load(part, page);
          if (last) {
            ring.drop();
            start_next();
          } else {
            ++page;
          }
          float products[kLaneTokens];
          multiply<kRank>(part, query, start, products);
#pragma unroll
          for (int i = 0; i < kLaneTokens; ++i) products[i] *= __half2float(part.scales[i]);
          if (tokens < static_cast<int>(kPageTokens)) {
            asm volatile("" ::: "memory");  // stays a branch: few pages are not full
#pragma unroll
            for (int i = 0; i < kLaneTokens; ++i) {
              if (PagePart<kRank>::token(i) >= tokens) products[i] = NAN;
            }
          }
          add_products(sum, products, scale, most);
        }
        sum = isnan(head_scale) ? float2{-INFINITY, 0.0F} : float2{sum.x * scale, sum.y};
        for (int step = 4; step < 32; step *= 2) {
          const float2 other = {__shfl_xor_sync(kAllLanes, sum.x, step), __shfl_xor_sync(kAllLanes, sum.y, step)};
          sum = join_sums(sum, other);
        }
        if (lane < slices.heads(slice)) {
          work.partials[(row * params.heads + slices.first_head(slice) + lane) * work.chunks + chunk] = sum;
        }
      }
    }
  });
}

// A warp takes a page of all KV heads.
template <int kRank>
__global__ void __launch_bounds__(kThreads, low_rank_mma_blocks(kRank))
    scores_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpsShared<kRank>*>(memory);
  PartRing<kRank> ring{shared.ring};
  ring.init();
  let_next_kernel_start();
  wait_for_kernels_before();
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const HeadSlices slices(params.heads, kv_heads);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = rows.geometry.page_bytes();
  const std::int64_t part_bytes = rows.geometry.low_rank_head_bytes();
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    // The warp's pages, every kWarps-th, whose parts are started ahead of their use.
    const auto end_page = static_cast<std::int32_t>(end);
    const std::int32_t* const ids = rows.pages + row * rows.page_stride;
    std::int32_t ahead = static_cast<std::int32_t>(begin) + warp;
    int ahead_head = 0;
    const std::byte* part_at = ahead < end_page ? rows.pool + ids[ahead] * page_bytes : nullptr;
    std::int32_t next_id = ahead + kWarps < end_page ? ids[ahead + kWarps] : 0;
    const auto start_next = [&] {
      if (ahead >= end_page) return;
      ring.start(part_at);
      part_at += part_bytes;
      if (++ahead_head < kv_heads) return;
      ahead_head = 0;
      ahead += kWarps;
      part_at = rows.pool + next_id * page_bytes;
      next_id = ahead + kWarps < end_page ? ids[ahead + kWarps] : 0;
    };
    for (int i = 0; i < kStages; ++i) start_next();
    __syncthreads();  // the row before is done with what is shared
    shared.load_queries(work.projected + row * params.heads * kRank, slices);
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < slices.count() * kSliceHeads; i += kThreads) {
      float2 total = {0.0F, 0.0F};
      const int slice = i / kSliceHeads;
      const int head = i % kSliceHeads;
      if (head < slices.heads(slice)) total = work.totals[row * params.heads + slices.first_head(slice) + head];
      shared.totals[slice][head] = {finite_shift(total.x), total.y, shared.scales[slice][head], 0.0F};
    }
    __syncthreads();
    const std::int64_t length = rows.lengths[row];
    for (std::int32_t page = static_cast<std::int32_t>(begin) + warp; page < end_page; page += kWarps) {
      float scores[kLaneTokens] = {};
#pragma unroll 1
      for (int next = 0; next < slices.count(); next += slices.of_group) {
        PagePart<kRank> part;
        ring.load(part, 0);
        ring.drop();
        start_next();
#pragma unroll 1
        for (int slice = next; slice < next + slices.of_group; ++slice) {
          std::uint32_t query[Codes<kRank>::kOperands];
          shared.query_of(slice, query);
          const int4 start = shared.start_of(slice);
          const float4 total = shared.totals[slice][lane % 4];
          float products[kLaneTokens];
          multiply<kRank>(part, query, start, products);
#pragma unroll
          for (int i = 0; i < kLaneTokens; ++i) {
            // NaN becomes 0; more than the largest logit 1.
            const float power =
                __saturatef(exp2_fast(fmaf(products[i] * __half2float(part.scales[i]), total.z, -total.x)));
            scores[i] = fmaf(total.y, power, scores[i]);
          }
        }
      }
      // Over the four lanes of a token; each stores a quarter of them.
#pragma unroll
      for (float& score : scores) {
        score += __shfl_xor_sync(kAllLanes, score, 1);
        score += __shfl_xor_sync(kAllLanes, score, 2);
      }
      const std::int64_t first = page * std::int64_t{kPageTokens};
      float* const out = rows.scores + row * rows.stride + first;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        const int token = PagePart<kRank>::token(i);
        if (lane % 4 == i % 4 && first + token < length) out[token] = scores[i];
      }
    }
  });
}

template <int kRank>
void launch(void (*kernel)(LowRankScoresDeviceParams, LowRankWork), const LowRankScoresDeviceParams& params,
            const LowRankWork& work, unsigned blocks, Stream stream) {
  static const bool ready = [] {
    for (const auto one : {chunks_kernel<kRank>, scores_kernel<kRank>}) {
      HOTSET_CUDA_CHECK(cudaFuncSetAttribute(one, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(sizeof(WarpsShared<kRank>))));
    }
    return true;
  }();
  static_cast<void>(ready);
  launch_dependent(kernel, dim3(blocks), kThreads, sizeof(WarpsShared<kRank>), 0, stream, params, work);
}

}  // namespace

bool low_rank_mma_fits(const LowRankScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  return launch_limits().hopper && (geometry.rank == 16 || geometry.rank == 32 || geometry.rank == 64) &&
         HeadSlices(params.heads, geometry.kv_heads).count() <= kMostSlices;
}

void launch_low_rank_chunks_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream) {
  switch (params.rows.geometry.rank) {
    case 16: launch<16>(chunks_kernel<16>, params, work, blocks, stream); break;
    case 32: launch<32>(chunks_kernel<32>, params, work, blocks, stream); break;
    default: launch<64>(chunks_kernel<64>, params, work, blocks, stream); break;
  }
}

void launch_low_rank_scores_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream) {
  switch (params.rows.geometry.rank) {
    case 16: launch<16>(scores_kernel<16>, params, work, blocks, stream); break;
    case 32: launch<32>(scores_kernel<32>, params, work, blocks, stream); break;
    default: launch<64>(scores_kernel<64>, params, work, blocks, stream); break;
  }
}

}  // namespace hotset::kernels::cuda
