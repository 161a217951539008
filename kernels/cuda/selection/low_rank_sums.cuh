// What blocks do with the keys of low-rank scores that they read once, whichever way pages are dealt to them: powers of
// a page's logits and their sums, sums of a row joined over blocks, scores.
//
// A row's sum is a tree that its own length fixes: pages to a unit (16 warps' pages, 1,024 tokens of 8 slices), units
// to the row; in rows of at most kMostSpreadUnits units, pages to quarters of a unit first. Quarters and units are
// handed on as log2 of their sum.
#pragma once

#include <cstdint>

#include "kernels/cuda/selection/low_rank_codes.cuh"
#include "kernels/cuda/selection/low_rank_key_stream.cuh"
#include "kernels/cuda/selection/low_rank_scores.h"

namespace hotset::kernels::cuda {

constexpr int kOneReadWarps = 16;
constexpr int kOneReadThreads = 32 * kOneReadWarps;
constexpr int kLaunchSlices = 8;               // of query heads
constexpr int kUnitParts = 8 * kOneReadWarps;  // of a unit at most: pages times slices
constexpr int kQuarters = 4;
constexpr int kMostSpreadUnits = 64;  // of all rows of a launch, where a unit is spread over several blocks
constexpr float kNothing = 0x1p30F;   // shift of a head that scores nothing
// Pages whose sum of 2^logit lies between these take no shift: float32 holds it, each term that matters, and 2^18 such
// sums together.
constexpr float kLeastSum = 0x1p-60F;
constexpr float kMostSum = 0x1p90F;
constexpr float kRaised = 64.0F, kLowered = 0x1p-64F;  // 2^kRaised / kLeastSum is finite; 2^-kRaised
constexpr std::uint32_t kAbsent = 0xffffffffU;         // NaN: no sum yet

// The projected queries of a row and slice of heads, as lanes of the product take them.
template <int kRank>
struct alignas(16) QueryRecord {
  std::uint32_t operands[32][Codes<kRank>::kOperands];
  int4 starts[kSliceHeads];  // of the head's two columns, twice. With NaN in them every product of the head is NaN
  float units[kSliceHeads];  // positive
};

constexpr int kPaddedHeads = kLaunchSlices * kSliceHeads;  // [slice][head of it]
static_assert(kPaddedHeads == 32);

// Of a launch, which takes all KV heads or an equal share of them.
struct OneReadWork {
  void* queries;            // [rows, row_slices] QueryRecord, from the launch's first slice of the first row on
  std::int32_t row_slices;  // of all launches
  std::int32_t kv_heads;    // of this one
  std::int32_t slices;      // of this one
  std::int32_t of_group;    // slices
  std::int32_t group;       // query heads of a KV head
  bool adds;                // to the scores of the launch before
  // [rows, units, kQuarters, kPaddedHeads] log2 of a sum of 2^logit, or kAbsent: of quarters where pages are spread,
  // else of units, in their first quarter's place. A line of 128 bytes says itself whether it is there: no fence, no
  // counter.
  std::uint32_t* sums;
  std::int64_t units;       // of the longest row
  std::int32_t warp_pages;  // of a unit

  // Words of the sums of a launch.
  [[nodiscard]] __host__ __device__ std::int64_t sum_words(std::int64_t rows) const {
    return rows * units * (kQuarters * kPaddedHeads);
  }
  __device__ std::uint32_t* line(std::int64_t row, std::int32_t unit, int quarter) const {
    return sums + row * units * (kQuarters * kPaddedHeads) + (unit * kQuarters + quarter) * kPaddedHeads;
  }
};

template <int kRank>
struct OneReadShared {
  alignas(16) float4 powers[kUnitParts][2][32];  // [page][slice]: 2^(logit - the page's shift), as lanes hold them
  KeyRing<kRank, kOneReadWarps> ring;
  QueryRecord<kRank> queries[2][kLaunchSlices];   // of this row and the next
  float2 page_sums[kUnitParts * kSliceHeads];     // [page][slice][head of it]: shift, sum
  float2 warp_sums[kOneReadWarps][kPaddedHeads];  // of a warp's share of the row's units: shift, sum
  std::int32_t row_begin[kMostLaunchRows + 1];    // units of the rows before
  std::int32_t row_pages[kMostLaunchRows];
};

__device__ __forceinline__ void store_sum(std::uint32_t* to, float sum) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(sum) : "memory");
}
__device__ __forceinline__ std::uint32_t load_sum(const std::uint32_t* from) {
  std::uint32_t sum;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(sum) : "l"(from) : "memory");
  return sum;
}

