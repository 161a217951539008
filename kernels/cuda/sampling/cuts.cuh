// Cuts in the order of tokens (key, then lower id): the shortest beginning that weighs what is wanted.
//
// 1. A histogram over bins of equal width below the best logit: every block counts its tokens, and all read the others'
//    counts, first sums of 32 bins, then the 32 bins of one sum.
// 2. The tokens of the bin with the end, or all from the best down to it, are few: every block lists its own, reads
//    the others' lists and sorts all. One thread has one token then, and a prefix sum finds the end.
// 3. Where they are many (equal logits, or far below the best one): radix select over the key's 11, 11 and 10 bits,
//    then over 9 and 9 bits of the id.
// Weights are integers and orders are total: no order of execution shows, and every block finds the same.
#pragma once

#include "kernels/cuda/sampling/block_team.cuh"
#include "kernels/cuda/sampling/row_keys.cuh"

namespace hotset::kernels::cuda::sampling {

inline constexpr int kBins = 2048;
inline constexpr int kSumBins = 32;  // bins of a sum
inline constexpr int kSums = kBins / kSumBins;
inline constexpr int kIdBits = 18;
inline constexpr std::uint32_t kMostListed = kThreads;

// Sums of 64 bits in two halves, since shared memory adds 32 bits in hardware. Other blocks read the sums of bins.
struct Histogram {
  std::uint32_t low[kBins];
  std::uint32_t high[kBins];
  Weight sums[kSums];

  __device__ void add(std::uint32_t bin, Weight weight) {
    if (weight == 0) return;
    const auto part = static_cast<std::uint32_t>(weight);
    const std::uint32_t before = atomicAdd(low + bin, part);
    const std::uint32_t rest = static_cast<std::uint32_t>(weight >> 32) + (before > ~part ? 1U : 0U);
    if (rest != 0) atomicAdd(high + bin, rest);
  }
};

struct CutShared {
  Histogram histograms[2];  // by turns, as TeamShared::told
  Weight gathered[kMostBlocks * kSums];
  Weight gathered_bins[kMostBlocks * kSumBins];
  Weight listed_orders[2][kMostListed];  // this block's, by turns; other blocks read them
  std::uint32_t listed[2];
  Weight orders[kMostListed];  // all blocks'
  Weight warp_sums[kWarps];
  Weight last;  // order of a cut's last token
};

// Kept: keys above `key`, and those at it with ids up to last_id. Key 0 belongs to no logit.
struct Cut {
  std::uint32_t key = 0;
  std::int32_t last_id = -1;

  [[nodiscard]] __device__ bool keeps(std::uint32_t other, std::int32_t id) const {
    return other > key || (other == key && id <= last_id);
  }
};

// Bins of 1 / scale below `largest`; the highest has the best token, 0 all that lies below the others.
struct Bins {
  float largest;
  float scale;

  [[nodiscard]] __device__ std::uint32_t of(std::uint32_t key) const {
    const float value = value_of_key(key);
    if (value >= largest) return kBins - 1;
    const float below = (largest - value) * scale;
    return below < static_cast<float>(kBins - 1) ? kBins - 1U - static_cast<std::uint32_t>(below) : 0U;
  }
};

struct FoundBin {
  bool found = false;  // else all weigh less than what is wanted
  std::uint32_t bin = 0;
  Weight wanted = 0;
  Weight through = 0;  // weight from the best down to the end of the bin
  Weight left = 0;     // what is wanted of the bin, at least 1
};

// One row's cuts; all its functions are called by all threads of all blocks, which get the same.
template <bool kKept>
class Cuts {
 public:
  __device__ Cuts(CutShared& shared, Team& team) : shared_(shared), team_(team) {
    if (threadIdx.x < 2) shared_.listed[threadIdx.x] = 0;
  }

  struct Selected {
    Cut cut;
    // Every thread has one token, the best first, and all that the cut keeps are there: thread i's order; else 0.
    bool listed = false;
    Weight order = 0;
  };

  // The best `count` (1 ... the vocabulary) of all tokens.
  __device__ Selected best(const RowKeys<kKept>& row, std::uint32_t count, const Bins& bins) {
    const auto all = [](std::uint32_t, std::int32_t) { return true; };
    const auto one = [](std::uint32_t) { return Weight{1}; };
    const FoundBin found = find_bin(
        row,
        [&](std::uint32_t key, std::int32_t, const auto& add) {
          // The lowest bin is not counted: most logits of a row may lie there, and would all add to one number.
          if (const std::uint32_t bin = bins.of(key); bin != 0) add(bin, Weight{1});
        },
        [&](Weight) { return Weight{count}; });
    if (found.found) {
      const bool from_best = found.through <= kMostListed;
      Weight order = 0;
      const std::uint32_t listed = list(
          row,
          [&](std::uint32_t key, std::int32_t) {
            const std::uint32_t bin = bins.of(key);
            return from_best ? bin >= found.bin : bin == found.bin;
          },
          order);
      if (listed <= kMostListed) {
        const Cut cut = cut_of_sorted(order, order != 0 ? 1 : 0, from_best ? found.wanted : found.left);
        return {cut, from_best, order};
      }
    }
    return {radix_cut(row, all, one, count), false, 0};
  }

