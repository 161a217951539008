#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

const LaunchLimits& launch_limits() {
  static const LaunchLimits limits = [] {
    LaunchLimits found;
    int device = 0;
    int major = 0;
    HOTSET_CUDA_CHECK(cudaGetDevice(&device));
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&found.multiprocessors, cudaDevAttrMultiProcessorCount, device));
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    found.hopper = major == 9;
    return found;
  }();
  return limits;
}

}  // namespace hotset::kernels::cuda
