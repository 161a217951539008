// The form of low-rank scores that reads keys once (low_rank_codes.cuh): every block keeps the powers of its tokens in
// shared memory until all blocks have added to the row's sums (low_rank_sums.cuh).
//
// Unit g of the list over all rows belongs to block g modulo the grid; every block goes through its units in order. A
// warp takes a page of a unit (several where there are at most 4 slices of query heads). For each row:
// 1. powers of the unit and each page's sum of them; one warp joins the pages and hands the unit's sum on;
// 2. a wait for the sums of all units of the row, which are joined in a fixed tree;
// 3. scores from the powers that were kept.
// Of a row that has more units than there are blocks, a block keeps the last unit and makes the powers of its others
// again, from the same instructions. More slices than a block has room for go in two launches, each of half of the KV
// heads, of which the second adds its scores. Where all units together are at most a quarter or half of the grid, each
// is spread over four or two blocks (low_rank_spread.cuh). Units and their quarters are fixed by position, so neither
// the grid nor other rows show in a score.
//
// Blocks wait for one another: the launch is cooperative, so all of them run at once. They finish as they wait for a
// row only after their own part of it, and rows come in the same order everywhere.
#include <algorithm>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/low_rank_codes.cuh"
#include "kernels/cuda/selection/low_rank_key_stream.cuh"
#include "kernels/cuda/selection/low_rank_project.cuh"
#include "kernels/cuda/selection/low_rank_spread.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kMostLaunches = 2;  // that KV heads are divided among
constexpr float kLeastUnit = 0x1p-60F;
constexpr float kMostUnit = 0x1p40F;
constexpr std::int32_t kNanBits = 0x7fc00000;

// Block: (row, slice of heads), of all launches. Sums as those of project_heads(). `work`: of the first launch.
template <int kRank>
__global__ void __launch_bounds__(kProjectThreads)
    project_kernel(const LowRankScoresDeviceParams params, const OneReadWork work) {
  __shared__ float sums[kProjectWarps][kSliceHeads * kRank];
  __shared__ float projected[kSliceHeads * kRank];
  constexpr int kChannels = 8;  // of a warp at a time
  constexpr int kLaneOutputs = kSliceHeads * kRank / 32;
  const std::int64_t row = blockIdx.x;
  const int slice = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const HeadSlices slices(params.heads, params.rows.geometry.kv_heads);
  const int heads = slices.heads(slice);
  const int dim = params.rows.geometry.dim;
  const int begin = dim * warp / kProjectWarps;
  const int end = dim * (warp + 1) / kProjectWarps;
  const float* const column = params.basis + std::int64_t{slice / slices.of_group} * dim * kRank + lane % kRank;
  // No kernel writes the basis.
  float basis[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) basis[c] = begin + c < end ? column[(begin + c) * kRank] : 0.0F;
  wait_for_kernels_before();
  // Behind the wait, never before it: the scores' blocks copy keys before a wait of their own, and only this order says
  // that the kernel that wrote the newest keys is done by then.
  let_next_kernel_start();
  const std::int64_t length = scored_length(params.rows, row);
  if (length == 0) return;
  const float* const q =
      params.q + query_row(params.rows, row) * params.q_stride + std::int64_t{slices.first_head(slice)} * dim;
  float mine[kLaneOutputs] = {};  // of outputs 32 j + lane of [head of the slice][channel of the basis]
  for (int base = begin; base < end; base += kChannels) {
    float x[kChannels][kLaneOutputs];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (base != begin) basis[c] = base + c < end ? column[(base + c) * kRank] : 0.0F;
#pragma unroll
      for (int j = 0; j < kLaneOutputs; ++j) {
        const int head = min((32 * j + lane) / kRank, heads - 1);
        x[c][j] = base + c < end ? q[head * dim + base + c] : 0.0F;
      }
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int j = 0; j < kLaneOutputs; ++j) mine[j] = fmaf(x[c][j], basis[c], mine[j]);
    }
  }
  const auto pages = static_cast<std::uint32_t>(pages_for_tokens(length));
  const std::uint32_t unit_pages = kOneReadWarps * static_cast<std::uint32_t>(work.warp_pages);
  const auto units = static_cast<std::int32_t>((pages + unit_pages - 1) / unit_pages);
  const int lines = units <= kMostSpreadUnits ? kQuarters : 1;  // of a unit
