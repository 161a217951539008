// Sparse diff and page I/O of one layer: after it the selected rows are on the device, in the places that slot_of
// names.
#pragma once

#include "kernels/cuda/page_io.h"
#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct SwapInParams {
  SparseDiffParams diff;
  const std::byte* host_rows = nullptr;  // these as in LoadMissesParams
  std::byte* device_rows = nullptr;
  SwapCounters* counters = nullptr;
  std::int64_t row_bytes = 0;
  std::int32_t io_blocks = kPageIoBlocks;
};

// Two launches. In small batches the second takes its place on the SMs while the first runs, where the device can
// (sm_90).
void launch_swap_in(const SwapInParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
