// The form of low-rank scores that reads keys once (low_rank_codes.cuh): every block keeps the logits of its tokens in
// shared memory until all blocks have added to the row's sums.
//
// A unit is what a block holds at a time: kSlots parts a warp, that is 1,024 tokens of 8 KV heads. Unit g of the list
// over all rows belongs to block g modulo the grid; every block goes through its units in order. For each row:
// 1. logits of the unit and each page's sum of 2^logit; one warp joins the pages;
// 2. arrival at the row's counter, and a wait for all units of the row;
// 3. all units' sums joined, in a fixed tree; scores from the logits that were kept.
// Of a row that has more units than there are blocks, a block keeps the last unit and makes the logits of its others
// again, from the same instructions. Units are fixed by position, so neither the grid nor other rows show in a score.
//
// Blocks wait for one another: the launch is cooperative, so all of them run at once. They finish as they wait for a
// row only after their own part of it, and rows come in the same order everywhere.
#include <algorithm>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/dependent_launch.cuh"
#include "kernels/cuda/selection/low_rank_codes.cuh"
#include "kernels/cuda/selection/low_rank_project.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostKvHeads = 8;
constexpr int kSlots = 8;       // parts of a unit in a warp: pages times KV heads
constexpr int kPieceHeads = 2;  // KV heads that one copy brings
constexpr int kStages = 2;
constexpr float kNothing = 0x1p30F;  // shift of a head that scores nothing
// Logits are cut off at +- this, where float32 has no room for differences anyway.
constexpr float kMostLogit = 0x1p20F;
// Pages whose sum of 2^logit lies between these take no shift: float32 holds it, each term that matters, and 2^18 such
// sums together.
constexpr float kLeastSum = 0x1p-100F;
constexpr float kMostSum = 0x1p90F;
constexpr float kLeastUnit = 0x1p-60F;
constexpr float kMostUnit = 0x1p40F;
constexpr std::int32_t kNanBits = 0x7fc00000;

// The projected queries of a row and KV head, as lanes of the product take them.
template <int kRank>
struct alignas(16) QueryRecord {
  std::uint32_t operands[32][Codes<kRank>::kOperands];
  int4 starts[kMostGroup];  // of the head's two columns, twice. With NaN in them every product of the head is NaN
  float units[kMostGroup];  // positive
};

struct OneReadWork {
  void* queries;            // [rows, kv_heads] QueryRecord
  float2* sums;             // [rows, heads, units]: a shift of a unit, sum of 2^(logit - it)
  std::uint32_t* arrived;   // [rows] units whose sums are there
  std::int64_t units;       // of the longest row
  std::int32_t warp_pages;  // of a unit
};

template <int kRank>
struct Shared {
  static constexpr int kPieceBytes = kPieceHeads * PagePart<kRank>::kBytes;
  alignas(16) float4 logits[kWarps][kSlots][2][32];  // in units of their head, as the lane holds them
  alignas(16) std::byte pieces[kWarps][kStages][kPieceBytes];
  QueryRecord<kRank> queries[2][kMostKvHeads];     // of this row and the next
  float2 page_sums[kWarps * kSlots * kMostGroup];  // [page of the unit][KV head][head of the group]
  float2 head_totals[kMostKvHeads * kMostGroup];   // unit, largest logit + log2(heads * sum)
  std::uint64_t filled[kWarps][kStages];
  RowUnits units;
  std::int32_t row_pages[kMostLaunchRows];
};

__device__ __forceinline__ void add_release(std::uint32_t* counter, std::uint32_t count) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(count) : "memory");
}
__device__ __forceinline__ std::uint32_t load_acquire(const std::uint32_t* counter) {
  std::uint32_t count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}

