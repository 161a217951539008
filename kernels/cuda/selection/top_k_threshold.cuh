// Steps 1 to 3 of top_k.cu: the threshold of a row's largest keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/selection/top_k_team.cuh"

namespace hotset::kernels::cuda::top_k {

constexpr int kLoads = 4;  // of a thread on their way together

// One row's candidates as groups of four scores on 16-byte boundaries. Group 0 may begin before the first.
struct Candidates {
  const float* base;   // of group 0, 16-byte aligned
  std::int32_t begin;  // candidates lie in [begin, end) relative to base
  std::int32_t end;
  std::int32_t position;                // of base[0] in the row; may be negative
  std::int32_t group_begin, group_end;  // of this warp

  __device__ float4 scores(std::int32_t group) const {
    const std::int32_t at = group * 4;
    if (at >= begin && at + 4 <= end) return *reinterpret_cast<const float4*>(base + at);
    float4 some = {0.0F, 0.0F, 0.0F, 0.0F};
    if (at >= begin && at < end) some.x = base[at];
    if (at + 1 >= begin && at + 1 < end) some.y = base[at + 1];
    if (at + 2 >= begin && at + 2 < end) some.z = base[at + 2];
    if (at + 3 >= begin && at + 3 < end) some.w = base[at + 3];
    return some;
  }
  // 0: no score.
  __device__ uint4 keys(std::int32_t group, const float4& scores) const {
    uint4 keys = {order_key(scores.x), order_key(scores.y), order_key(scores.z), order_key(scores.w)};
    const std::int32_t at = group * 4;
    if (at < begin || at + 4 > end) {
      if (at < begin || at >= end) keys.x = 0;
      if (at + 1 < begin || at + 1 >= end) keys.y = 0;
      if (at + 2 < begin || at + 2 >= end) keys.z = 0;
      if (at + 3 < begin || at + 3 >= end) keys.w = 0;
    }
    return keys;
  }
};

struct Threshold {
  std::uint32_t key;    // taken: above it,
  std::uint32_t equal;  // and the first so many at it
  bool listed;          // Shared::above_before and equal_before are there after the next barrier
};

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x) / 32; }
__device__ __forceinline__ std::uint32_t warp_sum(std::uint32_t value) { return __reduce_add_sync(kAll, value); }

__device__ __forceinline__ std::uint32_t inclusive_sum(std::uint32_t value) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAll, value, step);
    if (lane_of_thread() >= step) value += other;
  }
  return value;
}

// All threads, after a barrier behind the block's counts: sums of 32 bins, each to the block that adds it up.
template <int kBits, class Team>
__device__ void push_sums(const Team& team, const Histogram<kBits>& histogram, int exchange) {
  const int lane = lane_of_thread();
  const int own = Histogram<kBits>::kSums / team.size;  // of a block
  const int place = team.rank * own;
  if constexpr (kBits == kFirstBits) {  // a warp has eight sums at a time
    static_assert(kMostSums / kMostBlocks >= 8);
#pragma unroll 1
    for (int eight = static_cast<int>(threadIdx.x); eight < Histogram<kBits>::kBins / 8;
         eight += static_cast<int>(blockDim.x)) {
      const uint4* const bins = reinterpret_cast<const uint4*>(histogram.bins) + 2 * eight;
      const uint4 a = bins[0];
      const uint4 b = bins[1];
      std::uint32_t sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
      sum += __shfl_xor_sync(kAll, sum, 1);
      sum += __shfl_xor_sync(kAll, sum, 2);
      const int first = lane % 2 * 16;
      const uint4 four = {__shfl_sync(kAll, sum, first), __shfl_sync(kAll, sum, first + 4),
                          __shfl_sync(kAll, sum, first + 8), __shfl_sync(kAll, sum, first + 12)};
      const int at = eight / 32 * 8;
      auto* const to = reinterpret_cast<uint4*>(team.shared.sums + place + at % own) + lane % 2;
      if (lane < 2) team.push(exchange + kSumsPart, at / own, to, four);
    }
  } else {
#pragma unroll 1
    for (int bin = static_cast<int>(threadIdx.x); bin < Histogram<kBits>::kBins; bin += static_cast<int>(blockDim.x)) {
      const std::uint32_t sum = warp_sum(histogram.bins[bin]);
      const int at = bin / 32;
      if (lane == 0) team.push(exchange + kSumsPart, at / own, team.shared.sums + place + at % own, sum);
    }
  }
}

