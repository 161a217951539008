#include "kernels/cuda/swap_in.h"

namespace hotset::kernels::cuda {

void launch_swap_in(const SwapInParams& params, Stream stream) {
  launch_sparse_diff(params.diff, stream);
  launch_load_misses({.rows = params.diff.rows,
                      .misses = params.diff.misses,
                      .counts = params.diff.counts,
                      .host_rows = params.host_rows,
                      .device_rows = params.device_rows,
                      .counters = params.counters,
                      .row_bytes = params.row_bytes,
                      .batch = params.diff.batch,
                      .max_selected = params.diff.max_selected,
                      .blocks = params.io_blocks,
                      .follows_diff = true},
                     stream);
}

}  // namespace hotset::kernels::cuda
