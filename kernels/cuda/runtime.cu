#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <thread>
#include <vector>

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

std::string not_pinned(std::int64_t bytes) {
  std::string text = concat("the GPU's driver does not pin ", bytes, " bytes of host memory");
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < static_cast<rlim_t>(bytes))
    text += concat("; the limit of locked memory (ulimit -l) is ", limit.rlim_cur, " bytes");
  return text;
}

namespace {

// Every page, by several threads: one alone, as the driver would do it, zeroes 2.5 GB a second.
void touch_pages(std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kShare = std::size_t{256} << 20;
  const std::size_t most = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  const std::size_t threads = std::clamp<std::size_t>(bytes / kShare, 1, most);
  const std::size_t share = (bytes / threads / kPage + 1) * kPage;
  std::vector<std::jthread> workers;
  for (std::size_t first = 0; first < bytes; first += share) {
    workers.emplace_back([=, end = std::min(bytes, first + share)] {
      for (std::size_t at = first; at < end; at += kPage) static_cast<volatile std::byte*>(memory)[at] = std::byte{0};
    });
  }
}

}  // namespace

MappedHostMemory::MappedHostMemory(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw CudaError(concat("the system refuses ", bytes, " bytes of host memory"));
  if (bytes >= kHugePage) (void)madvise(memory, bytes, MADV_HUGEPAGE);  // only advice
  host_ = static_cast<std::byte*>(memory);
  touch_pages(host_, bytes);
  void* mapped = nullptr;
  cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (status == cudaSuccess) {
    status = cudaHostGetDevicePointer(&mapped, memory, 0);
    if (status != cudaSuccess) cudaHostUnregister(memory);
  }
  if (status != cudaSuccess) {
    munmap(memory, bytes);
    check_cuda(status, "cudaHostRegister", __FILE__, __LINE__);
  }
  device_ = static_cast<std::byte*>(mapped);
}

MappedHostMemory::~MappedHostMemory() {
  if (host_ == nullptr) return;
  cudaHostUnregister(host_);
  munmap(host_, bytes_);
}

}  // namespace hotset::kernels::cuda
