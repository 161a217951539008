// One block of 1,024 threads per row. The diff is a set of stable partitions, so everything is a ballot, a count and a
// place: five barriers in all.
//
// 1. The selection goes into an open-addressing table in shared memory; the least entry of a block wins.
// 2. Every buffer slot looks its block up: hits, as one bit per slot.
// 3. Entries and LRU places are classified; each warp owns a contiguous range of both and counts it.
// 4. Counts of the warps before give every LRU place its rank, hence its new place; the first free ones are victims.
// 5. Misses take their victims.
//
// A table word is (low bits of the block) << 13 | entry. Words of one block differ in the entry only, so atomicMin
// keeps the first. Blocks of 2^19 and more could share the low bits: then the whole block is compared too.
#include "core/check.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/sparse_diff.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr std::uint32_t kAll = 0xFFFFFFFFU;
constexpr std::uint32_t kEmpty = 0xFFFFFFFFU;  // no word: its entry would be 8,191
constexpr std::uint16_t kNoSlot = 0xFFFF;
constexpr int kEntryBits = 13;
constexpr std::uint32_t kEntryMask = (1U << kEntryBits) - 1;
static_assert(kMostSelected <= (1 << (kEntryBits - 1)) && kMostHotBlocks < kNoSlot);

// Shared memory after the table of `table_words`. kSlots and kEntries: per thread.
template <int kSlots, int kEntries>
struct Shared {
  std::int32_t selected[kThreads * kEntries];        // -1: not valid
  std::uint32_t hit_bits[kWarps * kSlots];           // [H / 32]
  std::uint16_t slot_of_entry[kThreads * kEntries];  // of hits
  std::uint16_t victims[kThreads * kEntries];        // by rank among the misses
  std::uint32_t free_places[kWarps];                 // per warp: LRU places without a hit
  std::uint32_t misses_and_hits[kWarps];             // misses | hits << 16
  std::uint32_t ring_hits[kWarps];
  std::uint32_t ring_misses[kWarps];  // of those that found a victim
};

struct BlockTable {
  std::uint32_t* words;
  const std::int32_t* selected;
  int bits;
  bool wide;  // blocks of 2^19 and more occur

  __device__ std::uint32_t mask() const { return (1U << bits) - 1; }
  __device__ std::uint32_t home(std::int32_t block) const {
    return (static_cast<std::uint32_t>(block) * 0x9E3779B9U) >> (32 - bits);
  }
  __device__ bool holds(std::uint32_t word, std::int32_t block) const {
    return ((word ^ (static_cast<std::uint32_t>(block) << kEntryBits)) >> kEntryBits) == 0 &&
           (!wide || selected[word & kEntryMask] == block);
  }
  __device__ std::uint32_t insert(std::int32_t block, int entry) {
    const std::uint32_t word = static_cast<std::uint32_t>(block) << kEntryBits | static_cast<std::uint32_t>(entry);
    std::uint32_t at = home(block);
    while (true) {
      const std::uint32_t there = atomicCAS(&words[at], kEmpty, word);
      if (there == kEmpty) return at;
      if (holds(there, block)) {
        atomicMin(&words[at], word);
        return at;
      }
      at = (at + 1) & mask();
    }
  }
};

// Low half: the sum over all lanes; high half: over the lanes before `end`. Sums stay below 2^16.
__device__ std::uint32_t sums_to(std::uint32_t value, int lane, int end) {
  return __reduce_add_sync(kAll, value | (lane < end ? value << 16 : 0U));
}

__device__ void write_nothing(const SparseDiffParams& p, int row) {
  for (int i = static_cast<int>(threadIdx.x); i < p.max_selected; i += kThreads)
    p.slot_of[std::int64_t{row} * p.max_selected + i] = -1;
  if (threadIdx.x == 0) p.counts[row] = {};
}

