#include <sys/mman.h>

#include "core/concat.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw CudaError(concat(call, " failed at ", file, ":", line, ": ", cudaGetErrorString(status)));
}

bool gpu_available() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // the failure must not be found by a later launch's check
    return false;
  }
  int major = 0;
  return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 8;
}

MappedHostMemory::MappedHostMemory(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw CudaError(concat("the system refuses ", bytes, " bytes of host memory"));
  if (bytes >= kHugePage) (void)madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
  host_ = static_cast<std::byte*>(memory);
  const cudaError_t registered = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (registered != cudaSuccess) {
    munmap(memory, bytes);
    host_ = nullptr;
    check_cuda(registered, "cudaHostRegister", __FILE__, __LINE__);
  }
  void* mapped = nullptr;
  HOTSET_CUDA_CHECK(cudaHostGetDevicePointer(&mapped, memory, 0));
  device_ = static_cast<std::byte*>(mapped);
}

MappedHostMemory::~MappedHostMemory() {
  if (host_ == nullptr) return;
  cudaHostUnregister(host_);
  munmap(host_, bytes_);
}

}  // namespace hotset::kernels::cuda
