// Exact top-k by radix select. A row is shared by the blocks of a cluster, which push what they counted into one
// another's shared memory: one launch, no workspace, no global counter. Blocks of a cluster meet at the start and at
// the end, behind other work. Before Hopper one block takes the row.
//
// 1. Each warp takes a contiguous segment of the row in groups of four scores, turns them into order keys and counts
//    their highest 13 bits (so many that scores seldom crowd into one bin); the keys stay in shared memory when they
//    fit.
// 2. The digit of the wanted-th key is found among sums of 32 bins, then among the 32 bins of one sum. Blocks push a
//    sum to the one that adds it up, which pushes the total to all; bins of one sum they push to all.
// 3. Blocks push the keys that share the digit; every block then finds the remaining bits by itself, and knows how many
//    keys of the blocks before it are taken. Where too many share it, the next 10 and 9 bits are found as the first 13.
//    Either ends early when a whole bin is wanted.
// 4. Warps count keys above and at the threshold; prefix sums over warps and blocks give each warp its place, and it
//    writes its positions in ascending order.
// Counts are integers, so no order of execution shows.
//
// A short row takes as long as its steps that follow one another, each of which costs all warps of a multiprocessor
// their turn: few threads do them faster than many.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/top_k.h"
#include "kernels/cuda/selection/top_k_threshold.cuh"

namespace hotset::kernels::cuda {
namespace top_k {
namespace {

constexpr int kFewSteps = 4;  // of a warp: more blocks or threads to a row beyond

// Writes the taken positions, ascending; `out` is where the first of them goes.
template <bool kKept, class Team>
__device__ void gather(const Team& team, const Candidates& candidates, const uint4* kept, const Threshold& threshold,
                       std::int32_t* out) {
  Shared& shared = team.shared;
  const int lane = lane_of_thread();
  const int warp = warp_of_thread();
  std::uint32_t above = 0;
  std::uint32_t equal = 0;
  for_my_keys<kKept>(candidates, kept, [&](const uint4& keys, std::int32_t) {
#pragma unroll
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      above += key > threshold.key ? 1U : 0U;
      equal += key == threshold.key ? 1U : 0U;
    }
  });
  above = warp_sum(above);
  equal = warp_sum(equal);
  if (lane == 0) shared.warp_counts[warp] = {above, equal};
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const uint2 others = lane < warps ? shared.warp_counts[lane] : uint2{0, 0};
  above = warp_sum(lane < warp ? others.x : 0U);
  equal = warp_sum(lane < warp ? others.y : 0U);
  if (threshold.listed) {
    above += shared.above_before;
    equal += shared.equal_before;
  } else {
    const std::uint32_t total_above = warp_sum(others.x);
    const std::uint32_t total_equal = warp_sum(others.y);
    if (static_cast<int>(threadIdx.x) < team.size) {
      team.push(kCounts, lane, &shared.counts[team.rank].x, total_above);
      team.push(kCounts, lane, &shared.counts[team.rank].y, total_equal);
    }
    team.await(kCounts);
    __syncwarp();
    team.arrive();
    const uint2 before = lane < team.rank ? shared.counts[lane] : uint2{0, 0};
    above += warp_sum(before.x);
    equal += warp_sum(before.y);
  }

  // `above` and `equal` count the keys before this warp's next 128.
  for_my_keys<kKept>(candidates, kept, [&](const uint4& keys, std::int32_t position) {
    std::uint32_t mine = 0;  // above in the low half, equal in the high half
#pragma unroll
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      mine += (key > threshold.key ? 1U : 0U) + (key == threshold.key ? 0x10000U : 0U);
    }
    if (__ballot_sync(kAll, mine != 0) == 0) return;
    const std::uint32_t sum = inclusive_sum(mine);
    std::uint32_t my_above = above + ((sum - mine) & 0xffffU);
    std::uint32_t my_equal = equal + ((sum - mine) >> 16);
#pragma unroll
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      const bool at = key == threshold.key;
      if (key > threshold.key || (at && my_equal < threshold.equal)) {
        out[my_above + min(my_equal, threshold.equal)] = position;
      }
      my_above += key > threshold.key ? 1U : 0U;
      my_equal += at ? 1U : 0U;
      ++position;
    }
    const std::uint32_t all = __shfl_sync(kAll, sum, 31);
    above += all & 0xffffU;
    equal += all >> 16;
  });
}

