// Low-rank scores of so few pages that the grid has a block for each quarter or half of a unit: warps take KV heads of
// pages, not pages, and the row's sum is put together from quarters. low_rank_sums.cuh gives the same bits either way.
#pragma once

#include "kernels/cuda/selection/low_rank_sums.cuh"

namespace hotset::kernels::cuda {

// Into how many blocks a unit is divided: 4, 2, or 1, which is no work for this file.
__device__ __forceinline__ std::int32_t spread_of(std::int32_t units) {
  const auto grid = static_cast<std::int32_t>(gridDim.x);
  if (units > kMostSpreadUnits) return 1;
  return units * 4 <= grid ? 4 : units * 2 <= grid ? 2 : 1;
}

template <int kRank, bool kSliced>
struct SpreadBlock : OneReadBlock<kRank, kSliced> {
  using Base = OneReadBlock<kRank, kSliced>;
  using Base::kv_heads, Base::lane, Base::of_group, Base::params, Base::shared, Base::slices, Base::warp, Base::work;

  std::int32_t spread;
  bool any = false;             // the block has pages
  std::int64_t row = 0;         // of them:
  std::int32_t unit = 0;        // of the row
  std::int32_t part = 0;        // of the unit
  std::int32_t first_page = 0;  // of the row
  std::int32_t pages = 0;       // of the block, some of which may lie behind the row

  __device__ SpreadBlock(OneReadShared<kRank>& memory, const LowRankScoresDeviceParams& p, const OneReadWork& w,
                         std::int32_t total)
      : Base{memory, p, w}, spread(spread_of(total)) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    if (block >= total * spread) return;
    unit = block / spread;
    part = block % spread;
    while (shared.row_begin[row + 1] <= unit) ++row;
    unit -= shared.row_begin[row];
    pages = kOneReadWarps / spread * work.warp_pages;
    first_page = (unit * spread + part) * pages;
    any = first_page < shared.row_pages[row];
  }

  // body(stage, page of the block, KV head, whether the page exists): the warp's pieces, at most one for each stage of
  // its ring.
  template <class Body>
  __device__ void for_my_pieces(const Body& body) {
    const int of_page = kv_heads / kPieceHeads;
#pragma unroll
    for (int stage = 0; stage < kPieceStages; ++stage) {
      const int piece = stage * kOneReadWarps + warp;
      const int page = piece / of_page;
      if (page >= pages) return;
      body(stage, page, piece % of_page * kPieceHeads, first_page + page < shared.row_pages[row]);
    }
  }

  // Of keys. Page ids and keys are read past the L1.
  __device__ void start_copies() {
    if (!any || lane != 0) return;
    const ScoredPages& rows = params.rows;
    for_my_pieces([&](int stage, int page, int kv_head, bool exists) {
      if (!exists) return;
      const std::int64_t id = __ldcg(rows.pages + row * rows.page_stride + first_page + page);
      start_bulk_copy(shared.ring.pieces[warp][stage],
                      rows.pool + id * rows.geometry.page_bytes() + kv_head * PagePart<kRank>::kBytes,
                      shared.ring.kPieceBytes, &shared.ring.filled[warp][stage]);
    });
  }

  __device__ void run() {
    if (!any) return;
    const ScoredPages& rows = params.rows;
    const std::int64_t length = rows.lengths[row];
    const std::int32_t row_pages = shared.row_pages[row];
    const std::int32_t row_units = shared.row_begin[row + 1] - shared.row_begin[row];
    this->load_queries(row, 0);
    __syncthreads();
    for_my_pieces([&](int stage, int page, int kv_head, bool exists) {
      if (!exists) {
        if (lane < kPieceHeads * of_group * kSliceHeads) {
          this->sums_of(page)[kv_head * of_group * kSliceHeads + lane] = {-INFINITY, 0.0F};
        }
        return;
      }
      wait_bulk_copy(&shared.ring.filled[warp][stage], 0);
      const std::int64_t tokens = length - (first_page + page) * std::int64_t{kPageTokens};
      this->make_powers(shared.queries[0], page, kv_head, static_cast<int>(min(tokens, std::int64_t{kPageTokens})),
                        [&](PagePart<kRank>(&parts)[kPieceHeads], bool) { shared.ring.load(parts, warp, stage); });
    });
    __syncthreads();
    const int quarter_pages = kOneReadWarps / kQuarters * work.warp_pages;
    if (warp < kQuarters / spread && first_page + warp * quarter_pages < row_pages) {
      const float sum = this->quarter_sum(warp * quarter_pages);
      store_sum(work.line(row, unit, part * (kQuarters / spread) + warp) + lane, sum);
    }
    // Four of a warp, where a block of many rows joins eight at a time: what is not there adds nothing.
    static_assert(kMostSpreadUnits <= 4 * kOneReadWarps);
    this->template join_units<4, false>(row_units, [&](std::int32_t of_row) { return unit_of(of_row, row_pages); });
    __syncthreads();
    store_scores(this->row_shift(), length);
  }

  // The word of a unit, from its quarters'.
  __device__ std::uint32_t unit_of(std::int32_t of_row, std::int32_t row_pages) const {
    const int quarter_pages = kOneReadWarps / kQuarters * work.warp_pages;
    std::uint32_t words[kQuarters];
    float quarters[kQuarters];
    bool all = true;
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) {
      const bool exists = (of_row * kQuarters + i) * quarter_pages < row_pages;
      words[i] = exists ? load_sum(work.line(row, of_row, i) + lane) : __float_as_uint(-INFINITY);
    }
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) {
      all = all && words[i] != kAbsent;
      quarters[i] = __uint_as_float(words[i]);
    }
    return all ? __float_as_uint(this->unit_sum(quarters)) : kAbsent;
  }

  // A warp takes eighths of a page, in pairs: the tokens that lanes hold as powers 2 i and 2 i + 1.
  __device__ void store_scores(float shift, std::int64_t length) {
    constexpr int kPairs = kLaneTokens / 2;
    const ScoredPages& rows = params.rows;
    for (int item = warp; item < pages * kPairs; item += kOneReadWarps) {
      const int page = item / kPairs;
      const int pair = item % kPairs;
      const std::int64_t first = (first_page + page) * std::int64_t{kPageTokens};
      if (first >= length) continue;
      float2 sum = {0.0F, 0.0F};
#pragma unroll 4
      for (int slice = 0; slice < slices; ++slice) {
        const float factor = this->factor_of(page, slice, shift);
        const float4* const kept = &shared.powers[page * slices + slice][pair / 2][lane];
        const float2 powers = reinterpret_cast<const float2*>(kept)[pair % 2];
        sum.x = fmaf(powers.x, factor, sum.x);
        sum.y = fmaf(powers.y, factor, sum.y);
      }
      // Over the four lanes of a token.
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, 2);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, 2);
      sum.x += __shfl_xor_sync(kAllLanes, sum.x, 1);
      sum.y += __shfl_xor_sync(kAllLanes, sum.y, 1);
      const int token = PagePart<kRank>::token(2 * pair + lane % 2);
      if (lane % 4 < 2 && first + token < length) {
        this->store_score(rows.scores + row * rows.stride + first + token, lane % 2 == 0 ? sum.x : sum.y);
      }
    }
  }
};

}  // namespace hotset::kernels::cuda