// Powers 2^(logit - shift) of a page and their sum. Lanes below 16 get that of the first head, the others that of the
// second.
__device__ __forceinline__ float sum_powers(const float (&logits)[kPieceHeads][kLaneTokens],
                                            const float (&units)[kPieceHeads], const float (&shifts)[kPieceHeads],
                                            float (&powers)[kPieceHeads][kLaneTokens]) {
  float sums[kPieceHeads];
#pragma unroll
  for (int k = 0; k < kPieceHeads; ++k) {
    float(&p)[kLaneTokens] = powers[k];
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) p[i] = exp2_fast(fmaf(logits[k][i], units[k], -shifts[k]));
    sums[k] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
  }
  const bool second = threadIdx.x % 32 >= 16;
  float sum = second ? sums[1] : sums[0];
  sum += __shfl_xor_sync(kAllLanes, second ? sums[0] : sums[1], 16);
  sum += __shfl_xor_sync(kAllLanes, sum, 8);
  sum += __shfl_xor_sync(kAllLanes, sum, 4);
  return sum;
}
static_assert(kPieceHeads == 2 && kLaneTokens == 8);

// Cuts logits to what can be computed with. NaN, and what lies behind the row, becomes less than any logit.
template <int kRank>
__device__ __forceinline__ void tidy_logits(float (&logits)[kLaneTokens], float unit, int tokens) {
  const float most = kMostLogit / unit;
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
    const bool counts = !isnan(logits[i]) && PagePart<kRank>::token(i) < tokens;
    logits[i] = counts ? fminf(fmaxf(logits[i], -most), most) : -4.0F * most;
  }
}

// Powers of any logits, also those of the last page: `tokens` of it count. (shift, sum), to lanes as sum_powers() does.
template <int kRank>
__device__ __forceinline__ float2 sum_unusual_powers(float (&logits)[kPieceHeads][kLaneTokens],
                                                     const float (&units)[kPieceHeads], int tokens,
                                                     float (&powers)[kPieceHeads][kLaneTokens]) {
  float shifts[kPieceHeads];
#pragma unroll
  for (int k = 0; k < kPieceHeads; ++k) {
    tidy_logits<kRank>(logits[k], units[k], tokens);
    float largest = logits[k][0];
#pragma unroll
    for (int i = 1; i < kLaneTokens; ++i) largest = fmaxf(largest, logits[k][i]);
    for (int step = 4; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    shifts[k] = largest * units[k];
  }
  const float sum = sum_powers(logits, units, shifts, powers);
  const float shift = threadIdx.x % 32 >= 16 ? shifts[1] : shifts[0];
  return shift < -2.0F * kMostLogit ? float2{-INFINITY, 0.0F} : float2{shift, sum};
}

// Sums as (shift, sum of 2^(logit - shift)), joined in a fixed tree, with the same roundings wherever it is inlined;
// nothing is (-infinity, 0).
template <int kCount>
  requires((kCount & (kCount - 1)) == 0)
__device__ __forceinline__ float2 join_all(float2 total, const float2 (&some)[kCount]) {
  float largest[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) largest[i] = some[i].x;
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * step) largest[i] = fmaxf(largest[i], largest[i + step]);
  }
  const float most = fmaxf(total.x, largest[0]);
  const float shift = finite_shift(most);
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = __fmul_rn(some[i].y, exp2_fast(some[i].x - shift));
#pragma unroll
  for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2 * step) sums[i] = __fadd_rn(sums[i], sums[i + step]);
  }
  return {most, fmaf(total.y, exp2_fast(total.x - shift), sums[0])};
}

__device__ __forceinline__ float log_sum(float2 sum) { return finite_shift(sum.x) + __log2f(sum.y); }