#pragma unroll 1
  for (std::int32_t unit = slice % work.slices * kProjectWarps + warp; unit < units;
       unit += work.slices * kProjectWarps) {
    std::uint32_t* const line = work.line(row, unit, 0) + slice / work.slices * work.sum_words(params.rows.rows);
    for (int i = 0; i < lines; ++i) line[i * kPaddedHeads + lane] = kAbsent;
  }
#pragma unroll
  for (int j = 0; j < kLaneOutputs; ++j) sums[warp][32 * j + lane] = mine[j];
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < heads * kRank) {
    float sum = 0.0F;
#pragma unroll
    for (int part = 0; part < kProjectWarps; ++part) sum += sums[part][i];
    projected[i] = sum * (params.scale * kLog2E);
  }
  __syncthreads();
  if (warp != 0) return;
  QueryPart<kRank> query;
  query.load(projected, heads);
  auto& record = static_cast<QueryRecord<kRank>*>(work.queries)[row * slices.count() + slice];
#pragma unroll
  for (int operand = 0; operand < Codes<kRank>::kOperands; ++operand) {
    record.operands[lane][operand] = query.operands[operand];
  }
  const int low_start = __shfl_down_sync(kAllLanes, query.start, 4);  // of the column of low digits
  if (lane % 8 != 0) return;
  const int low = isnan(query.scale) ? kNanBits : low_start;
  record.starts[lane / 8] = {query.start, low, query.start, low};
  record.units[lane / 8] = fminf(fmaxf(query.scale, kLeastUnit), kMostUnit);
}

// A block's work on its units.
template <int kRank, bool kSliced>
struct Block : OneReadBlock<kRank, kSliced> {
  using Base = OneReadBlock<kRank, kSliced>;
  using Base::kv_heads, Base::lane, Base::params, Base::shared, Base::slices, Base::warp, Base::work;
  KeyStream<kRank, kOneReadWarps>& keys;

  __device__ Block(OneReadShared<kRank>& memory, const LowRankScoresDeviceParams& p, const OneReadWork& w,
                   KeyStream<kRank, kOneReadWarps>& stream)
      : Base{memory, p, w}, keys(stream) {}

  // Powers of a page of the warp and their sums; `tokens`: of the row from this page on.
  __device__ void make_page(const QueryRecord<kRank>* queries, int page, std::int64_t tokens) {
    __syncwarp();  // other lanes are done with the sums of the page before
    if (tokens <= 0) {
      if (lane < slices * kSliceHeads) this->sums_of(page)[lane] = {-INFINITY, 0.0F};
    } else {
#pragma unroll 1
      for (int kv_head = 0; kv_head < kv_heads; kv_head += kPieceHeads) {
        keys.wait();
        this->make_powers(queries, page, kv_head, static_cast<int>(min(tokens, std::int64_t{kPageTokens})),
                          [&](PagePart<kRank>(&parts)[kPieceHeads], bool last) {
                            keys.load(parts);
                            if (last) keys.drop();
                          });
      }
    }
    __syncwarp();
  }

  // One warp, after a barrier: the unit's sum for all blocks.
  __device__ void hand_on_unit(std::int64_t row, std::int32_t unit, std::int32_t row_units) {
    if (row_units > kMostSpreadUnits) {
      store_sum(work.line(row, unit, 0) + lane, this->template pages_sum<kOneReadWarps>(0));
      return;
    }
    float quarters[kQuarters];
#pragma unroll
    for (int i = 0; i < kQuarters; ++i)
      quarters[i] = this->quarter_sum(i * kOneReadWarps / kQuarters * work.warp_pages);
    store_sum(work.line(row, unit, 0) + lane, this->unit_sum(quarters));
  }

