// Exact top-k by radix select. A row is shared by the blocks of a cluster, whose histograms meet in distributed shared
// memory: one launch, no workspace, no global counter. Before Hopper one block takes the row.
//
// 1. Each warp takes a contiguous segment of the row in groups of four scores, turns them into order keys and counts
//    their highest 13 bits (so many that scores seldom crowd into one bin); the keys stay in shared memory when they
//    fit.
// 2. Every block finds the digit of the wanted-th key over all blocks' histograms: first among sums of 32 bins, then
//    among the 32 bins of one sum, so that little is read from other blocks. Twice more for the next 10 and 9 bits,
//    among the keys that share the digits found; it ends early when a whole bin is wanted.
// 3. Warps count keys above and at the threshold; prefix sums over warps and blocks give each warp its place, and it
//    writes its positions in ascending order.
// Counts are integers, so no order of execution shows.
#include <cooperative_groups.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/top_k.h"

namespace hotset::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 16;
constexpr int kFirstBits = 13, kSecondBits = 10, kThirdBits = 9;
constexpr int kSumBins = 32;               // fine bins of a sum
constexpr int kStepBytes = kThreads * 16;  // keys of one step of all warps of a block
constexpr int kFewSteps = 1;               // fewer blocks to a row than take more steps
constexpr int kLoads = 4;                  // of a thread on their way together
constexpr unsigned kAll = 0xffffffffU;

// A block's counts of one digit, and sums of 32 of them. Other blocks read both.
template <int kBits>
struct Histogram {
  static constexpr int kBins = 1 << kBits;
  static constexpr int kSums = kBins / kSumBins;
  std::uint32_t bins[kBins];
  std::uint32_t sums[kSums];
};

struct alignas(16) Shared {  // the keys that are kept lie behind it
  Histogram<kFirstBits> first;
  Histogram<kSecondBits> second;
  Histogram<kThirdBits> third;
  std::uint32_t gathered[kMostBlocks * Histogram<kFirstBits>::kSums];
  std::uint32_t warp_sums[kWarps];
  std::uint32_t warp_above[kWarps];
  std::uint32_t warp_equal[kWarps];
  uint2 block_counts;  // above, equal; read by the other blocks
  std::uint32_t sum;   // the sum that has the digit, and what is wanted of it
  std::uint32_t sum_left;
  std::uint32_t digit;
  std::uint32_t left;
  std::uint32_t in_bin;
};
constexpr int kHistogramWords = static_cast<int>(
    (sizeof(Histogram<kFirstBits>) + sizeof(Histogram<kSecondBits>) + sizeof(Histogram<kThirdBits>)) / 4);

// The cluster's view; a cluster of one where there are none.
struct Team {
  int rank;
  int size;

  __device__ static Team make() {
#if __CUDA_ARCH__ >= 900
    return {static_cast<int>(cg::this_cluster().block_rank()), static_cast<int>(cg::this_cluster().num_blocks())};
#else
    return {0, 1};
#endif
  }
  // Of all blocks; orders shared memory among them.
  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    cg::this_cluster().sync();
#else
    __syncthreads();
#endif
  }
  // sync() in two parts: what lies between them touches no other block's memory.
  __device__ void arrive() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
  }
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  template <class T>
  __device__ const T* of_block(T* mine, [[maybe_unused]] int block) const {
#if __CUDA_ARCH__ >= 900
    return cg::this_cluster().map_shared_rank(mine, block);
#else
    return mine;
#endif
  }
};

// One row's candidates [first, last) as groups of four scores on 16-byte boundaries. Group 0 may begin before `first`.
struct Candidates {
  const float* base;   // of group 0, 16-byte aligned
  std::int32_t begin;  // candidates lie in [begin, end) relative to base
  std::int32_t end;
  std::int32_t position;                // of base[0] in the row; may be negative
  std::int32_t group_begin, group_end;  // of this warp