// What a block has for any way of dealing pages. "Page": of those that the block holds at a time, [0, pages of a unit).
// kSliced: groups may have several slices, and KV heads several launches; else "slice" is the KV head.
template <int kRank, bool kSliced>
struct OneReadBlock {
  OneReadShared<kRank>& shared;
  const LowRankScoresDeviceParams& params;
  const OneReadWork& work;
  const int kv_heads = kSliced ? work.kv_heads : params.rows.geometry.kv_heads;
  const int group = kSliced ? work.group : params.heads / kv_heads;
  const int of_group = kSliced ? work.of_group : 1;  // slices
  const int slices = kSliced ? work.slices : kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  // Followed by a barrier. The last threads, as the first are busy.
  __device__ void load_queries(std::int64_t row, int buffer) {
    const auto* const records =
        static_cast<const QueryRecord<kRank>*>(work.queries) + row * (kSliced ? work.row_slices : slices);
    const auto* const source = reinterpret_cast<const uint4*>(records);
    auto* const target = reinterpret_cast<uint4*>(shared.queries[buffer]);
    const int count = slices * static_cast<int>(sizeof(QueryRecord<kRank>) / sizeof(uint4));
#pragma unroll 1
    for (int i = kOneReadThreads - 1 - static_cast<int>(threadIdx.x); i < count; i += kOneReadThreads) {
      target[i] = __ldcg(source + i);
    }
  }

  __device__ float2* sums_of(int page) const { return shared.page_sums + page * slices * kSliceHeads; }