  // From the powers that the warp keeps. `shift`: row_shift(); `tokens`: of the row from this page on, at least 1;
  // `scores`: of the page.
  __device__ void store_scores(int page, float shift, std::int64_t tokens, float* scores) {
    float sums[kLaneTokens] = {};
    const float4* kept = &shared.powers[page * slices][0][lane];
#pragma unroll 2
    for (int slice = 0; slice < slices; ++slice) {
      const float factor = this->factor_of(page, slice, shift);
      const float4 a = kept[0];
      const float4 b = kept[32];
      const float powers[kLaneTokens] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) sums[i] = fmaf(powers[i], factor, sums[i]);
      kept += 64;
    }
    // Over the four lanes of a token, after which lane p has tokens p and p + 4 of the eight.
    const bool upper = (lane & 2) != 0;
    const bool odd = (lane & 1) != 0;
    float halves[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = i / 2 * 4 + i % 2;
      halves[i] = upper ? sums[at + 2] : sums[at];
      halves[i] += __shfl_xor_sync(kAllLanes, upper ? sums[at] : sums[at + 2], 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float score = odd ? halves[2 * i + 1] : halves[2 * i];
      score += __shfl_xor_sync(kAllLanes, odd ? halves[2 * i] : halves[2 * i + 1], 1);
      const int token = PagePart<kRank>::token(lane % 4 + 4 * i);
      if (token < tokens) this->store_score(scores + token, score);
    }
  }

  __device__ void run(std::int32_t total) {
    const ScoredPages& rows = params.rows;
    const auto grid = static_cast<std::int32_t>(gridDim.x);
    const std::int64_t unit_tokens = std::int64_t{kOneReadWarps} * work.warp_pages * kPageTokens;
    const auto next_row = [&](std::int64_t from, std::int32_t unit) {
      while (shared.row_begin[from + 1] <= unit) ++from;
      return from;
    };
    std::int32_t unit = static_cast<std::int32_t>(blockIdx.x);
    if (unit >= total) return;
    std::int64_t row = next_row(0, unit);
    int buffer = 0;
    this->load_queries(row, buffer);
    __syncthreads();
    while (true) {
      const std::int64_t length = rows.lengths[row];
      const std::int32_t row_begin = shared.row_begin[row];
      const std::int32_t row_units = shared.row_begin[row + 1] - row_begin;
      const std::int32_t first = unit - row_begin;
      const std::int32_t last = first + (row_units - 1 - first) / grid * grid;
      const QueryRecord<kRank>* const queries = shared.queries[buffer];
      const auto first_token = [&](std::int32_t of_row, int page) {
        return of_row * unit_tokens + page * std::int64_t{kPageTokens};
      };
      const int first_page = warp * work.warp_pages;
      for (std::int32_t of_row = first;; of_row += grid) {
        for (int page = first_page; page < first_page + work.warp_pages; ++page) {
          make_page(queries, page, length - first_token(of_row, page));
        }
        __syncthreads();
        if (warp == 0) hand_on_unit(row, of_row, row_units);
        if (of_row == last) break;
        __syncthreads();
      }
      unit = row_begin + last + grid;
      const std::int64_t following = unit < total ? next_row(row, unit) : -1;
      if (following >= 0) this->load_queries(following, buffer ^ 1);
      this->template join_units<8, true>(
          row_units, [&](std::int32_t of_row) { return load_sum(work.line(row, of_row, 0) + lane); });
      __syncthreads();
      const float shift = this->row_shift();
      for (std::int32_t of_row = last;; of_row -= grid) {
        for (int page = first_page; page < first_page + work.warp_pages; ++page) {
          const std::int64_t token = first_token(of_row, page);
          if (of_row != last) make_page(queries, page, length - token);
          if (token < length) store_scores(page, shift, length - token, rows.scores + row * rows.stride + token);
        }
        if (of_row == first) break;
      }
      if (following < 0) return;
      row = following;
      buffer ^= 1;
    }
  }
};

