#include <cuda_bf16.h>

#include <flashinfer/utils.cuh>
// One tile height instead of four: the others are for short queries, and each takes its time to compile.
#undef DISPATCH_CTA_TILE_Q
#define DISPATCH_CTA_TILE_Q(cta_tile_q, CTA_TILE_Q, ...)   \
  {                                                        \
    if ((cta_tile_q) != 128) return cudaErrorInvalidValue; \
    constexpr uint32_t CTA_TILE_Q = 128;                   \
    __VA_ARGS__                                            \
  }
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

#include "benchmarks/cuda/peers/flashinfer_prefill.h"
#include "kernels/cuda/runtime.h"

namespace hotset::peers {

void launch_flashinfer_prefill_fa2(const FlashInferPrefillParams& params, kernels::cuda::Stream stream) {
  using Params = flashinfer::SinglePrefillParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>;
  using Attention = flashinfer::DefaultAttention<false, false, false, false>;
  constexpr std::uint32_t kDim = 128;
  const auto bf16 = [](const void* p) { return static_cast<__nv_bfloat16*>(const_cast<void*>(p)); };
  const Params prefill(bf16(params.q), bf16(params.k), bf16(params.v), nullptr, bf16(params.out), nullptr, nullptr,
                       static_cast<std::uint32_t>(params.heads), static_cast<std::uint32_t>(params.kv_heads),
                       static_cast<std::uint32_t>(params.queries), static_cast<std::uint32_t>(params.tokens),
                       static_cast<std::uint32_t>(params.heads) * kDim, kDim,
                       static_cast<std::uint32_t>(params.kv_stride), kDim, kDim, /*window_left=*/-1, 0.0F, params.scale,
                       1.0F, 1e4F);
  HOTSET_CUDA_CHECK(
      (flashinfer::SinglePrefillWithKVCacheDispatched<kDim, kDim, flashinfer::PosEncodingMode::kNone, false,
                                                      flashinfer::MaskMode::kCausal, false, Attention>(prefill, nullptr,
                                                                                                       stream)));
}

}  // namespace hotset::peers
