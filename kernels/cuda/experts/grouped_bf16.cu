#include "kernels/cuda/experts/grouped_gemm.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_bf16(const GroupedGemm& gemm, Stream stream) { launch_grouped<__nv_bfloat16, false>(gemm, stream); }

}  // namespace hotset::kernels::cuda
