// A thread writes four neighbouring entries of a list; blocks behind a list's end leave at once.
#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/rows/row_places.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/slot_lists.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kEntries = 4;

// The rows of block `block` that lie before `length`.
__device__ std::int64_t rows_of_block(std::int32_t block, std::int32_t block_tokens, std::int64_t length) {
  const std::int64_t left = length - std::int64_t{block} * block_tokens;
  if (block < 0 || left <= 0) return block_tokens;  // holes
  return left < block_tokens ? left : block_tokens;
}

// Where block `block` begins in the rows of the sequence's pages on the device, or -1. `slot`: read for hot rows.
__device__ std::int64_t first_row(const HotRow& hot, std::int32_t block, std::int32_t slot, std::int32_t block_tokens,
                                  std::int64_t length) {
  const std::int64_t first = std::int64_t{block} * block_tokens;
  if (block < 0 || first >= length) return -1;
  if (hot.hot_blocks == 0) return first;
  if (slot < hot.hot_blocks) return slot < 0 ? -1 : std::int64_t{slot} * block_tokens;
  return buffer_pages(hot) * kPageTokens + std::int64_t{slot - hot.hot_blocks} * block_tokens;
}

// What depends on nothing that is on its way is loaded at once, needed or not: a short list takes as long as its loads
// that follow one another, which are three.
__global__ void __launch_bounds__(kThreads) slot_lists_kernel(const SlotListsParams p, bool wide) {
  follow_kernels_before();
  const auto row = static_cast<std::int64_t>(blockIdx.y);
  const std::int64_t rank = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEntries;
  const std::int64_t length = p.lengths[row];
  const std::int32_t block_tokens = p.row_block_tokens == nullptr ? p.block_tokens : p.row_block_tokens[row];
  const std::int32_t block_count = p.blocks == nullptr ? -1 : p.block_counts[row];
  const HotRow hot = p.rows[row * p.row_stride];
  const std::int32_t selected = block_tokens == 0 ? -1 : min(block_count, p.max_selected);
  const int shift = block_tokens == 0 ? 0 : __ffs(block_tokens) - 1;
  const std::int64_t first_entry = row * p.max_selected;

  std::int32_t last = -1;
  std::int32_t blocks[kEntries];
  std::int32_t slots[kEntries];
  if (selected > 0) last = p.blocks[first_entry + selected - 1];
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    const std::int64_t entry = (rank + i) >> shift;
    blocks[i] = entry < selected ? p.blocks[first_entry + entry] : -1;
    slots[i] = entry < selected && hot.hot_blocks != 0 ? p.slot_of[first_entry + entry] : -1;
  }
  std::int64_t count = 0;
  if (length <= 0) {
    count = 0;
  } else if (selected < 0) {
    count = hot.hot_blocks == 0 ? length : 0;
  } else if (selected > 0) {
    count = std::int64_t{selected - 1} * block_tokens + rows_of_block(last, block_tokens, length);
  }
  count = min(count, p.max_count);
  if (rank == 0) p.counts[row] = static_cast<std::int32_t>(count);
  if (rank >= count) return;
  std::int64_t of_pages[kEntries];
  std::int32_t pages[kEntries];
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    of_pages[i] = selected < 0 ? rank + i : first_row(hot, blocks[i], slots[i], block_tokens, length);
    if (selected >= 0 && of_pages[i] >= 0) of_pages[i] += (rank + i) & (block_tokens - 1);
    if (rank + i >= count) of_pages[i] = -1;
    pages[i] = of_pages[i] >= 0 ? hot.device_pages[of_pages[i] / kPageTokens] : -1;
  }
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    slots[i] = of_pages[i] < 0 ? -1 : static_cast<std::int32_t>(pages[i] * kPageTokens + of_pages[i] % kPageTokens);
  }
  std::int32_t* const to = p.slots + row * p.slot_stride + rank;
  if (wide && rank + kEntries <= count) {
    *reinterpret_cast<int4*>(to) = make_int4(slots[0], slots[1], slots[2], slots[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kEntries; ++i) {
    if (rank + i < count) to[i] = slots[i];
  }
}

}  // namespace

void launch_slot_lists(const SlotListsParams& params, Stream stream) {
  if (params.batch <= 0) return;
  HS_CHECK(params.max_count >= 0 && params.max_count <= params.slot_stride, "lists overlap");
  const std::int32_t block = params.block_tokens;
  HS_CHECK(block >= 1 && block <= kPageTokens && (block & (block - 1)) == 0, "blocks divide a page");
  const bool wide = reinterpret_cast<std::uintptr_t>(params.slots) % 16 == 0 && params.slot_stride % kEntries == 0;
  const auto columns =
      static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(params.max_count, kThreads * kEntries)));
  launch_dependent(slot_lists_kernel, dim3(columns, static_cast<unsigned>(params.batch)), kThreads, 0, 0, stream,
                   params, wide);
}

}  // namespace hotset::kernels::cuda