template <int kSlots, int kEntries>
__global__ void __launch_bounds__(kThreads, 1) sparse_diff_kernel(const SparseDiffParams p, int table_bits) {
  extern __shared__ uint4 shared_memory[];
  auto* words = reinterpret_cast<std::uint32_t*>(shared_memory);
  auto& shared = *reinterpret_cast<Shared<kSlots, kEntries>*>(words + (1U << table_bits));
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");  // the page I/O may take its place on the SMs; it waits there
#endif
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const std::uint32_t before_lane = (1U << lane) - 1;
  const std::int64_t outputs = std::int64_t{row} * p.max_selected;
  const int first_entry = warp * 32 * kEntries + lane;  // then every 32nd
  const int first_slot = warp * 32 * kSlots + lane;

  // Loads that depend on nothing come first: they cover the row's and the table's set-up.
  std::int32_t block[kEntries];  // later phases read it from shared memory: registers are short
#pragma unroll
  for (int j = 0; j < kEntries; ++j) {
    const int i = first_entry + 32 * j;
    block[j] = i < p.max_selected ? p.selected[outputs + i] : -1;
  }
  const std::int32_t length = p.lengths[row];
  const std::int32_t entries = min(p.selected_counts[row], p.max_selected);
  const HotRow hot = p.rows[row];
  if (length <= 0 || hot.hot_blocks <= 0) return write_nothing(p, row);

  std::int32_t resident[kSlots];
  std::uint16_t order[kSlots];
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int s = first_slot + 32 * j;
    const bool there = s < hot.hot_blocks;
    resident[j] = there ? hot.block_of_slot[s] : -1;
    order[j] = there ? hot.lru[s] : std::uint16_t{0};
  }
  for (int i = thread; i < (1 << table_bits) / 4; i += kThreads)
    shared_memory[i] = make_uint4(kEmpty, kEmpty, kEmpty, kEmpty);

  // The contract's comparisons in tokens, as bounds of block numbers: B is a power of two, blocks are >= 0.
  const int shift = __ffs(hot.block_tokens) - 1;
  const std::int32_t newest = length - 1;
  const std::int32_t last_block = newest >> shift;
  const std::int32_t ring_from = max(newest + 1 - hot.ring_recent, 0) >> shift;  // these overlap the newest R tokens
  const std::int32_t oldest_in_ring = newest - hot.ring_tokens;                  // the newest token that has left it
  const std::int32_t slack_from = oldest_in_ring < 0 ? 0 : (oldest_in_ring >> shift) + 1;
#pragma unroll
  for (int j = 0; j < kEntries; ++j) {
    const int i = first_entry + 32 * j;
    if (i >= entries || block[j] < 0 || block[j] > last_block) block[j] = -1;
    shared.selected[i] = block[j];
    shared.slot_of_entry[i] = kNoSlot;
  }
  __syncthreads();

  // 1. The selection's table.
  BlockTable table{words, shared.selected, table_bits, last_block >= (1 << (32 - kEntryBits))};
  std::uint32_t place[kEntries];
#pragma unroll
  for (int j = 0; j < kEntries; ++j) place[j] = block[j] >= 0 ? table.insert(block[j], first_entry + 32 * j) : 0;
  __syncthreads();

  // 2. Hits. A block in the buffer never overlaps the newest R tokens: it did not when it came, and they move on.
#pragma unroll
  for (int group = 0; group < kSlots; group += 4) {
    std::uint32_t found[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // the first probes of four slots are in flight together
      const std::int32_t wanted = resident[group + k];
      found[k] = wanted >= 0 ? words[table.home(wanted)] : kEmpty;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int j = group + k;
      std::uint32_t at = table.home(resident[j]);
      while (found[k] != kEmpty && !table.holds(found[k], resident[j])) {
        at = (at + 1) & table.mask();
        found[k] = words[at];
      }
      const bool hit = found[k] != kEmpty;
      if (hit) shared.slot_of_entry[found[k] & kEntryMask] = static_cast<std::uint16_t>(first_slot + 32 * j);
      const std::uint32_t bits = __ballot_sync(kAll, hit);
      if (lane == 0) shared.hit_bits[warp * kSlots + j] = bits;
    }
  }
  __syncthreads();

  // 3. Entries: out of the ring, a hit or a miss. LRU places: hit or free.
  std::int32_t out[kEntries];  // the ring's slot, the hit's, or -1
  std::uint32_t miss_bits[kEntries];
  std::uint32_t misses = 0, hits = 0, ring_hits = 0;
#pragma unroll
  for (int j = 0; j < kEntries; ++j) {
    const int i = first_entry + 32 * j;
    const std::int32_t wanted = shared.selected[i];
    const bool counts = wanted >= 0 && (words[place[j]] & kEntryMask) == static_cast<std::uint32_t>(i);
    const bool recent = counts && wanted >= ring_from;
    const std::uint16_t slot = shared.slot_of_entry[i];
    const bool hit = slot != kNoSlot;
    out[j] = hit ? slot : -1;
    if (recent) out[j] = hot.hot_blocks + wanted % (hot.ring_tokens >> shift);
    miss_bits[j] = __ballot_sync(kAll, counts && !recent && !hit);
    misses += __popc(miss_bits[j]);
    hits += __popc(__ballot_sync(kAll, hit));
    ring_hits += __popc(__ballot_sync(kAll, recent));
  }
  std::uint32_t free_bits[kSlots];
  std::uint32_t free_places = 0;
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const bool hit = (shared.hit_bits[order[j] / 32] >> (order[j] % 32) & 1U) != 0;
    free_bits[j] = __ballot_sync(kAll, first_slot + 32 * j < hot.hot_blocks && !hit);
    free_places += __popc(free_bits[j]);
  }
  if (lane == 0) {
    shared.free_places[warp] = free_places;
    shared.misses_and_hits[warp] = misses | hits << 16;
    shared.ring_hits[warp] = ring_hits;
  }
  __syncthreads();

  // 4. The new order: free places that stay, loaded ones, hits.
  const std::uint32_t free_sums = sums_to(shared.free_places[lane], lane, warp);
  const std::uint32_t miss_sums = sums_to(shared.misses_and_hits[lane] & 0xFFFFU, lane, warp);
  const int all_free = static_cast<int>(free_sums & 0xFFFFU);
  const int all_misses = static_cast<int>(miss_sums & 0xFFFFU);
  const int loaded = min(all_misses, all_free);
  int rank = static_cast<int>(free_sums >> 16);  // free places before this warp's
