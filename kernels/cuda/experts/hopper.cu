#include "core/concat.h"
#include "kernels/cuda/experts/hopper.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

bool is_hopper() {
  static const bool hopper = [] {
    int device = 0;
    int major = 0;
    HOTSET_CUDA_CHECK(cudaGetDevice(&device));
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9;
  }();
  return hopper;
}

void require_hopper(const char* what) {
  if (!is_hopper()) throw CudaError(concat(what, " need a GPU of compute capability 9.0"));
}

}  // namespace hotset::kernels::cuda