  __device__ uint4 load(std::int32_t group) const {
    const std::int32_t at = group * 4;
    if (at >= begin && at + 4 <= end) {
      const float4 scores = *reinterpret_cast<const float4*>(base + at);
      return {order_key(scores.x), order_key(scores.y), order_key(scores.z), order_key(scores.w)};
    }
    const auto one = [&](std::int32_t i) { return i >= begin && i < end ? order_key(base[i]) : 0U; };
    return {one(at), one(at + 1), one(at + 2), one(at + 3)};
  }
};

struct Threshold {
  std::uint32_t key;    // taken: above it,
  std::uint32_t equal;  // and the first so many at it
};

__device__ __forceinline__ std::uint32_t inclusive_sum(std::uint32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Called after the block's counts are complete and before the blocks meet.
template <int kBits>
__device__ void add_up_bins(Histogram<kBits>& histogram) {
  constexpr int kPerThread = std::max(1, Histogram<kBits>::kBins / kThreads);
  constexpr int kLanes = kSumBins / kPerThread;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread * kPerThread >= Histogram<kBits>::kBins) return;  // whole warps
  std::uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) sum += histogram.bins[thread * kPerThread + i];
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
  if (thread % kLanes == 0) histogram.sums[thread / kLanes] = sum;
}

// The digit of the wanted-th largest key, given histograms of all blocks; `left` becomes what is wanted in its bin.
template <int kBits>
__device__ void find_digit(Shared& shared, const Team& team, Histogram<kBits>& histogram, std::uint32_t left) {
  constexpr int kSums = Histogram<kBits>::kSums;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int i = thread; i < team.size * (kSums / 4); i += kThreads) {
    const auto* const sums = reinterpret_cast<const uint4*>(team.of_block(histogram.sums, i / (kSums / 4)));
    reinterpret_cast<uint4*>(shared.gathered)[i] = sums[i % (kSums / 4)];
  }
  __syncthreads();
  constexpr int kWarpsOfSums = (kSums + 31) / 32;
  std::uint32_t mine = 0;
  std::uint32_t sum = 0;
  if (thread < kWarpsOfSums * 32) {  // descending: thread 0 has the highest sum
    if (thread < kSums) {
#pragma unroll 4
      for (int block = 0; block < team.size; ++block) mine += shared.gathered[block * kSums + kSums - 1 - thread];
    }
    sum = inclusive_sum(mine);
    if (lane == 31) shared.warp_sums[thread / 32] = sum;
  }
  __syncthreads();
  if (thread < kSums) {
    std::uint32_t before = sum - mine;
    for (int warp = 0; warp < thread / 32; ++warp) before += shared.warp_sums[warp];
    if (before < left && left <= before + mine) {
      shared.sum = static_cast<std::uint32_t>(kSums - 1 - thread);
      shared.sum_left = left - before;
    }
  }
  __syncthreads();
  const auto first = static_cast<int>(shared.sum) * kSumBins;
  if (thread < team.size * 32) shared.gathered[thread] = team.of_block(histogram.bins, thread / 32)[first + lane];
  __syncthreads();
  if (thread < 32) {
    std::uint32_t count = 0;
#pragma unroll 4
    for (int block = 0; block < team.size; ++block) count += shared.gathered[block * 32 + 31 - lane];
    const std::uint32_t through = inclusive_sum(count);
    const std::uint32_t wanted = shared.sum_left;
    if (through - count < wanted && wanted <= through) {
      shared.digit = static_cast<std::uint32_t>(first + 31 - lane);
      shared.left = wanted - (through - count);
      shared.in_bin = count;
    }
  }
  __syncthreads();
}

template <bool kKept>
__device__ uint4 keys_of(const Candidates& candidates, const uint4* kept, std::int32_t group) {
  if constexpr (kKept) return kept[(group - candidates.group_begin) / 32 * kThreads + static_cast<int>(threadIdx.x)];
  return candidates.load(group);
}