// Block: (row, KV head).
template <int kRank>
__global__ void __launch_bounds__(kProjectThreads)
    project_kernel(const LowRankScoresDeviceParams params, const OneReadWork work) {
  __shared__ float projected[kMostGroup * kRank];
  wait_for_kernels_before();
  // Behind the wait, never before it: the scores' blocks copy keys before a wait of their own, and only this order says
  // that the kernel that wrote the newest keys is done by then.
  let_next_kernel_start();
  const std::int64_t row = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  if (scored_length(params.rows, row) == 0) return;
  if (kv_head == 0 && threadIdx.x == 0) work.arrived[row] = 0;
  project_group(params, row, kv_head, [&](int i, float value) { projected[i] = value; });
  if (threadIdx.x >= 32) return;
  QueryPart<kRank> query;
  query.load(projected, params.heads / params.rows.geometry.kv_heads);
  const int lane = static_cast<int>(threadIdx.x);
  auto& record = static_cast<QueryRecord<kRank>*>(work.queries)[row * params.rows.geometry.kv_heads + kv_head];
#pragma unroll
  for (int i = 0; i < Codes<kRank>::kOperands; ++i) record.operands[lane][i] = query.operands[i];
  const int low_start = __shfl_down_sync(kAllLanes, query.start, 4);  // of the column of low digits
  if (lane % 8 != 0) return;
  const int low = isnan(query.scale) ? kNanBits : low_start;
  record.starts[lane / 8] = {query.start, low, query.start, low};
  record.units[lane / 8] = fminf(fmaxf(query.scale, kLeastUnit), kMostUnit);
}

// The pages that a warp takes, in the order in which it takes them.
struct PageCursor {
  const RowUnits& units;
  const std::int32_t* row_pages;
  std::int32_t warp_pages;
  std::int32_t total;         // units of all rows
  std::int32_t unit;          // of the list over all rows
  std::int32_t first = unit;  // the block's first of the row
  std::int32_t resume = 0;    // the block's first of a later row
  std::int32_t row = 0;
  std::int32_t of_warp = 0;  // page
  bool again = false;        // logits are made again
  bool more = unit < total;

  __device__ void find_row() {
    while (units.begin[row + 1] <= unit) ++row;
  }
  __device__ std::int32_t page() const {
    const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x) / 32;
    return ((unit - static_cast<std::int32_t>(units.begin[row])) * kWarps + warp) * warp_pages + of_warp;
  }
  __device__ void step() {
    const auto grid = static_cast<std::int32_t>(gridDim.x);
    if (++of_warp < warp_pages) return;
    of_warp = 0;
    if (!again) {
      if (unit + grid < units.begin[row + 1]) {
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
    while (more && page() >= row_pages[row]) step();
  }
};

// A warp's keys, in pieces, started ahead of their use through a private ring.
template <int kRank>
struct KeyStream {
  using Memory = Shared<kRank>;
  Memory& shared;
  const ScoredPages& rows;
  PageCursor ahead;  // at the page after the one that is being started
  std::int64_t page_bytes;
  int page_pieces;
  const std::byte* at = nullptr;
  std::int32_t next_id = 0;
  int pieces_left = 0;  // of the page that is being started
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ std::int32_t page_id() const {
    return ahead.more ? __ldcg(rows.pages + ahead.row * rows.page_stride + ahead.page()) : 0;
  }
  __device__ void enter() {
    at = rows.pool + next_id * page_bytes;
    pieces_left = page_pieces;
    ahead.step();
    ahead.settle();
    next_id = page_id();
  }
  __device__ void begin() {
    if (ahead.more) ahead.find_row();
    ahead.settle();
    next_id = page_id();
    if (ahead.more) enter();
    for (int i = 0; i < kStages; ++i) start_next(i);
  }
  __device__ void start_next(int to) {
    if (pieces_left == 0) return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) {
      start_bulk_copy(shared.pieces[warp][to], at, Memory::kPieceBytes, &shared.filled[warp][to]);
    }
    at += Memory::kPieceBytes;
    if (--pieces_left == 0 && ahead.more) enter();
  }
  __device__ void take(PagePart<kRank> (&parts)[kPieceHeads]) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    wait_bulk_copy(&shared.filled[warp][stage], parity);
#pragma unroll
    for (int i = 0; i < kPieceHeads; ++i) {
      parts[i].load(shared.pieces[warp][stage] + i * PagePart<kRank>::kBytes);
    }
    __syncwarp();
    start_next(stage);
    stage ^= 1;
    if (stage == 0) parity ^= 1U;
  }
};
static_assert(kStages == 2);