template <int kRank, bool kSliced>
__global__ void __launch_bounds__(kOneReadThreads, 1)
    one_read_kernel(const LowRankScoresDeviceParams params, const OneReadWork work) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<OneReadShared<kRank>*>(memory);
  shared.ring.init();
  let_next_kernel_start();
  // Everything but the queries was there before the projection let this kernel start. Not through L1, which may hold
  // older values until the wait.
  const ScoredPages& rows = params.rows;
  const int unit_pages = kOneReadWarps * work.warp_pages;
  const auto units_of = [&](std::int64_t row) {
    const std::int64_t length = __ldcg(rows.lengths + row);
    const bool scored = rows.k == nullptr || length > __ldcg(rows.k + row);
    const std::int32_t pages = scored ? static_cast<std::int32_t>(pages_for_tokens(length)) : 0;
    shared.row_pages[row] = pages;
    return (pages + unit_pages - 1) / unit_pages;
  };
  if (rows.rows <= 32) {
    if (threadIdx.x < 32) {
      const auto row = static_cast<int>(threadIdx.x);
      std::int32_t units = row < rows.rows ? units_of(row) : 0;
      for (int step = 1; step < 32; step *= 2) {
        const std::int32_t other = __shfl_up_sync(kAllLanes, units, step);
        if (row >= step) units += other;
      }
      if (row < rows.rows) shared.row_begin[row + 1] = units;
      if (row == 0) shared.row_begin[0] = 0;
    }
  } else {
    RowUnits& units = reinterpret_cast<RowUnits&>(shared.powers);  // which come later
    static_assert(sizeof(RowUnits) <= sizeof(shared.powers));
    count_units(units, rows.rows, units_of);
    for (std::int64_t row = threadIdx.x; row <= rows.rows; row += kOneReadThreads) {
      shared.row_begin[row] = static_cast<std::int32_t>(units.begin[row]);
    }
  }
  __syncthreads();
  const std::int32_t total = shared.row_begin[rows.rows];
  if (spread_of(total) > 1) {
    SpreadBlock<kRank, kSliced> block(shared, params, work, total);
    block.start_copies();
    wait_for_kernels_before();
    block.run();
    return;
  }
  KeyStream<kRank, kOneReadWarps> keys{.ring = shared.ring,
                                       .rows = rows,
                                       .ahead = {.begin = shared.row_begin,
                                                 .row_pages = shared.row_pages,
                                                 .warps = kOneReadWarps,
                                                 .warp = static_cast<std::int32_t>(threadIdx.x) / 32,
                                                 .warp_pages = work.warp_pages,
                                                 .total = total,
                                                 .unit = static_cast<std::int32_t>(blockIdx.x)},
                                       .page_bytes = rows.geometry.page_bytes(),
                                       .page_pieces = (kSliced ? work.kv_heads : rows.geometry.kv_heads) / kPieceHeads};
  keys.begin();
  wait_for_kernels_before();
  Block<kRank, kSliced>(shared, params, work, keys).run(total);
}

// KV heads of a launch; 0: there is no division into few launches.
std::int32_t launch_kv_heads(std::int32_t heads, std::int32_t kv_heads) {
  const int of_group = HeadSlices(heads, kv_heads).of_group;
  for (int launches = 1; launches <= kMostLaunches; ++launches) {
    const std::int32_t each = kv_heads / launches;
    if (kv_heads % (launches * kPieceHeads) == 0 && each * of_group <= kLaunchSlices) return each;
  }
  return 0;
}