// Counts the digit that ends at bit `shift` of the keys that begin with `prefix`, and finds it over all blocks.
template <bool kKept, int kBits>
__device__ void next_digit(Shared& shared, const Team& team, const Candidates& candidates, const uint4* kept,
                           Histogram<kBits>& histogram, std::uint32_t prefix, int shift) {
  const std::uint32_t left = shared.left;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int32_t group = candidates.group_begin + lane; group < candidates.group_end; group += 32) {
    const uint4 keys = keys_of<kKept>(candidates, kept, group);
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      if (key >> (shift + kBits) == prefix) {
        atomicAdd(histogram.bins + (key >> shift & (Histogram<kBits>::kBins - 1U)), 1U);
      }
    }
  }
  __syncthreads();
  add_up_bins(histogram);
  team.sync();
  find_digit(shared, team, histogram, left);
}

template <bool kKept>
__device__ Threshold find_threshold(Shared& shared, const Team& team, const Candidates& candidates, uint4* kept,
                                    std::uint32_t wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int32_t start = candidates.group_begin; start < candidates.group_end; start += 32 * kLoads) {
    uint4 keys[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int32_t group = start + 32 * i + thread % 32;
      keys[i] = group < candidates.group_end ? candidates.load(group) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int32_t group = start + 32 * i + thread % 32;
      if (group >= candidates.group_end) break;
      if constexpr (kKept) kept[(group - candidates.group_begin) / 32 * kThreads + thread] = keys[i];
      for (const std::uint32_t key : {keys[i].x, keys[i].y, keys[i].z, keys[i].w}) {
        if (key != 0) atomicAdd(shared.first.bins + (key >> (32 - kFirstBits)), 1U);
      }
    }
  }
  __syncthreads();
  add_up_bins(shared.first);
  team.sync();
  find_digit(shared, team, shared.first, wanted);
  std::uint32_t prefix = shared.digit;
  int shift = kSecondBits + kThirdBits;
  if (shared.in_bin != shared.left) {  // else all keys that begin so are wanted
    shift = kThirdBits;
    next_digit<kKept>(shared, team, candidates, kept, shared.second, prefix, shift);
    prefix = prefix << kSecondBits | shared.digit;
  }
  if (shared.in_bin != shared.left) {
    shift = 0;
    next_digit<kKept>(shared, team, candidates, kept, shared.third, prefix, shift);
    prefix = prefix << kThirdBits | shared.digit;
  }
  if (shared.in_bin != shared.left) return {prefix, shared.left};
  return {(prefix << shift) - 1U, 0};  // no score gives key 0, so this does not wrap
}