#pragma unroll
  for (int j = 0; j < kSlots; ++j) {
    const int at_lru = first_slot + 32 * j;
    const int free_rank = rank + __popc(free_bits[j] & before_lane);
    rank += __popc(free_bits[j]);
    if (at_lru >= hot.hot_blocks) continue;
    int next = all_free + at_lru - free_rank;  // a hit
    if ((free_bits[j] >> lane & 1U) != 0) {
      next = free_rank < loaded ? all_free - loaded + free_rank : free_rank - loaded;
      if (free_rank < loaded) shared.victims[free_rank] = order[j];
    }
    hot.lru[next] = order[j];
  }
  rank = static_cast<int>(miss_sums >> 16);  // misses before this warp's
  int miss_rank[kEntries];                   // -1: no miss, or no victim is left
  std::uint32_t ring_misses = 0;
#pragma unroll
  for (int j = 0; j < kEntries; ++j) {
    const int mine = rank + __popc(miss_bits[j] & before_lane);
    rank += __popc(miss_bits[j]);
    miss_rank[j] = (miss_bits[j] >> lane & 1U) != 0 && mine < loaded ? mine : -1;
    ring_misses +=
        __popc(__ballot_sync(kAll, miss_rank[j] >= 0 && shared.selected[first_entry + 32 * j] >= slack_from));
  }
  if (lane == 0) shared.ring_misses[warp] = ring_misses;
  __syncthreads();

  // 5. Loads and outputs.
#pragma unroll
  for (int j = 0; j < kEntries; ++j) {
    const int i = first_entry + 32 * j;
    if (miss_rank[j] >= 0) {
      const std::int32_t loaded_block = shared.selected[i];
      const std::uint16_t slot = shared.victims[miss_rank[j]];
      out[j] = slot;
      hot.block_of_slot[slot] = loaded_block;
      p.misses[outputs + miss_rank[j]] = {loaded_block, slot, static_cast<std::uint16_t>(loaded_block >= slack_from)};
    }
    if (i < p.max_selected) p.slot_of[outputs + i] = out[j];
  }
  if (warp == 0) {
    const std::uint32_t all_hits = __reduce_add_sync(kAll, shared.misses_and_hits[lane] >> 16);
    const std::uint32_t all_ring_hits = __reduce_add_sync(kAll, shared.ring_hits[lane]);
    const std::uint32_t all_ring_misses = __reduce_add_sync(kAll, shared.ring_misses[lane]);
    if (lane == 0)
      p.counts[row] = {static_cast<std::int32_t>(all_hits), static_cast<std::int32_t>(all_ring_hits), loaded,
                       static_cast<std::int32_t>(all_ring_misses), all_misses - loaded};
  }
}

template <int kSlots, int kEntries>
void launch_shape(const SparseDiffParams& params, Stream stream) {
  constexpr int kTableBits = kEntries == 2 ? 13 : 14;  // four words per entry: two thirds of the probes end at once
  static_assert((1 << kTableBits) == 4 * kThreads * kEntries);
  constexpr std::size_t kBytes = (sizeof(std::uint32_t) << kTableBits) + sizeof(Shared<kSlots, kEntries>);
  const auto kernel = sparse_diff_kernel<kSlots, kEntries>;
  HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<params.batch, kThreads, kBytes, stream>>>(params, kTableBits);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_sparse_diff(const SparseDiffParams& params, Stream stream) {
  HS_CHECK(params.batch >= 0 && params.batch <= kMostSwapBatch && params.max_selected > 0 &&
               params.max_selected <= kMostSelected && params.max_hot_blocks > 0 &&
               params.max_hot_blocks <= kMostHotBlocks,
           "the sparse diff's sizes are within its bounds");
  if (params.batch == 0) return;
  if (params.max_hot_blocks <= 4 * kThreads && params.max_selected <= 2 * kThreads)
    launch_shape<4, 2>(params, stream);
  else if (params.max_hot_blocks <= 8 * kThreads)
    launch_shape<8, 4>(params, stream);
  else
    launch_shape<16, 4>(params, stream);
}

}  // namespace hotset::kernels::cuda
