// FlashInfer's exact top-k with ties to the lower index, to be timed beside ours. Defined only in a build with
// HOTSET_PEERS.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace hotset::peers {

struct FlashInferTopKParams {
  const float* scores = nullptr;          // [rows, max_length], contiguous
  const std::int32_t* lengths = nullptr;  // [rows]
  const std::int32_t* offsets = nullptr;  // [rows] added to the indices of a row: zeros for plain indices
  std::int32_t* out = nullptr;            // [rows, k] indices in no order; a row shorter than k ends in -1
  std::int64_t rows = 0, max_length = 0;
  std::int32_t k = 0;  // <= 2,048
};

// Only enqueues. The form that may sit in a graph while lengths change.
void launch_flashinfer_top_k(const FlashInferTopKParams& params, kernels::cuda::Stream stream);

}  // namespace hotset::peers
