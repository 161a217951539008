// A row is an item; a warp copies one row at a time, the offload two, 16 bytes per lane and load. The bus takes 1.5 us
// to answer and carries 50 bytes per ns: 75 KB must be in flight. 512 warps with a row of 656 bytes each have 336 KB.
//
// Items of the whole batch are numbered by a prefix sum over the counts. Each block takes a contiguous piece of them,
// even to within one item, up to one item a thread at a time: the chain from item to addresses (row, miss, page tables:
// three loads, each waiting for the last) is walked once for all of these. Then they are sorted by their place in the
// host pool. All blocks sweep it from front to end at the same pace, so rows that are read at one time lie together and
// the address translation holds their pages: 13,056 rows over 2 GiB take 194 us, in the order of the lists 255.
#include <bit>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/page_io.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr std::uint32_t kAll = 0xFFFFFFFFU;
constexpr int kSortedItems = 64;  // of a block: fewer are not worth it
static_assert(kThreads >= kMostSwapBatch && kPageTokens == 64);

struct RowCopy {
  const std::byte* source;
  std::byte* target;
};

// Through L1: where one load of a row ends and the next begins, they share a sector. Volatile: all loads of a turn are
// on their way before its first store.
__device__ uint4 load_row(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}
__device__ std::uint8_t load_row(const std::uint8_t* address) { return *address; }

// `chunks`: of the row. The two rows' loads are in flight together; `second` without a source is left out.
template <class Chunk>
__device__ void copy_rows(const RowCopy& first, const RowCopy& second, std::int64_t chunks, int lane) {
  const auto* from_first = reinterpret_cast<const Chunk*>(first.source);
  const auto* from_second = reinterpret_cast<const Chunk*>(second.source);
  auto* to_first = reinterpret_cast<Chunk*>(first.target);
  auto* to_second = reinterpret_cast<Chunk*>(second.target);
  const std::int64_t second_chunks = second.source != nullptr ? chunks : 0;
  for (std::int64_t c = lane; c < chunks; c += 64) {
    Chunk a0, a1, b0, b1;
    a0 = load_row(from_first + c);
    if (c + 32 < chunks) a1 = load_row(from_first + c + 32);
    if (c < second_chunks) b0 = load_row(from_second + c);
    if (c + 32 < second_chunks) b1 = load_row(from_second + c + 32);
    to_first[c] = a0;
    if (c + 32 < chunks) to_first[c + 32] = a1;
    if (c < second_chunks) to_second[c] = b0;
    if (c + 32 < second_chunks) to_second[c + 32] = b1;
  }
}

__device__ std::int64_t pool_row(const std::int32_t* pages, std::int64_t row) {
  return std::int64_t{pages[row / kPageTokens]} * kPageTokens + row % kPageTokens;
}

// ends[b]: rows of the batch up to and including b. All threads call it; batch <= kThreads.
__device__ void number_items(const LoadMissesParams& p, std::int32_t* ends, std::int32_t* warp_sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  std::int32_t sum = 0;
  if (thread < p.batch) {
    const std::int32_t misses = p.counts[thread].misses;
    if (misses > 0) sum = misses * p.rows[thread].block_tokens;
  }
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t before = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += before;
  }
  if (lane == 31) warp_sums[thread / 32] = sum;
  __syncthreads();
  for (int w = 0; w < thread / 32; ++w) sum += warp_sums[w];
  if (thread < p.batch) ends[thread] = sum;
  __syncthreads();
}

__device__ RowCopy copy_of_item(const LoadMissesParams& p, const std::int32_t* ends, std::int32_t item) {
  int b = 0;  // the first with ends[b] > item
  for (int above = p.batch - 1; b < above;) {
    const int middle = (b + above) / 2;
    if (ends[middle] > item)
      above = middle;
    else
      b = middle + 1;
  }
  const std::int32_t in_row = b > 0 ? item - ends[b - 1] : item;
  const HotRow hot = p.rows[b];
  const int shift = __ffs(hot.block_tokens) - 1;
  const SparseMiss miss = p.misses[std::int64_t{b} * p.max_selected + (in_row >> shift)];
  const std::int64_t offset = in_row & (hot.block_tokens - 1);
  const std::int64_t position = (std::int64_t{miss.block} << shift) + offset;
  const std::int64_t target = pool_row(hot.device_pages, (std::int64_t{miss.slot} << shift) + offset);
  RowCopy copy{};
  copy.target = p.device_rows + target * p.row_bytes;
  if (miss.from_ring != 0) {
    const std::int64_t buffer_rows = std::int64_t{hot.hot_blocks} << shift;
    const std::int32_t* ring_pages = hot.device_pages + (buffer_rows + kPageTokens - 1) / kPageTokens;
    copy.source = p.device_rows + pool_row(ring_pages, position % hot.ring_tokens) * p.row_bytes;
  } else {
    copy.source = p.host_rows + pool_row(hot.host_pages, position) * p.row_bytes;
  }
  return copy;
}

