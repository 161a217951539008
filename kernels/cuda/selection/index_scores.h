// Lightning indexer scores on the device: IndexScoresParams of kernels/backend.h over paged index keys.
//
// - FP8 keys of 128 channels and 32 or 64 heads on Hopper: tensor cores. Keys become float16 exactly; queries are
//   rounded to float16 after each head was scaled by a power of two, so that every q is off by at most 2^-12 of itself
//   (or 2^-40 of its head's largest), and a score by at most 2^-12 * sum over heads of |weight| sum over channels of
//   |q key|, plus float32 rounding. A score depends on its own token and query only.
// - Everything else: the plain form, equal to the CPU's scores bit for bit (but for the sign of zero).
// A NaN key, query or weight gives NaN scores, of that token or row.
#pragma once

#include <cstdint>

#include "kernels/cuda/selection/scored_pages.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct IndexScoresDeviceParams {
  ScoredPages rows;                // geometry.kind kIndexKeys
  const float* q = nullptr;        // [*, heads * dim], 16-byte aligned; row stride in floats below
  std::int64_t q_stride = 0;       // a multiple of 4
  const float* weights = nullptr;  // [*, heads], every constant factor in them
  std::int32_t heads = 0;
  std::int32_t grid_blocks = 0;  // 0: chosen. Never shows in the scores
  bool plain = false;            // take the plain form (tests)
};

void launch_index_scores(const IndexScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