  // One warp: powers of a page and the two KV heads from `kv_head` on, and their sums; `tokens` of it count.
  // load(parts, last) loads their parts, for each slice of a group anew: registers have no room for them between.
  template <class Load>
  __device__ void make_powers(const QueryRecord<kRank>* queries, int page, int kv_head, int tokens, const Load& load) {
#pragma unroll 1
    for (int i = 0; i < of_group; ++i) {
      PagePart<kRank> parts[kPieceHeads];
      load(parts, i + 1 == of_group);
      make_slices(parts, queries, page, kv_head * of_group + i, tokens);
    }
  }
  // Of `slice`, and of that of the next KV head.
  __device__ void make_slices(const PagePart<kRank> (&parts)[kPieceHeads], const QueryRecord<kRank>* queries, int page,
                              int slice, int tokens) {
    float logits[kPieceHeads][kLaneTokens];
    float units[kPieceHeads];
#pragma unroll
    for (int k = 0; k < kPieceHeads; ++k) {
      const QueryRecord<kRank>& query = queries[slice + k * of_group];
      std::uint32_t operands[Codes<kRank>::kOperands];
#pragma unroll
      for (int i = 0; i < Codes<kRank>::kOperands; ++i) operands[i] = query.operands[lane][i];
      units[k] = query.units[lane % 4];
      multiply<kRank>(parts[k], operands, query.starts[lane % 4], logits[k]);
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) logits[k][i] *= __half2float(parts[k].scales[i]);
    }
    float powers[kPieceHeads][kLaneTokens];
    float2 sum = {0.0F, sum_powers(logits, units, {}, powers)};
    const bool usual = tokens == static_cast<int>(kPageTokens) && sum.y >= kLeastSum && sum.y <= kMostSum;
    if (!__all_sync(kAllLanes, usual)) sum = sum_unusual_powers<kRank>(logits, units, tokens, powers);
    if (lane % 16 < kSliceHeads) sums_of(page)[(slice + lane / 16 * of_group) * kSliceHeads + lane % 16] = sum;
#pragma unroll
    for (int k = 0; k < kPieceHeads; ++k) {
      float4* const kept = &shared.powers[page * slices + slice + k * of_group][0][lane];
      kept[0] = {powers[k][0], powers[k][1], powers[k][2], powers[k][3]};
      kept[32] = {powers[k][4], powers[k][5], powers[k][6], powers[k][7]};
    }
  }

  // One warp, after a barrier: log2 of the sum of the kTogether * warp_pages pages from `page` on. A lane takes a head.
  template <int kTogether>
  __device__ float pages_sum(int page) const {
    const int heads = slices * kSliceHeads;
    const float2* sums = sums_of(page) + min(lane, heads - 1);
    float2 total = {-INFINITY, 0.0F};
#pragma unroll 1
    for (int i = 0; i < work.warp_pages; ++i) {
      float2 some[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) some[j] = sums[j * heads];
      total = join_all(total, some);
      sums += kTogether * heads;
    }
    return log_sum(total);
  }
  // Of the quarter whose pages begin at `page`.
  __device__ float quarter_sum(int page) const { return pages_sum<kOneReadWarps / kQuarters>(page); }
  __device__ static float unit_sum(const float (&quarters)[kQuarters]) {
    const float2 some[kQuarters] = {{quarters[0], 1.0F}, {quarters[1], 1.0F}, {quarters[2], 1.0F}, {quarters[3], 1.0F}};
    return log_sum(join_all({-INFINITY, 0.0F}, some));
  }

  // All warps; a barrier follows. The row's units: unit_of(unit) is the word of one, or kAbsent. A warp waits for every
  // kOneReadWarps-th, kSome at a time; how many are joined at a time shows in the bits only where there are more units
  // than kSome of each warp. A lane takes a head. kGated: while a warp's first is not there, it alone is asked for:
  // blocks come at much the same time.
  template <int kSome, bool kGated, class UnitOf>
  __device__ void join_units(std::int32_t units, const UnitOf& unit_of) {
    float2 total = {-INFINITY, 0.0F};
#pragma unroll 1
    for (std::int32_t base = warp; base < units; base += kSome * kOneReadWarps) {
      while (kGated && !__all_sync(kAllLanes, unit_of(base) != kAbsent)) {
      }
      std::uint32_t words[kSome];
#pragma unroll
      for (int i = 0; i < kSome; ++i) {
        words[i] = base + i * kOneReadWarps < units ? kAbsent : __float_as_uint(-INFINITY);
      }
      bool all;
      do {
        all = true;
#pragma unroll
        for (int i = 0; i < kSome; ++i) {
          if (words[i] == kAbsent) words[i] = unit_of(base + i * kOneReadWarps);
        }
#pragma unroll
        for (int i = 0; i < kSome; ++i) all = all && words[i] != kAbsent;
      } while (!__all_sync(kAllLanes, all));
      float2 some[kSome];
#pragma unroll
      for (int i = 0; i < kSome; ++i) some[i] = {__uint_as_float(words[i]), 1.0F};
      total = join_all(total, some);
    }
    shared.warp_sums[warp][lane] = total;
  }

  // All warps, after that barrier: log2(heads * the row's sum of 2^logit) of the lane's head.
  __device__ float row_shift() const {
    if (lane / kSliceHeads % of_group * kSliceHeads + lane % kSliceHeads >= group) return kNothing;
    float2 some[kOneReadWarps];
#pragma unroll
    for (int i = 0; i < kOneReadWarps; ++i) some[i] = shared.warp_sums[i][lane];
    const float2 total = join_all({-INFINITY, 0.0F}, some);
    const float sum = total.y * static_cast<float>(params.heads);
    return sum > 0.0F ? total.x + __log2f(sum) : kNothing;
  }

  // What the powers of a page and slice are multiplied with, for the lane's head. `shift`: row_shift(). All lanes.
  // Times 2^kRaised, which store_score() takes back: powers of up to kMostSum may be of tokens whose factor alone would
  // be 0.
  __device__ float factor_of(int page, int slice, float shift) const {
    const int head = slice * kSliceHeads + lane % kSliceHeads;
    return exp2_fast(sums_of(page)[head].x - __shfl_sync(kAllLanes, shift, head) + kRaised);
  }
  // Once a launch for each token, so the bits of a sum are fixed. Where the launch adds, nothing waits for what is
  // there.
  __device__ void store_score(float* to, float raised) const {
    const float score = raised * kLowered;
    if (kSliced && work.adds) {
      atomicAdd(to, score);
    } else {
      *to = score;
    }
  }
};

}  // namespace hotset::kernels::cuda