  // The shortest beginning of the candidates that weighs wanted_of(their weight). weight_of(key): of one token.
  template <class IsCandidate, class WeightOf, class WantedOf>
  __device__ Cut heaviest(const RowKeys<kKept>& row, const IsCandidate& is_candidate, const WeightOf& weight_of,
                          const WantedOf& wanted_of, const Bins& bins) {
    const FoundBin found = find_bin(
        row,
        [&](std::uint32_t key, std::int32_t id, const auto& add) {
          if (is_candidate(key, id)) add(bins.of(key), weight_of(key));
        },
        wanted_of);
    Weight order = 0;
    const std::uint32_t listed = list(
        row, [&](std::uint32_t key, std::int32_t id) { return bins.of(key) == found.bin && is_candidate(key, id); },
        order);
    if (listed <= kMostListed) {
      return cut_of_sorted(order, order != 0 ? weight_of(key_of_order(order)) : 0, found.left);
    }
    return radix_cut(row, is_candidate, weight_of, found.wanted);
  }

  // Threads have tokens in their order, with weights; `wanted`: 1 ... their sum.
  __device__ Cut cut_of_sorted(Weight order, Weight weight, Weight wanted) {
    const Weight until = prefix(weight);
    if (until - weight < wanted && wanted <= until) shared_.last = order;
    __syncthreads();
    return {key_of_order(shared_.last), id_of_order(shared_.last)};
  }

  // Tokens that take(key, id) says, listed and sorted: `order` is the thread-th. Returns how many they are; when they
  // are more than kMostListed, none is listed. Not the first that is called.
  template <class Take>
  __device__ std::uint32_t list(const RowKeys<kKept>& row, const Take& take, Weight& order) {
    const int turn = list_turn_ ^= 1;
    row.each([&](std::int32_t id, std::uint32_t key) {
      if (!take(key, id)) return;
      const std::uint32_t place = atomicAdd(&shared_.listed[turn], 1U);  // any order: they are sorted below
      if (place < kMostListed) shared_.listed_orders[turn][place] = order_of(key, id);
    });
    team_.sync();
    if (threadIdx.x == 0) shared_.listed[turn ^ 1] = 0;  // all have read the last list
    const auto thread = threadIdx.x;
    std::uint32_t total = 0;
    for (int block = 0; block < team_.size(); ++block) {
      const std::uint32_t count = *team_.of_block(&shared_.listed[turn], block);
      const Weight* const orders = team_.of_block(shared_.listed_orders[turn], block);
      if (thread < count && total + count <= kMostListed) shared_.orders[total + thread] = orders[thread];
      total += count;
    }
    __syncthreads();
    if (total > kMostListed) return total;
    order = sorted(thread < total ? shared_.orders[thread] : 0, total);
    return total;
  }

