// What the sparse diffs of a step found, added up over layers for every batch row.
#pragma once

#include <cstdint>

#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct SwapTotals {
  std::int32_t hits = 0;  // blocks
  std::int32_t ring_hits = 0;
  std::int32_t misses = 0;
  std::int32_t ring_misses = 0;  // those of the misses that came from the ring
  std::int32_t unplaced = 0;
};

// totals[r] += counts[r]; device pointers, [rows].
void launch_add_swap_counts(const SparseDiffCounts* counts, SwapTotals* totals, std::int32_t rows, Stream stream);

}  // namespace hotset::kernels::cuda
