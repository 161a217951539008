// Exact top-k by radix select. A row is shared by the blocks of a cluster, whose histograms meet in distributed shared
// memory: one launch, no workspace, no global counter. Before Hopper one block takes the row.
//
// 1. Each warp takes a contiguous segment of the row in groups of four scores, turns them into order keys and counts
//    their highest 11 bits; the keys stay in shared memory when they fit.
// 2. Every block adds up the histograms of all blocks and finds the digit of the wanted-th key. Twice more for the next
//    11 and 10 bits, among the keys that share the digits found; it ends early when a whole bin is wanted.
// 3. Warps count keys above and at the threshold; prefix sums over warps and blocks give each warp its place, and it
//    writes its positions in ascending order.
// Counts are integers, so no order of execution shows.
#include <cooperative_groups.h>

#include <algorithm>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/launch_limits.h"
#include "kernels/cuda/selection/order_key.cuh"
#include "kernels/cuda/selection/top_k.h"

namespace hotset::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2048;
constexpr int kCopies = 4;                 // of the first histogram: scores crowd into few bins
constexpr int kStepBytes = kThreads * 16;  // keys of one step of all warps of a block
constexpr unsigned kAll = 0xffffffffU;

struct alignas(16) Shared {                       // the keys that are kept lie behind it
  std::uint32_t first_histogram[kCopies][kBins];  // copy 0 becomes their sum
  std::uint32_t later_histogram[2][kBins];
  std::uint32_t warp_sums[kWarps];
  std::uint32_t warp_above[kWarps];
  std::uint32_t warp_equal[kWarps];
  std::uint32_t block_above;  // read by the other blocks
  std::uint32_t block_equal;
  std::uint32_t digit;
  std::uint32_t left;
  std::uint32_t in_bin;
};

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

// The digit of the wanted-th largest key, given histograms of all blocks; `left` becomes what is wanted in its bin.
__device__ void find_digit(Shared& shared, const Team& team, std::uint32_t* histogram, std::uint32_t left) {
  const int thread = static_cast<int>(threadIdx.x);
  const int pair = kBins / 2 - 1 - thread;  // thread 0 has the two highest bins
  uint2 count = {0, 0};
  for (int block = 0; block < team.size; ++block) {
    const uint2 part = reinterpret_cast<const uint2*>(team.of_block(histogram, block))[pair];
    count.x += part.x;
    count.y += part.y;
  }
  const std::uint32_t mine = count.x + count.y;
  std::uint32_t sum = mine;
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAll, sum, step);
    if (thread % 32 >= step) sum += other;
  }
  if (thread % 32 == 31) shared.warp_sums[thread / 32] = sum;
  __syncthreads();
  if (thread < 32) {
    std::uint32_t total = shared.warp_sums[thread];
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAll, total, step);
      if (thread >= step) total += other;
    }
    shared.warp_sums[thread] = total;
  }
  __syncthreads();
  const std::uint32_t before = sum - mine + (thread >= 32 ? shared.warp_sums[thread / 32 - 1] : 0U);
  if (before < left && left <= before + mine) {
    const bool high = left <= before + count.y;
    shared.digit = static_cast<std::uint32_t>(2 * pair) + (high ? 1U : 0U);
    shared.left = high ? left - before : left - before - count.y;
    shared.in_bin = high ? count.y : count.x;
  }
  __syncthreads();
}

template <bool kKept>
__device__ uint4 keys_of(const Candidates& candidates, const uint4* kept, std::int32_t group) {
  if constexpr (kKept) return kept[(group - candidates.group_begin) / 32 * kThreads + static_cast<int>(threadIdx.x)];
  return candidates.load(group);
}