// Candidates [first, last) of the row.
template <class Team>
__device__ Candidates candidates_of(const float* row, std::int32_t first, std::int32_t last, const Team& team) {
  const auto address = reinterpret_cast<std::uintptr_t>(row + first);
  const auto before = static_cast<std::int32_t>(address / sizeof(float) % 4);
  Candidates candidates;
  candidates.base = row + first - before;
  candidates.begin = before;
  candidates.end = before + last - first;
  candidates.position = first - before;
  const auto warps_of_block = static_cast<std::int32_t>(blockDim.x) / 32;
  const std::int32_t groups = (candidates.end + 3) / 4;
  const std::int32_t warps = team.size * warps_of_block;
  const std::int32_t warp = team.rank * warps_of_block + warp_of_thread();
  const std::int32_t per_warp = ((groups + 31) / 32 + warps - 1) / warps * 32;
  candidates.group_begin = min(warp * per_warp, groups);
  candidates.group_end = min(candidates.group_begin + per_warp, groups);
  return candidates;
}

template <bool kKept, class Team>
__global__ void __launch_bounds__(kMostThreads, 1) top_k_kernel(const TopKDeviceParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  uint4* const kept = reinterpret_cast<uint4*>(memory + sizeof(Shared));
  const Team team(shared);
#pragma unroll 1
  for (auto i = static_cast<int>(threadIdx.x); i < kClearedBytes / 16; i += static_cast<int>(blockDim.x)) {
    reinterpret_cast<uint4*>(memory)[i] = {0, 0, 0, 0};
  }
  __syncthreads();
  team.begin();
  let_next_kernel_start();
  wait_for_kernels_before();
  // Lengths are at most 2^30.
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(team.size);
  const std::int64_t full = params.lengths[row];
  const std::int64_t from = params.first != nullptr ? params.first[row] : 0;
  const std::int64_t to = params.last != nullptr ? params.last[row] : full;
  const std::int32_t k = params.k[row];
  const auto length = static_cast<std::int32_t>(full);
  const auto first = static_cast<std::int32_t>(min(from, full));
  const auto last = static_cast<std::int32_t>(min(max(to, from), full));
  const std::int32_t total = min(max(k, first + length - last), length);
  const std::int32_t wanted = total - first - (length - last);
  const bool everything = total == length;
  const std::int32_t head = everything ? length : first;
  const std::int32_t tail = everything ? 0 : length - last;
  std::int32_t* const out = params.out + row * params.out_stride;
  const auto thread = static_cast<std::int32_t>(team.rank * blockDim.x + threadIdx.x);
  const auto threads = static_cast<std::int32_t>(team.size * blockDim.x);
  if (thread == 0) params.counts[row] = total;
#pragma unroll 1
  for (std::int64_t i = total + thread; i < params.out_stride; i += threads) out[i] = -1;
#pragma unroll 1
  for (std::int32_t i = thread; i < head; i += threads) out[i] = i;
#pragma unroll 1
  for (std::int32_t i = thread; i < tail; i += threads) out[total - tail + i] = last + i;
  if (everything || wanted == 0) {
    __syncwarp();
    team.wait();
    return;
  }
  const Candidates candidates = candidates_of(params.scores + row * params.stride, first, last, team);
  const Threshold threshold = find_threshold<kKept>(team, candidates, kept, static_cast<std::uint32_t>(wanted));
  gather<kKept>(team, candidates, kept, threshold, out + first);
  team.wait();  // no block leaves while another pushes to it
}