// Of the first launch.
template <int kRank>
OneReadWork divide(const LowRankScoresDeviceParams& params) {
  const ScoredPages& rows = params.rows;
  const HeadSlices slices(params.heads, rows.geometry.kv_heads);
  OneReadWork work;
  work.row_slices = slices.count();
  work.kv_heads = launch_kv_heads(params.heads, rows.geometry.kv_heads);
  work.slices = work.kv_heads * slices.of_group;
  work.of_group = slices.of_group;
  work.group = slices.group;
  work.adds = false;
  work.warp_pages = kLaunchSlices / work.slices;
  work.units = ceil_div(pages_for_tokens(rows.max_length), kOneReadWarps * work.warp_pages);
  auto* const records = static_cast<QueryRecord<kRank>*>(params.workspace);
  work.queries = records;
  work.sums = reinterpret_cast<std::uint32_t*>(records + rows.rows * work.row_slices);
  return work;
}

template <int kRank, bool kSliced>
void launch(const LowRankScoresDeviceParams& params, Stream stream) {
  constexpr auto kKernel = one_read_kernel<kRank, kSliced>;
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(OneReadShared<kRank>))));
    return true;
  }();
  static_cast<void>(ready);
  OneReadWork work = divide<kRank>(params);
  const std::int64_t rows = params.rows.rows;
  const std::int64_t wanted = params.grid_blocks > 0 ? params.grid_blocks : rows * work.units * kQuarters;
  const std::int64_t most = launch_limits().multiprocessors_beside(params.spared_multiprocessors);
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, most));
  launch_dependent(project_kernel<kRank>, dim3(static_cast<unsigned>(rows), static_cast<unsigned>(work.row_slices)),
                   kProjectThreads, 0, 0, stream, params, work);
  // A launch may copy keys as soon as the one before it has started, and that was behind the kernel that wrote them.
  // All of that one's blocks run by then, so it ends however little room the next one's leave.
  LowRankScoresDeviceParams share = params;
  for (std::int32_t kv_head = 0; kv_head < params.rows.geometry.kv_heads; kv_head += work.kv_heads) {
    launch_dependent_together(kKernel, blocks, kOneReadThreads, sizeof(OneReadShared<kRank>), stream, share, work);
    share.rows.pool += work.kv_heads * params.rows.geometry.low_rank_head_bytes();
    work.queries = static_cast<QueryRecord<kRank>*>(work.queries) + work.slices;
    work.sums += work.sum_words(rows);
    work.adds = true;
  }
}

template <int kRank>
void launch_rank(const LowRankScoresDeviceParams& params, Stream stream) {
  const std::int32_t kv_heads = params.rows.geometry.kv_heads;
  if (params.heads / kv_heads > kSliceHeads || launch_kv_heads(params.heads, kv_heads) < kv_heads) {
    launch<kRank, true>(params, stream);
  } else {
    launch<kRank, false>(params, stream);
  }
}

}  // namespace

bool low_rank_one_read_fits(const LowRankScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  const LaunchLimits& limits = launch_limits();
  return limits.hopper && limits.shared_bytes >= static_cast<int>(sizeof(OneReadShared<32>)) &&
         (geometry.rank == 16 || geometry.rank == 32) && launch_kv_heads(params.heads, geometry.kv_heads) > 0;
}

std::int64_t low_rank_one_read_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t heads) {
  const std::int64_t units = ceil_div(pages_for_tokens(max_length), kOneReadWarps);
  return rows * (heads * static_cast<std::int64_t>(sizeof(QueryRecord<32>)) +
                 kMostLaunches * units * kQuarters * kPaddedHeads * 4);
}

void launch_low_rank_one_read(const LowRankScoresDeviceParams& params, Stream stream) {
  if (params.rows.geometry.rank == 16) {
    launch_rank<16>(params, stream);
  } else {
    launch_rank<32>(params, stream);
  }
}

}  // namespace hotset::kernels::cuda
