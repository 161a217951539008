#include "kernels/cuda/experts/grouped_gemm.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_fp8(const GroupedGemm& gemm, Stream stream) { launch_grouped<__nv_fp8_e4m3, false>(gemm, stream); }

}  // namespace hotset::kernels::cuda
