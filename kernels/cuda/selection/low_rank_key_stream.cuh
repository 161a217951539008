// The keys of low-rank scores on their way to a block: for each of its warps a ring of pieces of the pages that it
// takes, which the warp fills itself.
#pragma once

#include <cstdint>

#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/low_rank_codes.cuh"
#include "kernels/cuda/selection/scored_pages.h"

namespace hotset::kernels::cuda {

constexpr int kPieceHeads = 2;  // KV heads that one copy brings
constexpr int kPieceStages = 2;

template <int kRank, int kWarps>
struct KeyRing {
  static constexpr int kPieceBytes = kPieceHeads * PagePart<kRank>::kBytes;
  alignas(16) std::byte pieces[kWarps][kPieceStages][kPieceBytes];
  std::uint64_t filled[kWarps][kPieceStages];

  // Before the block's next barrier.
  __device__ void init() {
    if (threadIdx.x < kWarps * kPieceStages) init_copy_barrier(&filled[0][0] + threadIdx.x);
  }
  __device__ void load(PagePart<kRank> (&parts)[kPieceHeads], int warp, int stage) const {
#pragma unroll
    for (int i = 0; i < kPieceHeads; ++i) parts[i].load(pieces[warp][stage] + i * PagePart<kRank>::kBytes);
  }
};

// The pages of one warp of a block, in the order in which it takes them: unit after unit of each row, and once more,
// backwards, those units that are not kept.
struct PageCursor {
  const std::int32_t* begin;      // [rows + 1] units of the rows before
  const std::int32_t* row_pages;  // [rows]
  std::int32_t warps;
  std::int32_t warp;
  std::int32_t warp_pages;     // of a unit
  std::int32_t total;          // units of all rows
  std::int32_t unit;           // of the list over all rows
  std::int32_t first = unit;   // the block's first of the row
  std::int32_t resume = 0;     // the block's first of a later row
  std::int32_t row = 0;        // and what the row has:
  std::int32_t row_begin = 0;  // units before it
  std::int32_t row_end = 0;
  std::int32_t pages = 0;
  std::int32_t of_warp = 0;  // page
  bool again = false;        // logits are made again
  bool more = unit < total;

  __device__ void find_row() {
    while (begin[row + 1] <= unit) ++row;
    row_begin = begin[row];
    row_end = begin[row + 1];
    pages = row_pages[row];
  }
  __device__ std::int32_t page() const { return ((unit - row_begin) * warps + warp) * warp_pages + of_warp; }
  __device__ void step() {
    const auto grid = static_cast<std::int32_t>(gridDim.x);
    if (++of_warp < warp_pages) return;
    of_warp = 0;
    if (!again) {
      if (unit + grid < row_end) {
        unit += grid;
        return;
      }
      resume = unit + grid;
      again = true;
    }
    if (unit != first) {
      unit -= grid;
      return;
    }
    again = false;
    unit = first = resume;
    more = unit < total;
    if (more) find_row();
  }
  // On to a page that exists.
  __device__ void settle() {
    while (more && page() >= pages) step();
  }
};

// A warp's ring. Every piece that is started is waited for, loaded (any number of times) and dropped, in order. Page
// ids and keys are read past the L1.
template <int kRank, int kWarps>
struct KeyStream {
  KeyRing<kRank, kWarps>& ring;
  const ScoredPages& rows;
  PageCursor ahead;  // at the page after the one whose pieces are started
  const std::int64_t page_bytes;
  const int page_pieces;
  const std::byte* at = nullptr;
  std::int32_t next_id = 0;
  int pieces_left = 0;
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void begin() {
    if (!ahead.more) return;
    ahead.find_row();
    ahead.settle();
    if (!ahead.more) return;
    next_id = page_id();
    enter();
    for (int i = 0; i < kPieceStages; ++i) start(i);
  }
  __device__ void wait() const { wait_bulk_copy(&ring.filled[ahead.warp][stage], parity); }
  __device__ void load(PagePart<kRank> (&parts)[kPieceHeads]) const { ring.load(parts, ahead.warp, stage); }
  __device__ void drop() {
    __syncwarp();
    start(stage);
    parity ^= static_cast<std::uint32_t>(stage);
    stage ^= 1;
  }

 private:
  static_assert(kPieceStages == 2);

  __device__ void start(int to) {
    if (pieces_left == 0) return;
    if (threadIdx.x % 32 == 0) {
      start_bulk_copy(ring.pieces[ahead.warp][to], at, ring.kPieceBytes, &ring.filled[ahead.warp][to]);
    }
    at += ring.kPieceBytes;
    if (--pieces_left == 0 && ahead.more) enter();
  }
  __device__ std::int32_t page_id() const { return __ldcg(rows.pages + ahead.row * rows.page_stride + ahead.page()); }
  __device__ void enter() {
    at = rows.pool + next_id * page_bytes;
    pieces_left = page_pieces;
    ahead.step();
    ahead.settle();
    if (ahead.more) next_id = page_id();
  }
};

}  // namespace hotset::kernels::cuda