// Of a page and head, the same for the 8 lanes that share the head: sum of 2^(logit - shift).
struct PageSum {
  float shift;
  float sum;
};
__device__ __forceinline__ void sum_powers(const float (&logits)[kPieceHeads][kLaneTokens],
                                           const float (&units)[kPieceHeads], PageSum (&sums)[kPieceHeads]) {
#pragma unroll
  for (int k = 0; k < kPieceHeads; ++k) {
    float powers[kLaneTokens];
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) powers[i] = exp2_fast(fmaf(logits[k][i], units[k], -sums[k].shift));
    sums[k].sum =
        ((powers[0] + powers[1]) + (powers[2] + powers[3])) + ((powers[4] + powers[5]) + (powers[6] + powers[7]));
  }
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
#pragma unroll
    for (int k = 0; k < kPieceHeads; ++k) sums[k].sum += __shfl_xor_sync(kAllLanes, sums[k].sum, step);
  }
}

// Cuts logits to what can be computed with. NaN, and what lies behind the row, becomes less than any logit.
__device__ __forceinline__ void tidy_logits(float (&logits)[kLaneTokens], float unit, int tokens) {
  const float most = kMostLogit / unit;
  const int first = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) {
    const bool counts = !isnan(logits[i]) && first + 8 * i < tokens;
    logits[i] = counts ? fminf(fmaxf(logits[i], -most), most) : -4.0F * most;
  }
}

// Sums of any logits, also those of the last page: `tokens` of it count.
__device__ __forceinline__ void sum_unusual_powers(float (&logits)[kPieceHeads][kLaneTokens],
                                                   const float (&units)[kPieceHeads], int tokens,
                                                   PageSum (&sums)[kPieceHeads]) {
#pragma unroll
  for (int k = 0; k < kPieceHeads; ++k) {
    tidy_logits(logits[k], units[k], tokens);
    float largest = logits[k][0];
#pragma unroll
    for (int i = 1; i < kLaneTokens; ++i) largest = fmaxf(largest, logits[k][i]);
    for (int step = 4; step < 32; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    }
    sums[k].shift = largest * units[k];
  }
  sum_powers(logits, units, sums);
#pragma unroll
  for (int k = 0; k < kPieceHeads; ++k) {
    if (sums[k].shift < -2.0F * kMostLogit) sums[k] = {-INFINITY, 0.0F};
  }
}