__device__ std::uint32_t warp_sum(std::uint32_t value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

// Writes the taken positions, ascending; `out` is where the first of them goes.
template <bool kKept>
__device__ void gather(Shared& shared, const Team& team, const Candidates& candidates, const uint4* kept,
                       const Threshold& threshold, std::int32_t* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  for (std::int32_t group = candidates.group_begin + lane; group < candidates.group_end; group += 32) {
    const uint4 keys = keys_of<kKept>(candidates, kept, group);
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      above += key > threshold.key ? 1U : 0U;
      equal += key == threshold.key ? 1U : 0U;
    }
  }
  above = warp_sum(above);
  equal = warp_sum(equal);
  if (lane == 0) {
    shared.warp_above[warp] = above;
    shared.warp_equal[warp] = equal;
  }
  __syncthreads();
  // Every warp adds up the block's counts: those of all warps, and those of the warps before it.
  const std::uint32_t other_above = shared.warp_above[lane];
  const std::uint32_t other_equal = shared.warp_equal[lane];
  const std::uint32_t total_above = warp_sum(other_above);
  const std::uint32_t total_equal = warp_sum(other_equal);
  above = warp_sum(lane < warp ? other_above : 0U);
  equal = warp_sum(lane < warp ? other_equal : 0U);
  if (threadIdx.x == 0) shared.block_counts = {total_above, total_equal};
  team.sync();
  uint2 others = {0, 0};
  if (lane < team.rank) others = *team.of_block(&shared.block_counts, lane);
  above += warp_sum(others.x);
  equal += warp_sum(others.y);
  team.arrive();

  // `above` and `equal` count the keys before this warp's next 128.
  for (std::int32_t start = candidates.group_begin; start < candidates.group_end; start += 32) {
    const std::int32_t group = start + lane;
    const uint4 keys = group < candidates.group_end ? keys_of<kKept>(candidates, kept, group) : uint4{0, 0, 0, 0};
    std::uint32_t mine = 0;  // above in the low half, equal in the high half
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      mine += (key > threshold.key ? 1U : 0U) + (key == threshold.key ? 0x10000U : 0U);
    }
    if (__ballot_sync(kAll, mine != 0) == 0) continue;
    std::uint32_t sum = mine;
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    std::uint32_t my_above = above + ((sum - mine) & 0xffffU);
    std::uint32_t my_equal = equal + ((sum - mine) >> 16);
    std::int32_t position = candidates.position + 4 * group;
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      if (key > threshold.key) {
        out[my_above + min(my_equal, threshold.equal)] = position;
        ++my_above;
      } else if (key == threshold.key) {
        if (my_equal < threshold.equal) out[my_above + my_equal] = position;
        ++my_equal;
      }
      ++position;
    }
    const std::uint32_t all = __shfl_sync(kAll, sum, 31);
    above += all & 0xffffU;
    equal += all >> 16;
  }
}

__device__ Candidates candidates_of(const float* row, std::int64_t first, std::int64_t last, const Team& team) {
  const auto address = reinterpret_cast<std::uintptr_t>(row + first);
  const auto before = static_cast<std::int32_t>(address / sizeof(float) % 4);
  Candidates candidates;
  candidates.base = row + first - before;
  candidates.begin = before;
  candidates.end = before + static_cast<std::int32_t>(last - first);
  candidates.position = static_cast<std::int32_t>(first) - before;
  const std::int32_t groups = (candidates.end + 3) / 4;
  const std::int32_t warps = team.size * kWarps;
  const std::int32_t warp = team.rank * kWarps + static_cast<std::int32_t>(threadIdx.x) / 32;
  const std::int32_t per_warp = ((groups + 31) / 32 + warps - 1) / warps * 32;
  candidates.group_begin = min(warp * per_warp, groups);
  candidates.group_end = min(candidates.group_begin + per_warp, groups);
  return candidates;
}

template <bool kKept>
__global__ void __launch_bounds__(kThreads, 1) top_k_kernel(const TopKDeviceParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  uint4* const kept = reinterpret_cast<uint4*>(memory + sizeof(Shared));
  const Team team = Team::make();
  for (int i = static_cast<int>(threadIdx.x); i < kHistogramWords / 4; i += kThreads) {
    reinterpret_cast<uint4*>(memory)[i] = {0, 0, 0, 0};
  }
  __syncthreads();
  let_next_kernel_start();
  wait_for_kernels_before();
  const std::int64_t row = blockIdx.x / team.size;
  const std::int64_t length = params.lengths[row];
  const std::int64_t first = min(params.first != nullptr ? params.first[row] : 0, length);
  const std::int64_t last = min(max(params.last != nullptr ? params.last[row] : length, first), length);
  const std::int64_t total = min(max(static_cast<std::int64_t>(params.k[row]), first + length - last), length);
  const std::int64_t wanted = total - first - (length - last);
  std::int32_t* const out = params.out + row * params.out_stride;
  const std::int64_t thread = team.rank * kThreads + static_cast<std::int64_t>(threadIdx.x);
  const std::int64_t threads = std::int64_t{team.size} * kThreads;
  if (thread == 0) params.counts[row] = static_cast<std::int32_t>(total);
  for (std::int64_t i = total + thread; i < params.out_stride; i += threads) out[i] = -1;
  if (total == length) {
    for (std::int64_t i = thread; i < length; i += threads) out[i] = static_cast<std::int32_t>(i);
    return;
  }
  for (std::int64_t i = thread; i < first; i += threads) out[i] = static_cast<std::int32_t>(i);
  for (std::int64_t i = thread; i < length - last; i += threads) {
    out[first + wanted + i] = static_cast<std::int32_t>(last + i);
  }
  if (wanted <= 0) return;
  const Candidates candidates = candidates_of(params.scores + row * params.stride, first, last, team);
  const Threshold threshold = find_threshold<kKept>(shared, team, candidates, kept, static_cast<std::uint32_t>(wanted));
  gather<kKept>(shared, team, candidates, kept, threshold, out + first);
  team.wait();  // no block leaves while another reads its shared memory
}

