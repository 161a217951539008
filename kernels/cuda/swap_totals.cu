#include "kernels/cuda/runtime.h"
#include "kernels/cuda/swap_totals.h"

namespace hotset::kernels::cuda {
namespace {

__global__ void add_swap_counts_kernel(const SparseDiffCounts* counts, SwapTotals* totals, std::int32_t rows) {
  const auto row = static_cast<std::int32_t>(threadIdx.x + blockIdx.x * blockDim.x);
  if (row >= rows) return;
  totals[row].hits += counts[row].hits;
  totals[row].ring_hits += counts[row].ring_hits;
  totals[row].misses += counts[row].misses;
  totals[row].ring_misses += counts[row].ring_misses;
  totals[row].unplaced += counts[row].unplaced;
}

}  // namespace

void launch_add_swap_counts(const SparseDiffCounts* counts, SwapTotals* totals, std::int32_t rows, Stream stream) {
  if (rows <= 0) return;
  constexpr int kThreads = 128;
  add_swap_counts_kernel<<<(rows + kThreads - 1) / kThreads, kThreads, 0, stream>>>(counts, totals, rows);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