// A block's work on its units.
template <int kRank>
struct Block {
  Shared<kRank>& shared;
  const LowRankScoresDeviceParams& params;
  const OneReadWork& work;
  KeyStream<kRank>& keys;
  const int kv_heads = params.rows.geometry.kv_heads;
  const int group = params.heads / kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  // Threads from `from` on. Followed by a barrier.
  __device__ void load_queries(std::int64_t row, int buffer, int from) {
    const auto* const records = static_cast<const QueryRecord<kRank>*>(work.queries) + row * kv_heads;
    const auto* const source = reinterpret_cast<const uint4*>(records);
    auto* const target = reinterpret_cast<uint4*>(shared.queries[buffer]);
    const int count = kv_heads * static_cast<int>(sizeof(QueryRecord<kRank>) / sizeof(uint4));
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) - from; i < count; i += kThreads - from) {
      if (i >= 0) target[i] = __ldcg(source + i);
    }
  }

  // Logits of the warp's page and their sums; `tokens`: of the row from this page on.
  __device__ void make_logits(const QueryRecord<kRank>* queries, int of_warp, std::int64_t tokens) {
    float2* const sums = shared.page_sums + (warp * work.warp_pages + of_warp) * kv_heads * kMostGroup;
    if (tokens <= 0) {
      if (lane < kv_heads * kMostGroup) sums[lane] = {-INFINITY, 0.0F};
      return;
    }
    const int page_tokens = static_cast<int>(min(tokens, std::int64_t{kPageTokens}));
#pragma unroll 1
    for (int kv_head = 0; kv_head < kv_heads; kv_head += kPieceHeads) {
      PagePart<kRank> parts[kPieceHeads];
      keys.take(parts);
      float logits[kPieceHeads][kLaneTokens];
      float units[kPieceHeads];
#pragma unroll
      for (int k = 0; k < kPieceHeads; ++k) {
        const QueryRecord<kRank>& query = queries[kv_head + k];
        std::uint32_t operands[Codes<kRank>::kOperands];
#pragma unroll
        for (int i = 0; i < Codes<kRank>::kOperands; ++i) operands[i] = query.operands[lane][i];
        units[k] = query.units[lane % 4];
        multiply<kRank>(parts[k], operands, query.starts[lane % 4], logits[k]);
#pragma unroll
        for (int i = 0; i < kLaneTokens; ++i) logits[k][i] *= __half2float(parts[k].scales[i]);
      }
      PageSum page[kPieceHeads] = {};
      sum_powers(logits, units, page);
      bool usual = page_tokens == static_cast<int>(kPageTokens);
#pragma unroll
      for (int k = 0; k < kPieceHeads; ++k) usual = usual && page[k].sum >= kLeastSum && page[k].sum <= kMostSum;
      if (!__all_sync(kAllLanes, usual)) sum_unusual_powers(logits, units, page_tokens, page);
#pragma unroll
      for (int k = 0; k < kPieceHeads; ++k) {
        float4* const kept = &shared.logits[warp][of_warp * kv_heads + kv_head + k][0][lane];
        kept[0] = {logits[k][0], logits[k][1], logits[k][2], logits[k][3]};
        kept[32] = {logits[k][4], logits[k][5], logits[k][6], logits[k][7]};
        if (lane < kMostGroup) sums[(kv_head + k) * kMostGroup + lane] = {page[k].shift, page[k].sum};
      }
    }
  }
  static_assert(kPieceHeads == 2 && kLaneTokens == 8);

  // One warp, between barriers: the unit's sums from its pages', in a fixed order. A lane takes a head.
  __device__ void join_pages(std::int64_t row, std::int32_t unit) {
    const int heads = kv_heads * kMostGroup;
    if (lane >= heads) return;
    const int pages = kWarps * work.warp_pages;
    const float2* const sums = shared.page_sums + lane;
    float largest = -INFINITY;
#pragma unroll 16
    for (int i = 0; i < pages; ++i) largest = fmaxf(largest, sums[i * heads].x);
    const float shift = finite_shift(largest);
    float sum = 0.0F;
#pragma unroll 16
    for (int i = 0; i < pages; ++i) sum = fmaf(sums[i * heads].y, exp2_fast(sums[i * heads].x - shift), sum);
    const int head = lane / kMostGroup * group + lane % kMostGroup;
    if (lane % kMostGroup < group) __stcg(work.sums + (row * params.heads + head) * work.units + unit, {largest, sum});
  }

  // One warp, whose stores of `units` sums all other blocks may read then; back when all units of the row are there.
  __device__ void wait_for_row(std::int64_t row, std::int32_t mine, std::int32_t all) {
    __syncwarp();
    if (lane == 0) {
      add_release(work.arrived + row, static_cast<std::uint32_t>(mine));
      while (load_acquire(work.arrived + row) < static_cast<std::uint32_t>(all)) {
      }
    }
    __syncwarp();
  }

  // All warps, between barriers: heads' totals over the row's units. A lane takes every 32nd unit, ascending, four at a
  // time; then lanes join in a fixed tree.
  __device__ void join_units(const QueryRecord<kRank>* queries, std::int64_t row, std::int32_t units) {
    for (int head = warp; head < params.heads; head += kWarps) {
      const float2* const sums = work.sums + (row * params.heads + head) * work.units;
      float2 total = {-INFINITY, 0.0F};
      for (std::int32_t base = 0; base < units; base += 128) {
        float2 some[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int32_t unit = base + 32 * i + lane;
          some[i] = unit < units ? __ldcg(sums + unit) : float2{-INFINITY, 0.0F};
        }
        const float largest = fmaxf(total.x, fmaxf(fmaxf(some[0].x, some[1].x), fmaxf(some[2].x, some[3].x)));
        const float shift = finite_shift(largest);
        float sum = total.y * exp2_fast(total.x - shift);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = fmaf(some[i].y, exp2_fast(some[i].x - shift), sum);
        total = {largest, sum};
      }
      float largest = total.x;
      for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
      float sum = total.y * exp2_fast(total.x - finite_shift(largest));
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      const int kv_head = head / group;
      const int of_group = head % group;
      if (lane == 0) {
        const float all = sum * static_cast<float>(params.heads);
        const float shift = all > 0.0F ? largest + __log2f(all) : kNothing;
        shared.head_totals[kv_head * kMostGroup + of_group] = {queries[kv_head].units[of_group], shift};
      }
    }
  }

  // From the logits that the warp keeps. `tokens`: of the row from this page on, at least 1; `scores`: of the page.
  __device__ void store_scores(int of_warp, std::int64_t tokens, float* scores) {
    float sums[kLaneTokens] = {};
    const float4* kept = &shared.logits[warp][of_warp * kv_heads][0][lane];
    const float2* totals = shared.head_totals + lane % kMostGroup;
#pragma unroll 2
    for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const float2 total = *totals;
      const float4 a = kept[0];
      const float4 b = kept[32];
      const float logits[kLaneTokens] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) sums[i] += exp2_fast(fmaf(logits[i], total.x, -total.y));
      kept += 64;
      totals += kMostGroup;
    }
    // Over the four lanes of a token; lane p stores the tokens 8 p and 8 (p + 4) further.