__device__ void add_sum(std::uint64_t* counter, std::uint32_t value, std::uint64_t factor) {
  const std::uint32_t sum = __reduce_add_sync(kAll, value);
  if (threadIdx.x % 32 == 0 && sum != 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(sum * factor));
}

// One block adds the batch's counts.
__device__ void add_counters(const LoadMissesParams& p) {
  const int b = static_cast<int>(threadIdx.x);
  const SparseDiffCounts counts = b < p.batch ? p.counts[b] : SparseDiffCounts{};
  const std::int32_t host_blocks = counts.misses - counts.ring_misses;
  const std::int32_t host_rows = host_blocks > 0 ? host_blocks * p.rows[b].block_tokens : 0;
  add_sum(&p.counters->hits, static_cast<std::uint32_t>(counts.hits), 1);
  add_sum(&p.counters->ring_hits, static_cast<std::uint32_t>(counts.ring_hits), 1);
  add_sum(&p.counters->misses, static_cast<std::uint32_t>(counts.misses), 1);
  add_sum(&p.counters->ring_misses, static_cast<std::uint32_t>(counts.ring_misses), 1);
  add_sum(&p.counters->unplaced, static_cast<std::uint32_t>(counts.unplaced), 1);
  add_sum(&p.counters->bytes_loaded, static_cast<std::uint32_t>(host_rows), static_cast<std::uint64_t>(p.row_bytes));
}

// The place in the host pool in steps of 128 KiB, up to 1 TiB; below it the thread. Only the order depends on it.
__device__ std::uint32_t sort_key(const LoadMissesParams& p, const RowCopy& copy, int thread) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 23) - 1;
  const std::uint64_t place =
      (reinterpret_cast<std::uint64_t>(copy.source) - reinterpret_cast<std::uint64_t>(p.host_rows)) >> 17;
  return static_cast<std::uint32_t>(place < kMost ? place : kMost) * kThreads + static_cast<std::uint32_t>(thread);
}

// Thread i gets the i-th of all threads' keys. All threads call it; `exchange`: [kThreads].
__device__ std::uint32_t sorted_key(std::uint32_t key, std::uint32_t* exchange) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int size = 2; size <= kThreads; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      std::uint32_t other;
      if (distance < 32) {
        other = __shfl_xor_sync(kAll, key, distance);
      } else {
        exchange[thread] = key;
        __syncthreads();
        other = exchange[thread ^ distance];
        __syncthreads();
      }
      const bool lower = ((thread & distance) == 0) == ((thread & size) == 0);
      key = lower ? min(key, other) : max(key, other);
    }
  }
  return key;
}