// One warp: totals of the sums that this block adds up, to all blocks.
template <int kBits, class Team>
__device__ void push_totals(const Team& team, int exchange) {
  Shared& shared = team.shared;
  const int lane = lane_of_thread();
  const int own = Histogram<kBits>::kSums / team.size;
  if constexpr (kBits == kFirstBits) {
#pragma unroll 1
    for (int item = lane; item < Histogram<kBits>::kSums / 4; item += 32) {
      const int four = item % (own / 4);
      const auto* const sums = reinterpret_cast<const uint4*>(shared.sums) + four;
      uint4 total = {0, 0, 0, 0};
#pragma unroll 4
      for (int block = 0; block < team.size; ++block) {
        const uint4 more = sums[block * (own / 4)];
        total = {total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
      }
      team.push(exchange + kTotalsPart, item / (own / 4),
                reinterpret_cast<uint4*>(shared.totals + team.rank * own) + four, total);
    }
  } else {
    static_assert(Histogram<kBits>::kSums <= 32);
    if (lane >= Histogram<kBits>::kSums) return;
    std::uint32_t total = 0;
    for (int block = 0; block < team.size; ++block) total += shared.sums[block * own + lane % own];
    team.push(exchange + kTotalsPart, lane / own, shared.totals + team.rank * own + lane % own, total);
  }
}

struct Place {
  int at;  // descending
  std::uint32_t left;
  std::uint32_t count;  // in it
};
// One warp: where among counts the wanted-th lies; lane l holds the kEach from kEach * l on, in descending order.
template <int kEach>
__device__ Place find_place(const std::uint32_t (&counts)[kEach], std::uint32_t left) {
  std::uint32_t mine = 0;
#pragma unroll
  for (const std::uint32_t count : counts) mine += count;
  std::uint32_t before = inclusive_sum(mine) - mine;
  const int lane = __ffs(static_cast<int>(__ballot_sync(kAll, before < left && left <= before + mine))) - 1;
  Place place = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (before < left && left <= before + counts[i]) place = {lane * kEach + i, left - before, counts[i]};
    before += counts[i];
  }
  return {__shfl_sync(kAll, place.at, lane), __shfl_sync(kAll, place.left, lane), __shfl_sync(kAll, place.count, lane)};
}

// The digit of the wanted-th largest key, given counts of all blocks; shared.left becomes what is wanted in its bin.
// After a barrier behind the block's counts; a barrier behind it.
template <int kBits, class Team>
__device__ void find_digit(const Team& team, const Histogram<kBits>& histogram, int exchange, std::uint32_t left) {
  constexpr int kSumsOfDigit = Histogram<kBits>::kSums;
  constexpr int kEach = std::max(1, kSumsOfDigit / 32);
  Shared& shared = team.shared;
  const int lane = lane_of_thread();
  push_sums(team, histogram, exchange);
  team.await(exchange + kSumsPart);
  if (threadIdx.x < 32) {
    push_totals<kBits>(team, exchange);
    team.await_in_warp(exchange + kTotalsPart);
    std::uint32_t totals[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = kSumsOfDigit - 1 - kEach * lane - i;
      totals[i] = at >= 0 ? shared.totals[at] : 0U;
    }
    const Place sum = find_place(totals, left);
    const int first = (kSumsOfDigit - 1 - sum.at) * kSumBins;
#pragma unroll 1
    for (int item = lane; item < team.size * (kSumBins / 4); item += 32) {
      const int four = item % (kSumBins / 4);
      team.push(exchange + kBinsPart, item / (kSumBins / 4), reinterpret_cast<uint4*>(shared.bins[team.rank]) + four,
                reinterpret_cast<const uint4*>(histogram.bins + first)[four]);
    }
    team.await_in_warp(exchange + kBinsPart);
    std::uint32_t counts[1] = {0};
#pragma unroll 4
    for (int block = 0; block < team.size; ++block) counts[0] += shared.bins[block][kSumBins - 1 - lane];
    const Place bin = find_place(counts, sum.left);
    if (lane == 0) {
      shared.digit = static_cast<std::uint32_t>(first + kSumBins - 1 - bin.at);
      shared.left = bin.left;
      shared.in_bin = bin.count;
    }
  }
  __syncthreads();
}

// Keys of the warp's groups, in order; body(keys, position of the first). All lanes call it, some with keys of 0.
template <bool kKept, class Body>
__device__ __forceinline__ void for_my_keys(const Candidates& candidates, const uint4* kept, const Body& body) {
  const uint4* at = kept + threadIdx.x;
#pragma unroll 1
  for (std::int32_t start = candidates.group_begin; start < candidates.group_end; start += 32) {
    const std::int32_t group = start + lane_of_thread();
    uint4 keys = {0, 0, 0, 0};
    if (group < candidates.group_end) {
      if constexpr (kKept) {
        keys = *at;
      } else {
        keys = candidates.keys(group, candidates.scores(group));
      }
    }
    at += blockDim.x;
    body(keys, candidates.position + 4 * group);
  }
}