#pragma unroll
    for (float& sum : sums) {
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
    }
#pragma unroll
    for (int i = 0; i < kLaneTokens; ++i) {
      const int token = lane / 4 + 8 * i;
      if (lane % 4 == i % 4 && token < tokens) scores[token] = sums[i];
    }
  }

  __device__ void run(std::int32_t total) {
    const ScoredPages& rows = params.rows;
    const auto grid = static_cast<std::int32_t>(gridDim.x);
    const std::int64_t unit_tokens = std::int64_t{kWarps} * work.warp_pages * kPageTokens;
    const auto next_row = [&](std::int64_t from, std::int32_t unit) {
      while (shared.units.begin[from + 1] <= unit) ++from;
      return from;
    };
    std::int32_t unit = static_cast<std::int32_t>(blockIdx.x);
    if (unit >= total) return;
    std::int64_t row = next_row(0, unit);
    int buffer = 0;
    load_queries(row, buffer, 0);
    for (int i = static_cast<int>(threadIdx.x); i < kv_heads * kMostGroup; i += kThreads) {
      shared.head_totals[i] = {0.0F, kNothing};
    }
    __syncthreads();
    while (true) {
      const std::int64_t length = rows.lengths[row];
      const auto row_begin = static_cast<std::int32_t>(shared.units.begin[row]);
      const auto row_units = static_cast<std::int32_t>(shared.units.begin[row + 1]) - row_begin;
      const std::int32_t first = unit - row_begin;
      const std::int32_t last = first + (row_units - 1 - first) / grid * grid;
      const QueryRecord<kRank>* const queries = shared.queries[buffer];
      const auto first_token = [&](std::int32_t of_row, int of_warp) {
        return of_row * unit_tokens + (warp * work.warp_pages + of_warp) * std::int64_t{kPageTokens};
      };
      for (std::int32_t of_row = first;; of_row += grid) {
        for (int of_warp = 0; of_warp < work.warp_pages; ++of_warp) {
          make_logits(queries, of_warp, length - first_token(of_row, of_warp));
        }
        __syncthreads();
        if (warp == 0) join_pages(row, of_row);
        if (of_row == last) break;
        __syncthreads();
      }
      unit = row_begin + last + grid;
      const std::int64_t following = unit < total ? next_row(row, unit) : -1;
      if (warp == 0) {
        wait_for_row(row, (last - first) / grid + 1, row_units);
      } else if (following >= 0) {
        load_queries(following, buffer ^ 1, 32);
      }
      __syncthreads();
      join_units(queries, row, row_units);
      __syncthreads();
      for (std::int32_t of_row = last;; of_row -= grid) {
        for (int of_warp = 0; of_warp < work.warp_pages; ++of_warp) {
          const std::int64_t token = first_token(of_row, of_warp);
          if (of_row != last) make_logits(queries, of_warp, length - token);
          if (token < length) store_scores(of_warp, length - token, rows.scores + row * rows.stride + token);
        }
        if (of_row == first) break;
      }
      if (following < 0) return;
      row = following;
      buffer ^= 1;
    }
  }
};

