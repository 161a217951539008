// Programmatic dependent launch: a kernel's blocks may become resident while the kernel before it in the stream still
// runs. Every kernel launched by launch_dependent() calls wait_for_kernels_before(), in every block, before it touches
// global memory that any kernel writes.
#pragma once

#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// Until the kernels before are done and what they wrote is visible.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may become resident once all blocks have called this. It sees nothing of this one before its wait.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// At the start of a small kernel: the next one may take its place beside it and prefetch what nobody writes.
__device__ __forceinline__ void follow_kernels_before() {
  let_next_kernel_start();
  wait_for_kernels_before();
}

// cluster 0: none.
template <class... Params, class... Args>
void launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes, int cluster,
                      Stream stream, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = !launch_limits().hopper ? 0 : cluster > 0 ? 2 : 1;
  HOTSET_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

// On Hopper, a grid whose blocks wait for one another: it starts when there is room for all of them at once.
template <class... Params, class... Args>
void launch_dependent_together(void (*kernel)(Params...), unsigned blocks, int threads, std::size_t shared_bytes,
                               Stream stream, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeCooperative;
  attributes[1].val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  HOTSET_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace hotset::kernels::cuda