// Counts the digit that ends at bit `shift` of the keys that begin with `prefix`, and finds it over all blocks.
template <bool kKept, int kBits, class Team>
__device__ void next_digit(const Team& team, const Candidates& candidates, const uint4* kept,
                           Histogram<kBits>& histogram, int exchange, std::uint32_t prefix, int shift) {
  const std::uint32_t left = team.shared.left;
  for_my_keys<kKept>(candidates, kept, [&](const uint4& keys, std::int32_t) {
#pragma unroll
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      if (key >> (shift + kBits) == prefix) {
        atomicAdd(histogram.bins + (key >> shift & (Histogram<kBits>::kBins - 1U)), 1U);
      }
    }
  });
  __syncthreads();
  find_digit(team, histogram, exchange, left);
}

// Pushes the keys that begin with the first digit. Returns how many words of shared.lists are of the blocks before, and
// how many of all.
template <bool kKept, class Team>
__device__ uint2 push_lists(const Team& team, const Candidates& candidates, const uint4* kept) {
  Shared& shared = team.shared;
  const int lane = lane_of_thread();
  const int warp = warp_of_thread();
  const std::uint32_t digit = shared.digit;
  const std::uint32_t fours = lane < team.size ? (shared.bins[lane][digit % kSumBins] + 3) / 4 : 0U;
  const uint2 words = {4 * warp_sum(lane < team.rank ? fours : 0U), 4 * warp_sum(fours)};
  if (threadIdx.x == kLists) team.expect(kLists, 4 * (words.y + static_cast<std::uint32_t>(team.size)));
  std::uint32_t above = 0;
  for_my_keys<kKept>(candidates, kept, [&](const uint4& keys, std::int32_t) {
#pragma unroll
    for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
      const std::uint32_t high = key >> (32 - kFirstBits);
      above += high > digit ? 1U : 0U;
      if (high == digit) shared.list[atomicAdd(&shared.listed, 1U)] = key & kListedBits;  // no score has the digit of 0
    }
  });
  above = warp_sum(above);
  if (lane == 0 && above != 0) atomicAdd(&shared.above, above);
  __syncthreads();
  const std::uint32_t mine = shared.listed;
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
  for (int block = warp; block < team.size; block += warps) {
#pragma unroll 1
    for (auto i = static_cast<std::uint32_t>(4 * lane); i < mine; i += 4 * 32) {
      uint4 keys = *reinterpret_cast<const uint4*>(shared.list + i);
      if (i + 1 >= mine) keys.y = kNoKey;
      if (i + 2 >= mine) keys.z = kNoKey;
      if (i + 3 >= mine) keys.w = kNoKey;
      team.push(kLists, block, reinterpret_cast<uint4*>(shared.lists + words.x + i), keys);
    }
    if (lane == 0) team.push(kLists, block, shared.aboves + team.rank, shared.above);
  }
  team.await(kLists);
  __syncwarp();
  team.arrive();
  return words;
}

// The digit of the wanted-th largest listed key; `left` becomes what is wanted in its bin. After a barrier behind the
// counts.
template <int kBits>
__device__ void find_listed_digit(Shared& shared, const Histogram<kBits>& histogram, std::uint32_t left) {
  constexpr int kPerThread = Histogram<kBits>::kBins / kLeastThreads;  // in the first so many threads
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = lane_of_thread();
  std::uint32_t counts[kPerThread] = {};
  std::uint32_t mine = 0;
  std::uint32_t sum = 0;
  const int last = Histogram<kBits>::kBins - 1 - kPerThread * thread;  // descending
  if (thread < kLeastThreads) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) mine += counts[i] = histogram.bins[last - i];
    sum = inclusive_sum(mine);
    if (lane == 31) shared.warp_sums[thread / 32] = sum;
  }
  __syncthreads();
  if (thread < kLeastThreads) {
    std::uint32_t before = warp_sum(lane < thread / 32 ? shared.warp_sums[lane] : 0U) + sum - mine;
    if (before < left && left <= before + mine) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        if (before < left && left <= before + counts[i]) {
          shared.digit = static_cast<std::uint32_t>(last - i);
          shared.left = left - before;
          shared.in_bin = counts[i];
        }
        before += counts[i];
      }
    }
  }
  __syncthreads();
}