template <class Chunk>
__global__ void __launch_bounds__(kThreads) load_misses_kernel(const LoadMissesParams p) {
  __shared__ std::int32_t ends[kMostSwapBatch];
  __shared__ std::int32_t warp_sums[kWarps];
  __shared__ RowCopy copies[kThreads];
  __shared__ std::uint32_t order[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  number_items(p, ends, warp_sums);
  if (p.counters != nullptr && blockIdx.x == gridDim.x - 1) add_counters(p);
  const std::int64_t items = ends[p.batch - 1];
  const std::int64_t first_item = items * blockIdx.x / gridDim.x;
  const std::int64_t end_item = items * (blockIdx.x + 1) / gridDim.x;
  const auto chunks = static_cast<std::int64_t>(p.row_bytes / sizeof(Chunk));
  for (std::int64_t piece = first_item; piece < end_item; piece += kThreads) {
    const int count = static_cast<int>(end_item - piece < kThreads ? end_item - piece : kThreads);
    std::uint32_t key = 0xFFFFFFFFU;
    if (thread < count) {
      copies[thread] = copy_of_item(p, ends, static_cast<std::int32_t>(piece) + thread);
      key = sort_key(p, copies[thread], thread);
    }
    if (count >= kSortedItems) key = sorted_key(key, order);
    order[thread] = key;
    __syncthreads();
    for (int i = thread / 32; i < count; i += kWarps)
      copy_rows<Chunk>(copies[order[i] % kThreads], RowCopy{}, chunks, thread % 32);
    __syncthreads();
  }
}

template <class Chunk, bool kToHost>
__global__ void __launch_bounds__(kThreads) move_rows_kernel(const MoveRowsParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto chunks = static_cast<std::int64_t>(p.row_bytes / sizeof(Chunk));
  const auto copy_of = [&p](const RowRun& run, std::int32_t row) {
    RowCopy copy{};
    if (row >= run.rows) return copy;
    const std::int64_t position = run.first_position + row;
    const std::int64_t on_device = run.ring_tokens > 0 ? position % run.ring_tokens : position;
    std::byte* const device = p.device_rows + pool_row(run.device_pages, on_device) * p.row_bytes;
    std::byte* const host = run.host_rows + pool_row(run.host_pages, position) * p.row_bytes;
    copy.source = kToHost ? device : host;
    copy.target = kToHost ? host : device;
    return copy;
  };
  for (std::int32_t r = static_cast<std::int32_t>(blockIdx.x); r < p.run_count; r += gridDim.x) {
    const RowRun run = p.runs[r];
    for (std::int32_t row = 2 * warp; row < run.rows; row += 2 * kWarps)
      copy_rows<Chunk>(copy_of(run, row), copy_of(run, row + 1), chunks, lane);
    if (p.bytes_moved != nullptr && threadIdx.x == 0 && run.rows > 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(p.bytes_moved),
                static_cast<unsigned long long>(run.rows * p.row_bytes));
  }
}

bool in_16_bytes(const void* address, std::int64_t row_bytes) {
  return row_bytes % 16 == 0 && std::bit_cast<std::uintptr_t>(address) % 16 == 0;
}

// A launch that may start before its predecessor ends exists from compute capability 9.0 on.
bool overlaps_launches() {
  int device = 0, major = 0;
  HOTSET_CUDA_CHECK(cudaGetDevice(&device));
  HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

template <bool kToHost>
void move_rows(const MoveRowsParams& params, Stream stream) {
  HS_CHECK(params.run_count >= 0 && params.row_bytes > 0 && params.blocks > 0,
           "the row moves' sizes are within their bounds");
  if (params.run_count == 0) return;
  // The runs' host rows are bases of layers, which are as aligned as whole pages.
  if (in_16_bytes(params.device_rows, params.row_bytes))
    move_rows_kernel<uint4, kToHost><<<params.blocks, kThreads, 0, stream>>>(params);
  else
    move_rows_kernel<std::uint8_t, kToHost><<<params.blocks, kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace

void launch_load_misses(const LoadMissesParams& params, Stream stream) {
  HS_CHECK(params.batch >= 0 && params.batch <= kMostSwapBatch && params.row_bytes > 0 && params.blocks > 0,
           "the page I/O's sizes are within its bounds");
  if (params.batch == 0) return;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(params.blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &overlap;
  // While many blocks of the diff hold their multiprocessors, all of these would crowd on the few free ones and wait
  // there for address translation: at batch 128 that costs 15 % of the time, more than an early start gains.
  constexpr std::int32_t kMostOverlapped = 16;
  const bool overlapped = params.follows_diff && params.batch <= kMostOverlapped && overlaps_launches();
  config.numAttrs = overlapped ? 1 : 0;
  const bool vectors =
      in_16_bytes(params.host_rows, params.row_bytes) && in_16_bytes(params.device_rows, params.row_bytes);
  HOTSET_CUDA_CHECK(
      cudaLaunchKernelEx(&config, vectors ? load_misses_kernel<uint4> : load_misses_kernel<std::uint8_t>, params));
}

void launch_offload(const MoveRowsParams& params, Stream stream) { move_rows<true>(params, stream); }
void launch_restore(const MoveRowsParams& params, Stream stream) { move_rows<false>(params, stream); }

}  // namespace hotset::kernels::cuda
