// FlashInfer's causal attention over dense keys and values of one sequence, to be timed beside ours: its kernels for
// any GPU (FA2) and for sm_90 (FA3). Defined only in a build with HOTSET_PEERS. Heads of 128 channels, bf16.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace hotset::peers {

// The queries are the last `queries` of the `tokens` positions: query i sees tokens 0 ... tokens - queries + i.
struct FlashInferPrefillParams {
  const void* q = nullptr;  // [queries, heads * 128], contiguous, 16-byte aligned
  const void* k = nullptr;  // [tokens, kv_heads * 128]; row stride in elements, a multiple of 8
  const void* v = nullptr;  // as k
  std::int64_t kv_stride = 0;
  void* out = nullptr;  // [queries, heads * 128], contiguous
  std::int64_t queries = 0, tokens = 0;
  std::int32_t heads = 0, kv_heads = 0;
  float scale = 1.0F;  // multiplies q.k
};

// They only enqueue. FA2: heads / kv_heads * queries >= 128; FA3: compute capability 9.0 only.
void launch_flashinfer_prefill_fa2(const FlashInferPrefillParams& params, kernels::cuda::Stream stream);
void launch_flashinfer_prefill_fa3(const FlashInferPrefillParams& params, kernels::cuda::Stream stream);

}  // namespace hotset::peers