// Lets both kernels have all shared memory, and asks how many clusters of each size run at once then: [size].
// Clusters of 16 are an extra of the device, for which a part of it needs 16 multiprocessors.
std::array<int, kMostBlocks + 1> clusters_at_once() {
  const LaunchLimits& limits = launch_limits();
  std::array<int, kMostBlocks + 1> most = {};
  most[1] = limits.multiprocessors;
  for (const auto kernel : {top_k_kernel<true>, top_k_kernel<false>}) {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes));
    if (!limits.hopper) continue;
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int blocks = 2; blocks <= kMostBlocks; blocks *= 2) {
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(blocks));
      config.blockDim = dim3(kThreads);
      config.dynamicSmemBytes = static_cast<std::size_t>(limits.shared_bytes);
      config.attrs = &cluster;
      config.numAttrs = 1;
      HOTSET_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&most[static_cast<std::size_t>(blocks)], kernel, &config));
    }
  }
  return most;
}

// Steps of 32 groups that a warp takes of a row. Three scores more than there are may lie in the groups.
std::int64_t steps_of(std::int64_t max_length, int blocks) {
  return ceil_div(ceil_div(ceil_div(max_length + 3, 4), 32), std::int64_t{blocks} * kWarps);
}

}  // namespace

void launch_top_k(const TopKDeviceParams& params, Stream stream) {
  if (params.rows <= 0) return;
  HS_CHECK(params.max_length >= 0 && params.max_length <= std::int64_t{1} << 30, "a row is too long");
  const LaunchLimits& limits = launch_limits();
  static const std::array<int, kMostBlocks + 1> at_once = clusters_at_once();
  const int most = !limits.hopper ? 1 : at_once[16] > 0 ? 16 : 8;
  const std::int64_t most_steps = (limits.shared_bytes - static_cast<std::int64_t>(sizeof(Shared))) / kStepBytes;
  int blocks = params.blocks_per_row;
  if (blocks == 0) {
    // The most for which all rows run at once, fewer for short rows; more where the keys stay in shared memory then.
    blocks = most;
    while (blocks > 1 && at_once[static_cast<std::size_t>(blocks)] < params.rows) blocks /= 2;
    while (blocks < most && steps_of(params.max_length, blocks) > most_steps &&
           steps_of(params.max_length, most) <= most_steps) {
      blocks *= 2;
    }
    while (blocks > 1 && steps_of(params.max_length, blocks / 2) <= kFewSteps) blocks /= 2;
  }
  blocks = std::min(blocks, most);
  HS_CHECK(blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8 || blocks == 16, "no such number of blocks");
  const std::int64_t steps = steps_of(params.max_length, blocks);
  const bool kept = steps <= most_steps;

  const std::size_t bytes = sizeof(Shared) + (kept ? static_cast<std::size_t>(steps * kStepBytes) : 0);
  launch_dependent(kept ? top_k_kernel<true> : top_k_kernel<false>, dim3(static_cast<unsigned>(params.rows * blocks)),
                   kThreads, bytes, blocks, stream, params);
}

}  // namespace hotset::kernels::cuda