template <int kRank>
__global__ void __launch_bounds__(kThreads, 1)
    one_read_kernel(const LowRankScoresDeviceParams params, const OneReadWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kRank>*>(memory);
  if (threadIdx.x < kWarps * kStages) init_copy_barrier(&shared.filled[0][0] + threadIdx.x);
  let_next_kernel_start();
  // Everything but the queries was there before the projection let this kernel start. Not through L1, which may hold
  // older values until the wait.
  const ScoredPages& rows = params.rows;
  const int unit_pages = kWarps * work.warp_pages;
  count_units(shared.units, rows.rows, [&](std::int64_t row) {
    const std::int64_t length = __ldcg(rows.lengths + row);
    const bool scored = rows.k == nullptr || length > __ldcg(rows.k + row);
    const std::int64_t pages = scored ? pages_for_tokens(length) : 0;
    shared.row_pages[row] = static_cast<std::int32_t>(pages);
    return ceil_div(pages, unit_pages);
  });
  const auto total = static_cast<std::int32_t>(shared.units.begin[rows.rows]);
  KeyStream<kRank> keys{.shared = shared,
                        .rows = rows,
                        .ahead = {.units = shared.units,
                                  .row_pages = shared.row_pages,
                                  .warp_pages = work.warp_pages,
                                  .total = total,
                                  .unit = static_cast<std::int32_t>(blockIdx.x)},
                        .page_bytes = rows.geometry.page_bytes(),
                        .page_pieces = rows.geometry.kv_heads / kPieceHeads};
  keys.begin();
  wait_for_kernels_before();
  Block<kRank>{.shared = shared, .params = params, .work = work, .keys = keys}.run(total);
}

OneReadWork divide(const LowRankScoresDeviceParams& params) {
  const ScoredPages& rows = params.rows;
  const std::int64_t rank = rows.geometry.rank;
  OneReadWork work;
  work.warp_pages = kSlots / rows.geometry.kv_heads;
  work.units = ceil_div(pages_for_tokens(rows.max_length), kWarps * work.warp_pages);
  work.queries = params.workspace;
  const auto records = static_cast<std::size_t>(rows.rows * rows.geometry.kv_heads);
  const std::size_t record_bytes = rank == 16 ? sizeof(QueryRecord<16>) : sizeof(QueryRecord<32>);
  work.sums = reinterpret_cast<float2*>(static_cast<std::byte*>(params.workspace) + records * record_bytes);
  work.arrived = reinterpret_cast<std::uint32_t*>(work.sums + rows.rows * params.heads * work.units);
  return work;
}

template <int kRank>
void launch(const LowRankScoresDeviceParams& params, Stream stream) {
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(one_read_kernel<kRank>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Shared<kRank>))));
    return true;
  }();
  static_cast<void>(ready);
  const OneReadWork work = divide(params);
  const std::int64_t rows = params.rows.rows;
  launch_dependent(project_kernel<kRank>,
                   dim3(static_cast<unsigned>(rows), static_cast<unsigned>(params.rows.geometry.kv_heads)),
                   kProjectThreads, 0, 0, stream, params, work);
  const std::int64_t wanted = params.grid_blocks > 0 ? params.grid_blocks : rows * work.units;
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, launch_limits().multiprocessors));
  launch_dependent_together(one_read_kernel<kRank>, blocks, kThreads, sizeof(Shared<kRank>), stream, params, work);
}

}  // namespace

bool low_rank_one_read_fits(const LowRankScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  const LaunchLimits& limits = launch_limits();
  return limits.hopper && limits.shared_bytes >= static_cast<int>(sizeof(Shared<32>)) &&
         (geometry.rank == 16 || geometry.rank == 32) && geometry.kv_heads % kPieceHeads == 0 &&
         geometry.kv_heads <= kMostKvHeads && params.heads / geometry.kv_heads <= kMostGroup;
}

std::int64_t low_rank_one_read_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t heads) {
  const std::int64_t units = ceil_div(pages_for_tokens(max_length), kWarps);
  return rows * (heads * (static_cast<std::int64_t>(sizeof(QueryRecord<32>)) + units * 8) + 4);
}

void launch_low_rank_one_read(const LowRankScoresDeviceParams& params, Stream stream) {
  if (params.rows.geometry.rank == 16) {
    launch<16>(params, stream);
  } else {
    launch<32>(params, stream);
  }
}

}  // namespace hotset::kernels::cuda
