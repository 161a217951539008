// Low-rank scores on tensor cores: rows of a product are tokens, columns are a group's query heads: columns 0-3 the
// rounded projected queries of up to four heads, columns 4-7 what the rounding left, so that one product gives both and
// their sum is exact to about 2^-16. A lane's 4-bit codes of a token are one load; they become bfloat16 by bit
// operations and one exact subtraction (128 + code + 8 - 136).
//
// A warp's tile is a page: four products of 16 tokens. After lanes p and p ^ 2 exchanged halves, every lane holds two
// heads (2 (p % 2) and the next) of the token 16 tile + lane / 4 + 8 (p / 2).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/low_rank_parts.cuh"
#include "kernels/cuda/selection/mma.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTiles = static_cast<int>(kPageTokens) / 16;
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
    const std::uint32_t biased = (words[pair / 4] >> (4 * (pair % 4)) & 0x000f000fU) | 0x43004300U;
    __nv_bfloat162 value = *reinterpret_cast<const __nv_bfloat162*>(&biased);
    value = __hsub2(value, __float2bfloat162_rn(136.0F));
    return *reinterpret_cast<const std::uint32_t*>(&value);
  }
  static constexpr int kApart = kRank == 16 ? 2 : 4;
  __device__ static int channel(int lane_pair, int pair) { return lane_pair * (kRank / 4) + pair / 4 * 8 + pair % 4; }
};

// One KV head's codes and scales of a page, as a lane holds them.
template <int kRank>
struct PagePart {
  Codes<kRank> codes[kTiles][2];  // of tokens 16 tile + lane / 4, and 8 further
  __half scales[kTiles];          // of the token whose logits the lane ends up with

  __device__ void load(const std::byte* part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto* const all = reinterpret_cast<const __half*>(part + kPageTokens * (kRank / 2));
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      codes[tile][0].load(part, 16 * tile + lane / 4);
      codes[tile][1].load(part, 16 * tile + lane / 4 + 8);
      scales[tile] = all[16 * tile + lane / 4 + 8 * (lane % 4 / 2)];
    }
  }
};

// A lane's part of the queries of one KV head's group. x [group, rank]
template <int kRank>
struct QueryPart {
  std::uint32_t pairs[Codes<kRank>::kPairs];

  __device__ void load(const float* x, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = lane / 4;
    const int head = column % kMostGroup;
#pragma unroll
    for (int pair = 0; pair < Codes<kRank>::kPairs; ++pair) {
      float values[2] = {0.0F, 0.0F};
      if (head < group) {
        const int channel = Codes<kRank>::channel(lane % 4, pair);
        values[0] = x[head * kRank + channel];
        values[1] = x[head * kRank + channel + Codes<kRank>::kApart];
      }
      __nv_bfloat162 rounded = __floats2bfloat162_rn(values[0], values[1]);
      if (column >= kMostGroup) {
        const float low[2] = {__low2float(rounded), __high2float(rounded)};
        rounded = __floats2bfloat162_rn(isfinite(low[0]) ? values[0] - low[0] : 0.0F,
                                        isfinite(low[1]) ? values[1] - low[1] : 0.0F);
      }
      pairs[pair] = *reinterpret_cast<const std::uint32_t*>(&rounded);
    }
  }
};

// logits[tile][i]: head 2 (lane % 2) + i of the group, the lane's token of the tile. `tokens`: how many of the page
// count.
template <int kRank>
__device__ __forceinline__ void page_logits(const PagePart<kRank>& page, const QueryPart<kRank>& query, int tokens,
                                            float (&logits)[kTiles][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool upper = lane % 4 >= 2;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float product[4] = {};
#pragma unroll
    for (int step = 0; step < kRank / 16; ++step) {
      const std::uint32_t a[4] = {page.codes[tile][0].pair(2 * step), page.codes[tile][1].pair(2 * step),
                                  page.codes[tile][0].pair(2 * step + 1), page.codes[tile][1].pair(2 * step + 1)};
      mma_bf16(product, a, query.pairs[2 * step], query.pairs[2 * step + 1]);
    }
    const float scale = __half2float(page.scales[tile]);
    const bool there = 16 * tile + lane / 4 + (upper ? 8 : 0) < tokens;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_xor_sync(kAll, upper ? product[i] : product[2 + i], 2);
      const float sum = (upper ? product[2 + i] : product[i]) + other;
      logits[tile][i] = there ? tidy_logit(sum * scale) : -INFINITY;
    }
  }
}