// Lets all kernels have all shared memory, and asks how many clusters of each size run at once then: [size].
// Clusters of 16 are an extra of the device, for which a part of it needs 16 multiprocessors.
std::array<int, kMostBlocks + 1> clusters_at_once() {
  const LaunchLimits& limits = launch_limits();
  std::array<int, kMostBlocks + 1> most = {};
  most[1] = limits.multiprocessors;
  const auto allow_memory = [&](auto kernel) {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes));
  };
  allow_memory(top_k_kernel<true, Alone>);
  allow_memory(top_k_kernel<false, Alone>);
  if (!limits.hopper) return most;
  for (const auto kernel : {top_k_kernel<true, Cluster>, top_k_kernel<false, Cluster>}) {
    allow_memory(kernel);
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int blocks = 2; blocks <= kMostBlocks; blocks *= 2) {
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(blocks);
      config.blockDim = dim3(kMostThreads);
      config.dynamicSmemBytes = static_cast<std::size_t>(limits.shared_bytes);
      config.attrs = &cluster;
      config.numAttrs = 1;
      HOTSET_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&most[static_cast<std::size_t>(blocks)], kernel, &config));
    }
  }
  return most;
}

// Steps of 32 groups that a warp takes of a row. Three scores more than there are may lie in the groups.
std::int64_t steps_of(std::int64_t max_length, int blocks, int threads) {
  return ceil_div(ceil_div(ceil_div(max_length + 3, 4), 32), std::int64_t{blocks} * (threads / 32));
}

}  // namespace
}  // namespace top_k

void launch_top_k(const TopKDeviceParams& params, Stream stream) {
  using namespace top_k;
  if (params.rows <= 0) return;
  HS_CHECK(params.max_length >= 0 && params.max_length <= std::int64_t{1} << 30, "a row is too long");
  const LaunchLimits& limits = launch_limits();
  static const std::array<int, kMostBlocks + 1> at_once = clusters_at_once();
  const int most = !limits.hopper ? 1 : at_once[16] > 0 ? 16 : 8;
  const std::int64_t kept_groups = (limits.shared_bytes - static_cast<std::int64_t>(sizeof(Shared))) / 16;
  const auto steps_at = [&](int blocks) { return steps_of(params.max_length, blocks, kMostThreads); };
  const std::int64_t most_steps = kept_groups / kMostThreads;
  int blocks = params.blocks_per_row;
  if (blocks == 0) {
    // The most for which all rows run at once, fewer for short rows; more where the keys stay in shared memory then.
    blocks = most;
    while (blocks > 1 && at_once[static_cast<std::size_t>(blocks)] < params.rows) blocks /= 2;
    while (blocks < most && steps_at(blocks) > most_steps && steps_at(most) <= most_steps) blocks *= 2;
    while (blocks > 1 && steps_of(params.max_length, blocks / 2, kLeastThreads) <= kFewSteps) blocks /= 2;
  }
  blocks = std::min(blocks, most);
  HS_CHECK(blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8 || blocks == 16, "no such number of blocks");
  int threads = params.threads;
  if (threads == 0) {
    threads = kLeastThreads;
    while (threads < kMostThreads && steps_of(params.max_length, blocks, threads) > kFewSteps) threads *= 2;
  }
  HS_CHECK(threads == 256 || threads == 512 || threads == 1024, "no such number of threads");
  const std::int64_t groups = steps_of(params.max_length, blocks, threads) * threads;
  const bool kept = groups <= kept_groups;

  const std::size_t bytes = sizeof(Shared) + (kept ? static_cast<std::size_t>(groups * 16) : 0);
  const auto kernel = blocks > 1 ? (kept ? top_k_kernel<true, Cluster> : top_k_kernel<false, Cluster>)
                                 : (kept ? top_k_kernel<true, Alone> : top_k_kernel<false, Alone>);
  launch_dependent(kernel, dim3(static_cast<unsigned>(params.rows * blocks)), dim3(static_cast<unsigned>(threads)),
                   bytes, blocks > 1 ? blocks : 0, stream, params);
}

}  // namespace hotset::kernels::cuda
