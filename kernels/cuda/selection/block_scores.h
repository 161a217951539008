// Quest scores on the device: BlockScoresParams of kernels/backend.h over paged block bounds.
//
// Sums over channels, heads and blocks run in fixed trees that depend on the row only. A head's score is within
// 2^-18 * sum over channels of |q bound| of the CPU's; softmax as in low_rank_scores.h. NaN scores of heads: left out
// of the largest, minus infinity in the softmax, NaN in the mean.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/selection/scored_pages.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct BlockScoresDeviceParams {
  ScoredPages rows;          // geometry.kind kBlockBounds; scores [rows, stride] by block; k is not looked at
  const float* q = nullptr;  // [*, heads * dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const std::int64_t* first = nullptr;  // [rows] candidate blocks [first, last); empty where last <= first
  const std::int64_t* last = nullptr;   // [rows], at most the row's blocks
  std::int32_t heads = 0;
  HeadCombine combine = HeadCombine::kMax;
  float scale = 1.0F;
  void* workspace = nullptr;  // block_workspace_bytes(), 16-byte aligned; needs no initial value
};

[[nodiscard]] std::size_t block_workspace_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t block_tokens,
                                                std::int32_t heads);
void launch_block_scores(const BlockScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
