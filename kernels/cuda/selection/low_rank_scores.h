// Low-rank index key scores on the device: LowRankScoresParams of kernels/backend.h over paged 4-bit keys.
//
// Sums of a row are taken over pieces that its positions alone fix: a score's bits depend on its own row only.
// Query heads go in slices: up to 4 heads of one KV head.
// - On Hopper, rank 16 or 32, an even number of KV heads and at most 8 slices: keys are read once. Launches: queries
//   projected; scores, by a cooperative grid of at most one block for each multiprocessor, which starts when all its
//   blocks have room: kernels of other streams that fill multiprocessors delay it until they end. Where half of the KV
//   heads are an even number of at most 8 slices, each half has such a launch, of which the second adds to the scores
//   of the first. Logits beyond +-2^20 (in units of log 2) count as that. 8 KV heads take groups of up to 8, four KV
//   heads groups of up to 16.
// - On Hopper, rank 16, 32 or 64 and at most 32 slices (groups of up to 16 of 8 KV heads, up to 128 of one): keys are
//   read twice. Four launches: queries projected; maximum and sum of each chunk of 256 tokens; those joined in the
//   order of chunks; scores, summed over slices, then over the heads of a slice. Logits beyond 2^20 count as that; a
//   head that has none above -2^20 scores nothing.
// Both use tensor cores, with the projected query in integers: off by at most 2^-15 (rank 64: 2^-14) of the head's
// largest channel. A head whose projected query is not finite scores nothing.
// - Everything else: the plain form, float32 throughout.
// A logit is within 2^-14 * sum over channels of |largest q of the head * x| of the CPU's, a score within about 2^-12
// of itself times (1 + the largest |logit|), or 0 where it is less than 2^-90. NaN logits count as minus infinity,
// infinite ones as the largest number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/selection/scored_pages.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct LowRankScoresDeviceParams {
  ScoredPages rows;          // geometry.kind kLowRankKeys, rank even
  const float* q = nullptr;  // [*, heads * dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const float* basis = nullptr;  // [kv_heads, dim, rank]
  std::int32_t heads = 0;
  float scale = 1.0F;
  void* workspace = nullptr;                // low_rank_workspace_bytes(), 16-byte aligned; needs no initial value
  std::int32_t grid_blocks = 0;             // 0: chosen. Never shows in the scores
  std::int32_t spared_multiprocessors = 0;  // that the chosen grid leaves to work of other streams
  bool plain = false;                       // take the plain form: float32 throughout
};

[[nodiscard]] std::size_t low_rank_workspace_bytes(std::int64_t rows, std::int64_t max_length, std::int32_t heads,
                                                   std::int32_t rank);
void launch_low_rank_scores(const LowRankScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
