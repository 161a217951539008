// Low-rank scores on tensor cores: rows of a product are tokens, columns are a group's query heads: column 2 h the
// rounded projected query of head h, column 2 h + 1 what the rounding left, so that one product gives both and their
// sum is exact to about 2^-16. A lane's 4-bit codes of a token are one load; they become bfloat16 by bit operations and
// one exact subtraction (128 + code + 8 - 136).
//
// A warp's step is one KV head's part of a page: four products of 16 tokens, after which lane l holds the logits of
// head l % 4 and tokens l / 4 + 8 j. Parts stream through a private ring of bulk copies.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/dependent_launch.cuh"
#include "kernels/cuda/selection/low_rank_parts.cuh"
#include "kernels/cuda/selection/mma.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTiles = static_cast<int>(kPageTokens) / 16;
constexpr int kLaneTokens = 2 * kTiles;
constexpr int kStages = 4;
constexpr int kBlocks = 3;  // of a multiprocessor
constexpr int kMostGroup = 4;
constexpr int kMostKvHeads = 32;
constexpr unsigned kAll = 0xffffffffU;

// A lane's codes of one token: rank / 4 of them.
template <int kRank>
struct Codes {
  static constexpr int kWords = kRank == 64 ? 2 : 1;
  static constexpr int kPairs = kRank / 8;
  std::uint32_t words[kWords];

  __device__ void load(const std::byte* part, int token) {
    const int lane_pair = static_cast<int>(threadIdx.x) % 4;
    const std::byte* const from = part + token * (kRank / 2) + lane_pair * (kRank / 8);
    if constexpr (kRank == 16) {
      const std::uint32_t half = *reinterpret_cast<const std::uint16_t*>(from);
      words[0] = half | half << 8;
    } else if constexpr (kRank == 32) {
      words[0] = *reinterpret_cast<const std::uint32_t*>(from);
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      words[0] = both.x;
      words[1] = both.y;
    }
  }
  // Channels channel(pair) and channel(pair) + kApart as two bfloat16 numbers.
  __device__ std::uint32_t pair(int pair) const {
    std::uint32_t biased;  // (word & mask) | bias as one instruction, which the compiler makes two
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;"
        : "=r"(biased)
        : "r"(words[pair / 4] >> (4 * (pair % 4))), "r"(0x000f000fU), "r"(0x43004300U));
    __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&biased);
    value = __hsub2(value, __float2bfloat162_rn(136.0F));
    return *reinterpret_cast<const std::uint32_t*>(&value);
  }
  static constexpr int kApart = kRank == 16 ? 2 : 4;
  __device__ static int channel(int lane_pair, int pair) { return lane_pair * (kRank / 4) + pair / 4 * 8 + pair % 4; }
};

// One KV head's codes and scales of a page, as a lane holds them: of tokens lane / 4 + 8 j.
template <int kRank>
struct PagePart {
  static constexpr int kBytes = static_cast<int>(kPageTokens) * (kRank / 2 + 2);
  Codes<kRank> codes[kLaneTokens];
  __half scales[kLaneTokens];

  __device__ void load(const std::byte* part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto* const all = reinterpret_cast<const __half*>(part + kPageTokens * (kRank / 2));
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      codes[i].load(part, lane / 4 + 8 * i);
      scales[i] = all[lane / 4 + 8 * i];
    }
  }
};

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
  // All lanes; afterwards the ring has room for one more.
  __device__ void take(PagePart<kRank>& part) {
    wait_bulk_copy(&memory.filled[warp][from], parity);
    part.load(memory.parts[warp][from]);
    __syncwarp();
    from = (from + 1) % kStages;
    if (from == 0) parity ^= 1U;
  }
};

// A lane's part of the queries of one KV head's group. x [group, rank]
template <int kRank>
struct QueryPart {
  std::uint32_t pairs[Codes<kRank>::kPairs];

  __device__ void load(const float* x, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = lane / 4;
    const int head = column / 2;
#pragma unroll
    for (int pair = 0; pair < Codes<kRank>::kPairs; ++pair) {
      float values[2] = {0.0F, 0.0F};
      if (head < group) {
        const int channel = Codes<kRank>::channel(lane % 4, pair);
        values[0] = x[head * kRank + channel];
        values[1] = x[head * kRank + channel + Codes<kRank>::kApart];
      }
      __nv_bfloat162 rounded = __floats2bfloat162_rn(values[0], values[1]);
      if (column % 2 == 1) {
        const float low[2] = {__low2float(rounded), __high2float(rounded)};
        rounded = __floats2bfloat162_rn(isfinite(low[0]) ? values[0] - low[0] : 0.0F,
                                        isfinite(low[1]) ? values[1] - low[1] : 0.0F);
      }
      pairs[pair] = *reinterpret_cast<const std::uint32_t*>(&rounded);
    }
  }
};