 private:
  // Adds up weights by bins over all blocks, and finds the bin where the sum, from the highest bin down, reaches
  // wanted_of(the total). visit(key, id, add) calls add(bin, weight) at most once.
  template <class Visit, class WantedOf>
  __device__ FoundBin find_bin(const RowKeys<kKept>& row, const Visit& visit, const WantedOf& wanted_of) {
    const int thread = static_cast<int>(threadIdx.x);
    Histogram& histogram = shared_.histograms[turn_ ^= 1];
    for (int i = thread; i < kBins; i += kThreads) histogram.low[i] = histogram.high[i] = 0;
    __syncthreads();
    row.each([&](std::int32_t id, std::uint32_t key) {
      visit(key, id, [&](std::uint32_t bin, Weight weight) { histogram.add(bin, weight); });
    });
    __syncthreads();
    const auto of_bin = [&](int bin) { return Weight{histogram.high[bin]} << 32 | histogram.low[bin]; };
    Weight sum = of_bin(2 * thread) + of_bin(2 * thread + 1);
    for (int step = 1; step < kSumBins / 2; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (thread % (kSumBins / 2) == 0) histogram.sums[thread / (kSumBins / 2)] = sum;
    team_.sync();
    if (thread < team_.size() * kSums) {
      shared_.gathered[thread] = team_.of_block(histogram.sums, thread / kSums)[thread % kSums];
    }
    __syncthreads();
    // From here on every warp does the same. Lane 0 has the two highest sums, and then the highest bin.
    const int lane = lane_id();
    Weight high = 0;
    Weight low = 0;
    for (int block = 0; block < team_.size(); ++block) {
      high += shared_.gathered[block * kSums + kSums - 1 - 2 * lane];
      low += shared_.gathered[block * kSums + kSums - 2 - 2 * lane];
    }
    const Weight until = warp_prefix(high + low);
    FoundBin found;
    found.wanted = wanted_of(__shfl_sync(kAll, until, 31));
    const unsigned reached = __ballot_sync(kAll, until >= found.wanted);
    if (reached == 0) return found;
    const int owner = __ffs(static_cast<int>(reached)) - 1;
    Weight before = __shfl_sync(kAll, until - high - low, owner);
    high = __shfl_sync(kAll, high, owner);
    const bool in_high = before + high >= found.wanted;
    if (!in_high) before += high;
    const int first = (kSums - 1 - 2 * owner - (in_high ? 0 : 1)) * kSumBins;
    if (thread < team_.size() * kSumBins) {
      const int bin = first + lane;
      const Weight high_half = team_.of_block(histogram.high, thread / kSumBins)[bin];
      shared_.gathered_bins[thread] = high_half << 32 | team_.of_block(histogram.low, thread / kSumBins)[bin];
    }
    __syncthreads();
    Weight mine = 0;
    for (int block = 0; block < team_.size(); ++block) {
      mine += shared_.gathered_bins[block * kSumBins + kSumBins - 1 - lane];
    }
    const Weight through = before + warp_prefix(mine);
    const int place = __ffs(static_cast<int>(__ballot_sync(kAll, through >= found.wanted))) - 1;
    found.found = true;
    found.bin = static_cast<std::uint32_t>(first + kSumBins - 1 - place);
    found.through = __shfl_sync(kAll, through, place);
    found.left = found.wanted - __shfl_sync(kAll, through - mine, place);
    return found;
  }

  template <class IsCandidate, class WeightOf>
  __device__ Cut radix_cut(const RowKeys<kKept>& row, const IsCandidate& is_candidate, const WeightOf& weight_of,
                           Weight wanted) {
    static_assert(kBins == 1 << 11);
    std::uint32_t prefix = 0;
    Weight left = wanted;
    for (const int shift : {21, 10, 0}) {
      const int bits = shift == 0 ? 10 : 11;
      const FoundBin found = find_bin(
          row,
          [&](std::uint32_t key, std::int32_t id, const auto& add) {
            const bool begins_so = shift == 21 || key >> (shift + bits) == prefix;
            if (begins_so && is_candidate(key, id)) add(key >> shift & ((1U << bits) - 1U), weight_of(key));
          },
          [&](Weight) { return left; });
      prefix = prefix << bits | found.bin;
      left = found.left;
    }
    const std::uint32_t threshold = prefix;
    const Weight one = weight_of(threshold);
    left = (left + one - 1) / one;  // so many of the equal ones, lowest ids first
    constexpr std::uint32_t kMask = (1U << kIdBits / 2) - 1U;
    std::uint32_t id_prefix = 0;
    for (const int shift : {kIdBits / 2, 0}) {
      const FoundBin found = find_bin(
          row,
          [&](std::uint32_t key, std::int32_t id, const auto& add) {
            if (key != threshold || !is_candidate(key, id)) return;
            const auto number = static_cast<std::uint32_t>(id);
            if (shift != 0 || number >> kIdBits / 2 == id_prefix) add(kMask - (number >> shift & kMask), Weight{1});
          },
          [&](Weight) { return left; });
      id_prefix = id_prefix << (shift == 0 ? kIdBits / 2 : 0) | (kMask - found.bin);
      left = found.left;
    }
    return {threshold, static_cast<std::int32_t>(id_prefix)};
  }

  // Inclusive, over the block's threads.
  __device__ Weight prefix(Weight value) {
    const Weight until = warp_prefix(value);
    __syncthreads();
    if (lane_id() == 31) shared_.warp_sums[warp_id()] = until;
    __syncthreads();
    return until + warp_total(lane_id() < warp_id() ? shared_.warp_sums[lane_id()] : 0);
  }

  // Bitonic sort, descending; threads from `count` on have 0.
  __device__ Weight sorted(Weight mine, std::uint32_t count) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int size = 2; size / 2 < static_cast<int>(count); size *= 2) {
      for (int distance = size / 2; distance > 0; distance /= 2) {
        Weight other = 0;
        if (distance < 32) {
          other = __shfl_xor_sync(kAll, mine, distance);
        } else {
          __syncthreads();
          shared_.orders[thread] = mine;
          __syncthreads();
          other = shared_.orders[thread ^ distance];
        }
        const bool keeps_larger = ((thread & size) == 0) == ((thread & distance) == 0);
        mine = keeps_larger ? max(mine, other) : min(mine, other);
      }
    }
    return mine;
  }

  CutShared& shared_;
  Team& team_;
  int turn_ = 0;
  int list_turn_ = 0;
};

}  // namespace hotset::kernels::cuda::sampling
