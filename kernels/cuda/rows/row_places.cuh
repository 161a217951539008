// Pool rows of a sequence, from its page table. Resident (hot_blocks 0): position p is row p of the pages. Hot: the
// buffer's pages come first, then the ring's.
#pragma once

#include "core/kv_geometry.h"
#include "kernels/cuda/hot_row.h"

namespace hotset::kernels::cuda {

__device__ inline std::int64_t row_of_pages(const std::int32_t* pages, std::int64_t row) {
  return std::int64_t{pages[row / kPageTokens]} * kPageTokens + row % kPageTokens;
}

__device__ inline std::int64_t buffer_pages(const HotRow& hot) {
  return ceil_div(std::int64_t{hot.hot_blocks} * hot.block_tokens, kPageTokens);
}

// The row that a new token is written to.
__device__ inline std::int64_t new_row(const HotRow& hot, std::int64_t position) {
  if (hot.hot_blocks == 0) return row_of_pages(hot.device_pages, position);
  // Positions are below 2^31.
  const std::uint32_t at = static_cast<std::uint32_t>(position) % static_cast<std::uint32_t>(hot.ring_tokens);
  return row_of_pages(hot.device_pages + buffer_pages(hot), at);
}

}  // namespace hotset::kernels::cuda
