#include "kernels/cuda/experts/grouped_gemm.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_fp8_gated(const GroupedGemm& gemm, Stream stream) {
  launch_grouped<__nv_fp8_e4m3, true>(gemm, stream);
}

}  // namespace hotset::kernels::cuda
