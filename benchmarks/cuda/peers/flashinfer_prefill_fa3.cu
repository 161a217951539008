// A file of its own: FlashInfer's sm_90 structs have the names of the others.
#include <cuda_bf16.h>

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "benchmarks/cuda/peers/flashinfer_prefill.h"
#include "kernels/cuda/runtime.h"

namespace hotset::peers {

void launch_flashinfer_prefill_fa3(const FlashInferPrefillParams& params, kernels::cuda::Stream stream) {
  using Element = cutlass::bfloat16_t;
  using Params = flashinfer::SinglePrefillParams<Element, Element, Element>;
  constexpr int kDim = 128;
  const auto elements = [](const void* p) { return static_cast<Element*>(const_cast<void*>(p)); };
  Params prefill{};
  prefill.q_ptr = elements(params.q);
  prefill.k_ptr = elements(params.k);
  prefill.v_ptr = elements(params.v);
  prefill.o_ptr = elements(params.out);
  prefill.additional_params.sm_scale = params.scale;
  prefill.q_stride_n = prefill.o_stride_n = std::int64_t{params.heads} * kDim;
  prefill.k_stride_n = prefill.v_stride_n = params.kv_stride;
  prefill.q_stride_h = prefill.k_stride_h = prefill.v_stride_h = prefill.o_stride_h = kDim;
  prefill.qo_len = static_cast<int>(params.queries);
  prefill.kv_len = static_cast<int>(params.tokens);
  prefill.num_qo_heads = params.heads;
  prefill.num_kv_heads = params.kv_heads;
  prefill.group_size = params.heads / params.kv_heads;
  prefill.window_left = -1;
  prefill.causal = true;
  HOTSET_CUDA_CHECK(
      (flashinfer::SinglePrefillWithKVCacheDispatched<kDim, kDim, flashinfer::MaskMode::kCausal,
                                                      /*LEFT_SLIDING_WINDOW=*/false, flashinfer::StandardAttention>(
          prefill, stream)));
}

}  // namespace hotset::peers
