// Even division of the work of ragged rows among the blocks of a grid, from lengths that only the device knows. A unit
// is a piece of a row (a page, a chunk); units stand in the order of rows. Which block takes a unit never shows in its
// result.
#pragma once

#include <cstdint>

#include "kernels/cuda/selection/scored_pages.h"

namespace hotset::kernels::cuda {

constexpr unsigned kAllLanes = 0xffffffffU;

struct RowUnits {
  std::int64_t begin[kMostLaunchRows + 1];  // units of the rows before
  std::int64_t warp_sums[32];
};

// Tokens of a row that are scored: none where the selection takes everything.
__device__ __forceinline__ std::int64_t scored_length(const ScoredPages& rows, std::int64_t row) {
  const std::int64_t length = rows.lengths[row];
  return rows.k != nullptr && length <= rows.k[row] ? 0 : length;
}

__device__ __forceinline__ std::int64_t query_row(const ScoredPages& rows, std::int64_t row) {
  return rows.query_rows != nullptr ? rows.query_rows[row] : row;
}

// Called by all threads of the block; units.begin is there for all of them afterwards.
template <class UnitsOf>
__device__ void count_units(RowUnits& units, std::int64_t rows, const UnitsOf& units_of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  std::int64_t carry = 0;
  for (std::int64_t base = 0; base < rows; base += blockDim.x) {
    const std::int64_t row = base + threadIdx.x;
    const std::int64_t mine = row < rows ? units_of(row) : 0;
    std::int64_t sum = mine;
    for (int step = 1; step < 32; step *= 2) {
      const std::int64_t other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) units.warp_sums[warp] = sum;
    __syncthreads();
    std::int64_t before = carry;
    for (int i = 0; i < warps; ++i) {
      if (i < warp) before += units.warp_sums[i];
      carry += units.warp_sums[i];
    }
    if (row < rows) units.begin[row] = before + sum - mine;
    __syncthreads();
  }
  if (threadIdx.x == 0) units.begin[rows] = carry;
  __syncthreads();
}

// body(row, begin, end) for each row's part of this block's share, begin and end in units of the row. All threads of
// the block make the same calls.
template <class Body>
__device__ void for_my_units(const RowUnits& units, std::int64_t rows, const Body& body) {
  const std::int64_t total = units.begin[rows];
  const std::int64_t end = total * (blockIdx.x + 1) / gridDim.x;
  std::int64_t at = total * blockIdx.x / gridDim.x;
  if (at >= end) return;
  std::int64_t row = 0;  // the last one that begins at or before `at`
  for (std::int64_t high = rows; high - row > 1;) {
    const std::int64_t middle = (row + high) / 2;
    (units.begin[middle] <= at ? row : high) = middle;
  }
  for (; at < end; ++row) {
    const std::int64_t row_end = min(units.begin[row + 1], end);
    if (at < row_end) body(row, at - units.begin[row], row_end - units.begin[row]);
    at = row_end;
  }
}

}  // namespace hotset::kernels::cuda
