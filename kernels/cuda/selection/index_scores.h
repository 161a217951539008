// Lightning indexer scores on the device: IndexScoresParams of kernels/backend.h over paged index keys.
//
// - FP8 keys of 128 channels and 32 or 64 heads on Hopper: tensor cores. Keys become float16 exactly; queries are
//   rounded to float16 after each head was scaled by a power of two, so that every q is off by at most 2^-11 of itself
//   (or 2^-39 of its head's largest), and a score by at most 2^-11 * sum over heads of |weight| sum over channels of
//   |q key|, plus float32 rounding.
// - bf16 keys of such shapes: tensor cores too. A query is the sum of two bf16 numbers, off by at most 2^-15 of itself
//   (or 2^-126); a score by at most 2^-14 * the same sum: 2^-15 of it from the queries, the rest from float32 sums, in
//   which tensor cores truncate. With one bf16 number it would be 2^-8; at the tensor cores' rate the products of both
//   take half of the time in which a page arrives. (DeepSeek's own indexer rounds queries to e4m3, 2^-4.) An infinite
//   key or query may give NaN where the CPU has an infinity, to its own token or row.
// - Everything else: the plain form, equal to the CPU's scores bit for bit (but for the sign of zero).
// In every form a score depends on its own token and query only. A NaN key, query or weight gives NaN scores, of that
// token or row.
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
  std::int32_t grid_blocks = 0;             // 0: chosen. Never shows in the scores
  std::int32_t spared_multiprocessors = 0;  // that the chosen grid leaves to work of other streams
  bool plain = false;                       // take the plain form: float32 throughout
};

void launch_index_scores(const IndexScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
