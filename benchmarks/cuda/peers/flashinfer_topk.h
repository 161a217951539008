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

// Only enqueues. With ties to the lower index FlashInfer has one algorithm; this is its faster form, which loads as
// many scores at once as max_length allows (four for multiples of four). The one it calls graph-safe loads them singly:
// 74 us instead of 48 for a row of 131,072 on an H200.
void launch_flashinfer_top_k(const FlashInferTopKParams& params, kernels::cuda::Stream stream);

}  // namespace hotset::peers
