// Rows of the embedding table on the device: out[t, :] = table[tokens[t], :]. Exact, but for the rounding to a bfloat16
// output. And the tokens themselves, where the device has drawn them.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's.
struct EmbedDeviceParams {
  const void* table = nullptr;  // [vocabulary, hidden] of table_type
  ActivationType table_type = ActivationType::kBF16;
  const std::int32_t* tokens = nullptr;  // [count]; one outside the vocabulary (padding: -1) gives a row of zeros
  void* out = nullptr;                   // [count, hidden] of out_type
  ActivationType out_type = ActivationType::kF32;
  std::int64_t out_stride = 0;  // in elements, 0: hidden
  std::int64_t count = 0;
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
};

void launch_embed(const EmbedDeviceParams& params, Stream stream);

// tokens[i] = from[indices[i]] where indices[i] >= 0: tokens that were drawn on the device become inputs.
struct TakeTokensParams {
  const std::int32_t* from = nullptr;
  const std::int32_t* indices = nullptr;  // [count]
  std::int32_t* tokens = nullptr;         // in and out [count]
  std::int64_t count = 0;
};

void launch_take_tokens(const TakeTokensParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
