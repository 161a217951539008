// What the blocks of a top-k's row tell one another (top_k.cu): the shared memory of a block, and its view of the
// others.
#pragma once

#include <cooperative_groups.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/selection/bulk_copy.cuh"

namespace hotset::kernels::cuda::top_k {

namespace cg = cooperative_groups;

constexpr int kMostThreads = 1024;
constexpr int kLeastThreads = 256;
constexpr int kMostWarps = kMostThreads / 32;
constexpr int kMostBlocks = 16;
constexpr int kFirstBits = 13, kSecondBits = 10, kThirdBits = 9;
constexpr int kSumBins = 32;                                           // fine bins of a sum
constexpr int kMostListed = 2048;                                      // keys of one digit that are pushed
constexpr std::uint32_t kListedBits = (1U << (32 - kFirstBits)) - 1U;  // what is not known of them
constexpr unsigned kAll = 0xffffffffU;

constexpr std::uint32_t kNoKey = 1U << 31;  // in a list
constexpr int kMostSums = (1 << kFirstBits) / kSumBins;

// A block's counts of one digit.
template <int kBits>
struct Histogram {
  static constexpr int kBins = 1 << kBits;
  static constexpr int kSums = kBins / kSumBins;
  std::uint32_t bins[kBins];
};

// What blocks push to one another, at most once each. Of a digit: its sums, their totals, bins of one sum.
enum Exchange { kFirstDigit = 0, kSecondDigit = 3, kThirdDigit = 6, kLists = 9, kCounts = 10, kExchanges = 11 };
enum OfDigit { kSumsPart = 0, kTotalsPart = 1, kBinsPart = 2 };

struct alignas(16) Shared {  // the keys that are kept lie behind it
  // Cleared at the start:
  Histogram<kFirstBits> first;
  Histogram<kSecondBits> second;
  Histogram<kThirdBits> third;
  std::uint32_t above;         // keys above the first digit
  std::uint32_t listed;        // keys that share it
  std::uint32_t above_before;  // of the blocks before, taken keys above the threshold,
  std::uint32_t equal_before;  // and keys at it
  // Pushed by all blocks:
  std::uint32_t sums[kMostSums];    // [block][of those that this block adds up]
  std::uint32_t totals[kMostSums];  // over all blocks
  std::uint32_t bins[kMostBlocks][kSumBins];
  std::uint32_t lists[kMostListed + 3 * kMostBlocks];  // in the order of blocks, of each a multiple of four words
  std::uint32_t aboves[kMostBlocks];
  uint2 counts[kMostBlocks];  // above, equal

  std::uint64_t arrived[kExchanges];
  alignas(16) std::uint32_t list[kMostListed];
  std::uint32_t warp_sums[kMostWarps];
  uint2 warp_counts[kMostWarps];  // above, equal
  std::uint32_t digit;
  std::uint32_t left;
  std::uint32_t in_bin;
};
constexpr int kClearedBytes = static_cast<int>(offsetof(Shared, sums));
static_assert(kClearedBytes % 16 == 0);

// What all blocks together push to one; of lists it is known later.
__device__ inline std::uint32_t pushed_bytes(int exchange, std::uint32_t blocks) {
  if (exchange == kCounts) return blocks * static_cast<std::uint32_t>(sizeof(uint2));
  if (exchange % 3 == kBinsPart) return blocks * kSumBins * 4;
  const int bits = exchange < kSecondDigit ? kFirstBits : exchange < kThirdDigit ? kSecondBits : kThirdBits;
  return 4 * ((1U << bits) / kSumBins);
}

// A block's view of those that share its row.
struct Cluster {
  Shared& shared;
  int rank;
  int size;

  // Before the block's next barrier.
  __device__ explicit Cluster(Shared& of_block) : shared(of_block), rank(0), size(1) {
#if __CUDA_ARCH__ >= 900
    rank = static_cast<int>(cg::this_cluster().block_rank());
    size = static_cast<int>(cg::this_cluster().num_blocks());
    if (threadIdx.x < kExchanges) init_copy_barrier(shared.arrived + threadIdx.x);
#endif
  }
  // All threads, behind that barrier.
  __device__ void begin() const {
    arrive();
    __syncthreads();  // racecheck does not see the one before
    const auto exchange = static_cast<int>(threadIdx.x);
    if (exchange < kExchanges && exchange != kLists) expect(exchange, pushed_bytes(exchange, size));
  }
  // All threads, twice: in begin(), and when all that is pushed to the block is there; the first wait comes before its
  // first push, the second before it ends. Blocks that push nothing do so once.
  __device__ void arrive() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }
  __device__ void wait() const {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  // One thread: how much all blocks together push to this one.
  __device__ void expect(int exchange, std::uint32_t bytes) const { expect_bytes(shared.arrived + exchange, bytes); }
  // To the place of `to` in block `block`.
  __device__ void push([[maybe_unused]] int exchange, [[maybe_unused]] int block, [[maybe_unused]] std::uint32_t* to,
                       [[maybe_unused]] std::uint32_t value) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(in_block(to, block)),
        "r"(value), "r"(in_block(shared.arrived + exchange, block))
        : "memory");
#endif
  }
  __device__ void push([[maybe_unused]] int exchange, [[maybe_unused]] int block, [[maybe_unused]] uint4* to,
                       [[maybe_unused]] uint4 value) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
            in_block(to, block)),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(in_block(shared.arrived + exchange, block))
        : "memory");
#endif
  }
  // All threads: until everything of the exchange is there.
  __device__ void await(int exchange) const { await_in_warp(exchange); }
  // A warp, where it alone pushes in this block. What it waits for lies in the block's own shared memory: there is no
  // cache between, and an acquire of the block's scope is enough.
  __device__ void await_in_warp([[maybe_unused]] int exchange) const {
#if __CUDA_ARCH__ >= 900
    wait_bulk_copy(shared.arrived + exchange, 0);
#endif
  }

#if __CUDA_ARCH__ >= 900
 private:
  __device__ static std::uint32_t in_block(const void* mine, int block) {
    std::uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(mine)), "r"(block));
    return address;
  }
#endif
};

// The same of a block that has its row to itself.
struct Alone {
  Shared& shared;
  static constexpr int rank = 0;
  static constexpr int size = 1;

  __device__ explicit Alone(Shared& of_block) : shared(of_block) {}
  __device__ void begin() const {}
  __device__ void arrive() const {}
  __device__ void wait() const {}
  __device__ void expect(int /*exchange*/, std::uint32_t /*bytes*/) const {}
  template <class Value>
  __device__ void push(int /*exchange*/, int /*block*/, Value* to, Value value) const {
    *to = value;
  }
  __device__ void await(int /*exchange*/) const { __syncthreads(); }
  __device__ void await_in_warp(int /*exchange*/) const { __syncwarp(); }
};

}  // namespace hotset::kernels::cuda::top_k