// A warp takes a (chunk, KV head).
template <int kRank>
__global__ void __launch_bounds__(kThreads, 2)
    chunks_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  __shared__ RowUnits units;
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const int group = params.heads / kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = rows.geometry.page_bytes();
  count_units(units, rows.rows, [&](std::int64_t row) { return chunks_of(scored_length(rows, row)) * kv_heads; });
  for_my_units(units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t length = rows.lengths[row];
    for (std::int64_t unit = begin + warp; unit < end; unit += kWarps) {
      const std::int64_t chunk = unit / kv_heads;
      const auto kv_head = static_cast<int>(unit % kv_heads);
      const std::int32_t* const ids = rows.pages + row * rows.page_stride + chunk * kChunkPages;
      const auto left = static_cast<int>(min(length - chunk * kChunkTokens, std::int64_t{kChunkTokens}));
      const int pages = (left + static_cast<int>(kPageTokens) - 1) / static_cast<int>(kPageTokens);
      const std::int64_t head_offset = kv_head * rows.geometry.low_rank_head_bytes();
      // Lane p: the chunk's page p; instead of one that is not there the first again, whose tokens are then masked.
      const std::int64_t id = ids[lane < pages ? lane : 0];
      const auto part = [&](int page) { return rows.pool + __shfl_sync(kAll, id, page) * page_bytes + head_offset; };
      PagePart<kRank> next;
      next.load(part(0));
      QueryPart<kRank> query;
      query.load(work.projected + (row * params.heads + kv_head * group) * kRank, group);
      float2 sums[2] = {{-INFINITY, 0.0F}, {-INFINITY, 0.0F}};
#pragma unroll 1
      for (int page = 0; page < kChunkPages; ++page) {
        const PagePart<kRank> now = next;
        if (page + 1 < kChunkPages) next.load(part(page + 1));
        float logits[kTiles][2];
        page_logits(now, query, left - page * static_cast<int>(kPageTokens), logits);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float largest = sums[i].x;
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) largest = fmaxf(largest, logits[tile][i]);
          const float shift = finite_shift(largest);
          float sum = sums[i].y * exp2_fast(sums[i].x - shift);
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) sum += exp2_fast(logits[tile][i] - shift);
          sums[i] = {largest, sum};
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        for (int step = 2; step < 32; step *= 2) {
          const float2 other = {__shfl_xor_sync(kAll, sums[i].x, step), __shfl_xor_sync(kAll, sums[i].y, step)};
          sums[i] = join_sums(sums[i], other);
        }
        const int head = 2 * lane + i;
        if (head < group) {
          work.partials[(row * params.heads + kv_head * group + head) * work.chunks + chunk] = sums[i];
        }
      }
    }
  });
}

template <int kRank>
struct ScoresShared {
  RowUnits units;
  float2 totals[kMostKvHeads][kMostGroup];
  alignas(16) std::uint32_t queries[kMostKvHeads][32][Codes<kRank>::kPairs];
};

// A warp takes a page of all KV heads.
template <int kRank>
__global__ void __launch_bounds__(kThreads, 2)
    scores_kernel(const LowRankScoresDeviceParams params, const LowRankWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScoresShared<kRank>*>(memory);
  const ScoredPages& rows = params.rows;
  const int kv_heads = rows.geometry.kv_heads;
  const int group = params.heads / kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = rows.geometry.page_bytes();
  const std::int64_t part_bytes = rows.geometry.low_rank_head_bytes();
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    __syncthreads();  // the row before is done with what is shared
    for (int kv_head = warp; kv_head < kv_heads; kv_head += kWarps) {
      QueryPart<kRank> query;
      query.load(work.projected + (row * params.heads + kv_head * group) * kRank, group);
#pragma unroll
      for (int pair = 0; pair < Codes<kRank>::kPairs; ++pair) shared.queries[kv_head][lane][pair] = query.pairs[pair];
      if (lane < kMostGroup) {
        float2 total = {0.0F, 0.0F};
        if (lane < group) total = work.totals[row * params.heads + kv_head * group + lane];
        shared.totals[kv_head][lane] = {finite_shift(total.x), total.y};
      }
    }
    __syncthreads();
    const std::int64_t length = rows.lengths[row];
    const std::int32_t* const ids = rows.pages + row * rows.page_stride;
    for (std::int64_t page = begin + warp; page < end; page += kWarps) {
      const std::byte* part = rows.pool + ids[page] * page_bytes;
      const auto tokens = static_cast<int>(min(length - page * kPageTokens, kPageTokens));
      float scores[kTiles] = {};
      PagePart<kRank> next;
      next.load(part);
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        const PagePart<kRank> now = next;
        part += part_bytes;
        if (kv_head + 1 < kv_heads) next.load(part);
        QueryPart<kRank> query;
#pragma unroll
        for (int pair = 0; pair < Codes<kRank>::kPairs; ++pair) query.pairs[pair] = shared.queries[kv_head][lane][pair];
        float logits[kTiles][2];
        page_logits(now, query, tokens, logits);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 total = shared.totals[kv_head][lane % 2 * 2 + i];
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            scores[tile] = fmaf(total.y, exp2_fast(logits[tile][i] - total.x), scores[tile]);
          }
        }
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float score = scores[tile] + __shfl_xor_sync(kAll, scores[tile], 1);
        const int token = 16 * tile + lane / 4 + 8 * (lane % 4 / 2);
        if (lane % 2 == 0 && token < tokens) rows.scores[row * rows.stride + page * kPageTokens + token] = score;
      }
    }
  });
}

template <int kRank>
void launch_scores(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks, Stream stream) {
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(scores_kernel<kRank>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(ScoresShared<kRank>))));
    return true;
  }();
  static_cast<void>(ready);
  scores_kernel<kRank><<<blocks, kThreads, sizeof(ScoresShared<kRank>), stream>>>(params, work);
}

}  // namespace

bool low_rank_mma_fits(const LowRankScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  return (geometry.rank == 16 || geometry.rank == 32 || geometry.rank == 64) && geometry.kv_heads <= kMostKvHeads &&
         params.heads / geometry.kv_heads <= kMostGroup;
}

void launch_low_rank_chunks_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream) {
  switch (params.rows.geometry.rank) {
    case 16: chunks_kernel<16><<<blocks, kThreads, 0, stream>>>(params, work); break;
    case 32: chunks_kernel<32><<<blocks, kThreads, 0, stream>>>(params, work); break;
    default: chunks_kernel<64><<<blocks, kThreads, 0, stream>>>(params, work); break;
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

void launch_low_rank_scores_mma(const LowRankScoresDeviceParams& params, const LowRankWork& work, unsigned blocks,
                                Stream stream) {
  switch (params.rows.geometry.rank) {
    case 16: launch_scores<16>(params, work, blocks, stream); break;
    case 32: launch_scores<32>(params, work, blocks, stream); break;
    default: launch_scores<64>(params, work, blocks, stream); break;
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