// The logit of head lane % 4 of the group and token lane / 4 + 8 j of the page is products[j] * part.scales[j].
template <int kRank>
__device__ __forceinline__ void multiply(const PagePart<kRank>& page, const std::uint32_t (&query)[kRank / 8],
                                         float (&products)[kLaneTokens]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float product[4] = {};
#pragma unroll
    for (int step = 0; step < kRank / 16; ++step) {
      const Codes<kRank>* const codes = page.codes + 2 * tile;
      const std::uint32_t a[4] = {codes[0].pair(2 * step), codes[1].pair(2 * step), codes[0].pair(2 * step + 1),
                                  codes[1].pair(2 * step + 1)};
      mma_bf16(product, a, query[2 * step], query[2 * step + 1]);
    }
    products[2 * tile] = product[0] + product[1];
    products[2 * tile + 1] = product[2] + product[3];
  }
}

template <int kRank>
struct WarpsShared {
  RowUnits units;
  float2 totals[kMostKvHeads][kMostGroup];
  alignas(16) std::uint32_t queries[kMostKvHeads][32][kRank / 8];  // a lane's operands
  typename PartRing<kRank>::Memory ring;

  // All warps; between barriers.
  __device__ void load_queries(const float* projected, int kv_heads, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int kv_head = static_cast<int>(threadIdx.x) / 32; kv_head < kv_heads; kv_head += kWarps) {
      QueryPart<kRank> query;
      query.load(projected + std::int64_t{kv_head} * group * kRank, group);
#pragma unroll
      for (int pair = 0; pair < kRank / 8; ++pair) queries[kv_head][lane][pair] = query.pairs[pair];
    }
  }
  __device__ void query_of(int kv_head, std::uint32_t (&query)[kRank / 8]) const {
#pragma unroll
    for (int pair = 0; pair < kRank / 8; ++pair) query[pair] = queries[kv_head][threadIdx.x % 32][pair];
  }
};

// Adds to the largest logit and sum of 2^(logit - it) of a lane's tokens so far. An exponential of NaN becomes 0, one
// of infinity 1.
__device__ __forceinline__ void add_logits(float2& sum, const float (&logits)[kLaneTokens]) {
  float largest = sum.x;
#pragma unroll
  for (const float logit : logits) largest = fmaxf(largest, logit);  // NaN is left out
  largest = fminf(largest, kLargestFloat);
  const float shift = finite_shift(largest);
  float total = sum.y * exp2_fast(sum.x - shift);
#pragma unroll
  for (const float logit : logits) total += __saturatef(exp2_fast(logit - shift));
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

// A warp takes a (chunk, KV head).
template <int kRank>
__global__ void __launch_bounds__(kThreads, kBlocks)
    chunks_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpsShared<kRank>*>(memory);
  PartRing<kRank> ring{shared.ring};
  ring.init();
  let_next_kernel_start();
  wait_for_kernels_before();
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const int group = params.heads / kv_heads;
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
      const std::int64_t id = __shfl_sync(kAll, ahead.ids, ahead.page);
      ring.start(rows.pool + id * page_bytes + ahead.unit % kv_heads * part_bytes);
      if (++ahead.page < ahead.pages) return;
      ahead.unit += kWarps;
      if (ahead.unit < ahead.end) ahead.enter();
    };
    for (int i = 0; i < kStages; ++i) start_next();
    __syncthreads();  // the row before is done with the queries
    shared.load_queries(work.projected + row * params.heads * kRank, kv_heads, group);
    __syncthreads();
    for (auto unit = static_cast<std::int32_t>(begin) + warp; unit < ahead.end; unit += kWarps) {
      const std::int32_t chunk = unit / kv_heads;
      const std::int32_t kv_head = unit % kv_heads;
      const auto left = static_cast<int>(min(length - std::int64_t{chunk} * kChunkTokens, std::int64_t{kChunkTokens}));
      std::uint32_t query[kRank / 8];
      shared.query_of(kv_head, query);
      float2 sum = {-INFINITY, 0.0F};
#pragma unroll 1
      for (int tokens = left; tokens > 0; tokens -= static_cast<int>(kPageTokens)) {
        PagePart<kRank> part;
        ring.take(part);
        start_next();
        float logits[kLaneTokens];
        multiply<kRank>(part, query, logits);
#pragma unroll
        for (int i = 0; i < kLaneTokens; ++i) logits[i] *= __half2float(part.scales[i]);
        if (tokens < static_cast<int>(kPageTokens)) {
          asm volatile("" ::: "memory");  // stays a branch: few pages are not full
#pragma unroll
          for (int i = 0; i < kLaneTokens; ++i) {
            if (lane / 4 + 8 * i >= tokens) logits[i] = -INFINITY;
          }
        }
        add_logits(sum, logits);
      }
      for (int step = 4; step < 32; step *= 2) {
        const float2 other = {__shfl_xor_sync(kAll, sum.x, step), __shfl_xor_sync(kAll, sum.y, step)};
        sum = join_sums(sum, other);
      }
      if (lane < group) work.partials[(row * params.heads + kv_head * group + lane) * work.chunks + chunk] = sum;
    }
  });
}

