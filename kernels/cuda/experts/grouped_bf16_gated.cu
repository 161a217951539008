#include "kernels/cuda/experts/grouped_gemm.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_bf16_gated(const GroupedGemm& gemm, Stream stream) {
  launch_grouped<__nv_bfloat16, true>(gemm, stream);
}

}  // namespace hotset::kernels::cuda
