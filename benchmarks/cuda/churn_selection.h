// Selections that change as those of a real model do: from step to step each entry stays, or with a given probability
// becomes another position nearby. Dummy weights select nearly at random. For benchmarks only.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct ChurnParams {
  std::int32_t* selections = nullptr;    // [rows, stride] of a layer: top-k's, whose forced entries stay
  const std::int32_t* counts = nullptr;  // [rows]; 0: padding
  std::int64_t stride = 0;
  std::int32_t* chosen = nullptr;  // [rows, stride], -1 before the first step; belongs to the layer
  std::int32_t* steps = nullptr;   // [rows], 0 before the first step; likewise
  std::int32_t rows = 0;
  std::int32_t sink = 0;    // forced entries at the front
  std::int32_t window = 0;  // and at the end
  std::int64_t length = 0;  // the shortest of any step: positions [sink, length - window) are chosen from
  std::uint64_t seed = 0;   // of the layer
  float churn = 0.0F;       // probability
};

// Entry i of n lies in the n-th part of the positions that is its own: ascending and unique.
void launch_churn(const ChurnParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