template <bool kKept>
__device__ Threshold find_threshold(Shared& shared, const Team& team, const Candidates& candidates, uint4* kept,
                                    std::uint32_t wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int i = thread; i < kBins; i += kThreads) {
    for (int copy = 0; copy < kCopies; ++copy) shared.first_histogram[copy][i] = 0;
    shared.later_histogram[0][i] = 0;
    shared.later_histogram[1][i] = 0;
  }
  __syncthreads();
  std::uint32_t* const counts = shared.first_histogram[thread / 32 % kCopies];
  for (std::int32_t group = candidates.group_begin + lane; group < candidates.group_end; group += 32) {
    const uint4 keys = candidates.load(group);
    if constexpr (kKept) kept[(group - candidates.group_begin) / 32 * kThreads + thread] = keys;
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      if (key != 0) atomicAdd(counts + (key >> 21), 1U);
    }
  }
  __syncthreads();
  for (int i = thread; i < kBins; i += kThreads) {
    for (int copy = 1; copy < kCopies; ++copy) shared.first_histogram[0][i] += shared.first_histogram[copy][i];
  }
  team.sync();
  find_digit(shared, team, shared.first_histogram[0], wanted);
  std::uint32_t prefix = shared.digit;
  int shift = 21;
  for (int pass = 0; pass < 2; ++pass) {
    if (shared.in_bin == shared.left) break;  // all keys that begin so are wanted
    const std::uint32_t left = shared.left;
    const int digit_bits = pass == 0 ? 11 : 10;
    const int next_shift = shift - digit_bits;
    const std::uint32_t mask = (1U << digit_bits) - 1U;
    std::uint32_t* const later = shared.later_histogram[pass];
    for (std::int32_t group = candidates.group_begin + lane; group < candidates.group_end; group += 32) {
      const uint4 keys = keys_of<kKept>(candidates, kept, group);
      for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
        if (key >> shift == prefix) atomicAdd(later + (key >> next_shift & mask), 1U);
      }
    }
    team.sync();
    find_digit(shared, team, later, left);
    prefix = prefix << digit_bits | shared.digit;
    shift = next_shift;
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
  if (threadIdx.x == 0) {
    shared.block_above = total_above;
    shared.block_equal = total_equal;
  }
  team.sync();
  above += warp_sum(lane < team.rank ? *team.of_block(&shared.block_above, min(lane, team.size - 1)) : 0U);
  equal += warp_sum(lane < team.rank ? *team.of_block(&shared.block_equal, min(lane, team.size - 1)) : 0U);

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
  team.sync();  // no block leaves while another reads its shared memory
}

cudaLaunchConfig_t launch_config(std::int64_t rows, int blocks, std::size_t shared_bytes,
                                 cudaLaunchAttribute& cluster) {
  cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows * blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = launch_limits().hopper ? 1 : 0;
  return config;
}

// Lets both kernels have all shared memory. The most blocks of a row: clusters of 16 are an extra of the device, for
// which each of its parts needs 16 multiprocessors.
int most_blocks() {
  const LaunchLimits& limits = launch_limits();
  int clusters = 0;
  for (const auto kernel : {top_k_kernel<true>, top_k_kernel<false>}) {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.shared_bytes));
    if (!limits.hopper) continue;
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = launch_config(1, 16, static_cast<std::size_t>(limits.shared_bytes), attribute);
    HOTSET_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  }
  return !limits.hopper ? 1 : clusters > 0 ? 16 : 8;
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
  static const int most = most_blocks();
  const std::int64_t most_steps = (limits.shared_bytes - static_cast<std::int64_t>(sizeof(Shared))) / kStepBytes;
  int blocks = params.blocks_per_row;
  if (blocks == 0) {
    // As many as fill the device once, fewer for short rows; more where the keys stay in shared memory then.
    blocks = params.rows <= 8 ? 16 : params.rows <= 16 ? 8 : params.rows <= 32 ? 4 : 2;
    while (blocks < most && steps_of(params.max_length, blocks) > most_steps &&
           steps_of(params.max_length, most) <= most_steps) {
      blocks *= 2;
    }
    while (blocks > 1 && steps_of(params.max_length, blocks / 2) <= 1) blocks /= 2;
  }
  blocks = std::min(blocks, most);
  HS_CHECK(blocks == 1 || blocks == 2 || blocks == 4 || blocks == 8 || blocks == 16, "no such number of blocks");
  const std::int64_t steps = steps_of(params.max_length, blocks);
  const bool kept = steps <= most_steps;

  cudaLaunchAttribute cluster;
  const std::size_t bytes = sizeof(Shared) + (kept ? static_cast<std::size_t>(steps * kStepBytes) : 0);
  cudaLaunchConfig_t config = launch_config(params.rows, blocks, bytes, cluster);
  config.stream = stream;
  HOTSET_CUDA_CHECK(cudaLaunchKernelEx(&config, kept ? top_k_kernel<true> : top_k_kernel<false>, params));
}

}  // namespace hotset::kernels::cuda
