#include <cstring>
#include <flashinfer/math.cuh>
// After both: it uses what they declare without including them.
#include <flashinfer/topk.cuh>

#include "benchmarks/cuda/peers/flashinfer_topk.h"
#include "kernels/cuda/runtime.h"

namespace hotset::peers {

void launch_flashinfer_top_k(const FlashInferTopKParams& params, kernels::cuda::Stream stream) {
  using flashinfer::sampling::TopKTieBreak;
  HOTSET_CUDA_CHECK((flashinfer::sampling::TopKRaggedTransformDispatch<float, std::int32_t>(
      const_cast<float*>(params.scores), params.out, params.offsets, const_cast<std::int32_t*>(params.lengths), nullptr,
      static_cast<std::uint32_t>(params.rows), static_cast<std::uint32_t>(params.k),
      static_cast<std::uint32_t>(params.max_length), nullptr, /*deterministic=*/false, TopKTieBreak::Small, stream,
      /*dsa_graph_safe=*/false)));
}

}  // namespace hotset::peers