// The threshold, from the keys of all blocks that begin with the first digit.
template <bool kKept, class Team>
__device__ Threshold find_listed(const Team& team, const Candidates& candidates, const uint4* kept) {
  Shared& shared = team.shared;
  const int lane = lane_of_thread();
  const std::uint32_t first = shared.digit;
  std::uint32_t left = shared.left;
  std::uint32_t prefix = first;
  int shift = kSecondBits + kThirdBits;
  bool whole = shared.in_bin == left;  // all keys that begin so are wanted
  const uint2 words = push_lists<kKept>(team, candidates, kept);
  if (!whole) {
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < words.y; i += blockDim.x) {
      const std::uint32_t key = shared.lists[i];
      if (key != kNoKey) atomicAdd(shared.second.bins + (key >> kThirdBits), 1U);
    }
    __syncthreads();
    find_listed_digit(shared, shared.second, left);
    prefix = prefix << kSecondBits | shared.digit;
    shift = kThirdBits;
    left = shared.left;
    whole = shared.in_bin == left;
  }
  if (!whole) {
    const std::uint32_t second = shared.digit;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < words.y; i += blockDim.x) {
      const std::uint32_t key = shared.lists[i];
      if (key >> kThirdBits == second) atomicAdd(shared.third.bins + (key & ((1U << kThirdBits) - 1U)), 1U);
    }
    __syncthreads();
    find_listed_digit(shared, shared.third, left);
    prefix = prefix << kThirdBits | shared.digit;
    shift = 0;
    left = shared.left;
    whole = shared.in_bin == left;
  }
  // No score gives key 0, so this does not wrap.
  const Threshold threshold = {whole ? (prefix << shift) - 1U : prefix, whole ? 0U : left, true};
  std::uint32_t above = static_cast<int>(threadIdx.x) < team.rank ? shared.aboves[threadIdx.x] : 0U;
  std::uint32_t equal = 0;
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < words.x; i += blockDim.x) {
    if (shared.lists[i] == kNoKey) continue;
    const std::uint32_t key = first << (32 - kFirstBits) | shared.lists[i];
    above += key > threshold.key ? 1U : 0U;
    equal += key == threshold.key ? 1U : 0U;
  }
  above = warp_sum(above);
  equal = warp_sum(equal);
  if (lane == 0 && above != 0) atomicAdd(&shared.above_before, above);
  if (lane == 0 && equal != 0) atomicAdd(&shared.equal_before, equal);
  return threshold;
}

// Counts the first digit, and keeps the keys.
template <bool kKept>
__device__ void count_keys(Shared& shared, const Candidates& candidates, uint4* kept) {
  uint4* to = kept + threadIdx.x;
#pragma unroll 1
  for (std::int32_t start = candidates.group_begin; start < candidates.group_end; start += 32 * kLoads) {
    const std::int32_t group = start + lane_of_thread();
    float4 scores[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (group + 32 * i < candidates.group_end) scores[i] = candidates.scores(group + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (group + 32 * i >= candidates.group_end) break;
      const uint4 keys = candidates.keys(group + 32 * i, scores[i]);
      if constexpr (kKept) *to = keys;
      to += blockDim.x;
#pragma unroll
      for (const std::uint32_t key : {keys.x, keys.y, keys.z, keys.w}) {
        if (key != 0) atomicAdd(shared.first.bins + (key >> (32 - kFirstBits)), 1U);
      }
    }
  }
}

template <bool kKept, class Team>
__device__ Threshold find_threshold(const Team& team, const Candidates& candidates, uint4* kept, std::uint32_t wanted) {
  Shared& shared = team.shared;
  count_keys<kKept>(shared, candidates, kept);
  __syncthreads();
  team.wait();  // all blocks of the cluster run, and may be pushed to
  find_digit(team, shared.first, kFirstDigit, wanted);
  if (shared.in_bin <= kMostListed) return find_listed<kKept>(team, candidates, kept);
  std::uint32_t prefix = shared.digit;
  int shift = kSecondBits + kThirdBits;
  if (shared.in_bin != shared.left) {  // else all keys that begin so are wanted
    shift = kThirdBits;
    next_digit<kKept>(team, candidates, kept, shared.second, kSecondDigit, prefix, shift);
    prefix = prefix << kSecondBits | shared.digit;
  }
  if (shared.in_bin != shared.left) {
    shift = 0;
    next_digit<kKept>(team, candidates, kept, shared.third, kThirdDigit, prefix, shift);
    prefix = prefix << kThirdBits | shared.digit;
  }
  if (shared.in_bin != shared.left) return {prefix, shared.left, false};
  return {(prefix << shift) - 1U, 0, false};
}

}  // namespace hotset::kernels::cuda::top_k