// A warp takes a page of all KV heads.
template <int kRank>
__global__ void __launch_bounds__(kThreads, kBlocks)
    scores_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<WarpsShared<kRank>*>(memory);
  PartRing<kRank> ring{shared.ring};
  ring.init();
  let_next_kernel_start();
  wait_for_kernels_before();
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const int group = params.heads / kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = rows.geometry.page_bytes();
  const std::int64_t part_bytes = rows.geometry.low_rank_head_bytes();
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    // The warp's pages, every kWarps-th, whose parts are started ahead of their use.
    const std::int32_t* const ids = rows.pages + row * rows.page_stride;
    std::int64_t ahead = begin + warp;
    int ahead_head = 0;
    const std::byte* part_at = ahead < end ? rows.pool + ids[ahead] * page_bytes : nullptr;
    std::int64_t next_id = ahead + kWarps < end ? ids[ahead + kWarps] : 0;
    const auto start_next = [&] {
      if (ahead >= end) return;
      ring.start(part_at);
      part_at += part_bytes;
      if (++ahead_head < kv_heads) return;
      ahead_head = 0;
      ahead += kWarps;
      part_at = rows.pool + next_id * page_bytes;
      next_id = ahead + kWarps < end ? ids[ahead + kWarps] : 0;
    };
    for (int i = 0; i < kStages; ++i) start_next();
    __syncthreads();  // the row before is done with what is shared
    shared.load_queries(work.projected + row * params.heads * kRank, kv_heads, group);
    for (int i = static_cast<int>(threadIdx.x); i < kv_heads * kMostGroup; i += kThreads) {
      float2 total = {0.0F, 0.0F};
      const int head = i % kMostGroup;
      if (head < group) total = work.totals[row * params.heads + i / kMostGroup * group + head];
      shared.totals[i / kMostGroup][head] = {finite_shift(total.x), total.y};
    }
    __syncthreads();
    const std::int64_t length = rows.lengths[row];
    for (std::int64_t page = begin + warp; page < end; page += kWarps) {
      float scores[kLaneTokens] = {};
#pragma unroll 1
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        PagePart<kRank> part;
        ring.take(part);
        start_next();
        std::uint32_t query[kRank / 8];
        shared.query_of(kv_head, query);
        const float2 total = shared.totals[kv_head][lane % 4];
        float products[kLaneTokens];
        multiply<kRank>(part, query, products);
#pragma unroll
        for (int i = 0; i < kLaneTokens; ++i) {
          // NaN becomes 0; infinity 1, as it counts as the largest number and so is the largest logit.
          const float power = __saturatef(exp2_fast(fmaf(products[i], __half2float(part.scales[i]), -total.x)));
          scores[i] = fmaf(total.y, power, scores[i]);
        }
      }
      // Over the four lanes of a token; lane p stores the tokens 8 p and 8 (p + 4) further.
#pragma unroll
      for (float& score : scores) {
        score += __shfl_xor_sync(kAll, score, 1);
        score += __shfl_xor_sync(kAll, score, 2);
      }
      const std::int64_t first = page * kPageTokens + lane / 4;
      float* const out = rows.scores + row * rows.stride + first;
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        if (lane % 4 == i % 4 && first + 8 * i < length) out[8 * i] = scores[i];
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
         geometry.kv_heads <= kMostKvHeads && params.heads / geometry.kv_heads <= kMostGroup;
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
