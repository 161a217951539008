#include <sys/resource.h>

#include <memory>
#include <utility>

#include "core/concat.h"
#include "kernels/cuda/mapped_pool.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

Error overloaded(std::string message) { return Error{ErrorCode::kOverloaded, std::move(message), {}}; }

// Most drivers pin without asking for the limit of locked memory, so it is only the likely reason of a failure.
std::string locked_memory_hint(std::int64_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= static_cast<rlim_t>(bytes)) {
    return {};
  }
  return concat("; the limit of locked memory (ulimit -l) is ", limit.rlim_cur, " bytes");
}

Result<PoolMemory> map_memory(std::int64_t bytes, std::int64_t& usable) {
  if (bytes == 0) return PoolMemory{};
  if (bytes > usable) {
    return overloaded(concat(bytes, " bytes of host memory cannot be pinned for the GPU, since only ", usable,
                             " bytes may still be used here"));
  }
  try {
    auto owner = std::make_shared<MappedHostMemory>(static_cast<std::size_t>(bytes));
    usable -= bytes;
    std::byte* const host = owner->host();
    std::byte* const device = owner->device();
    return PoolMemory{.host = host, .device = device, .bytes = bytes, .owner = std::move(owner)};
  } catch (const CudaError&) {
    (void)cudaGetLastError();  // the failure must not be found by a later launch's check
    return overloaded(
        concat("the GPU's driver does not pin ", bytes, " bytes of host memory", locked_memory_hint(bytes)));
  }
}

}  // namespace

PoolMemoryFactory mapped_pool_memory(std::int64_t usable_bytes) {
  HOTSET_CUDA_CHECK(cudaFree(nullptr));  // a device that does not work is no matter of sizes
  return [usable = std::make_shared<std::int64_t>(usable_bytes)](std::int64_t bytes) {
    HS_CHECK(bytes >= 0, "a pool has no negative size");
    return map_memory(bytes, *usable);
  };
}

Result<PoolMemory> device_pool_memory(std::int64_t bytes) {
  HS_CHECK(bytes >= 0, "a pool has no negative size");
  if (bytes == 0) return PoolMemory{};
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    HOTSET_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return overloaded(concat("the GPU has no ", bytes, " bytes of memory left (", free, " are free)"));
  }
  check_cuda(status, "cudaMalloc", __FILE__, __LINE__);
  std::shared_ptr<void> owner(data, [](void* memory) { cudaFree(memory); });
  HOTSET_CUDA_CHECK(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return PoolMemory{
      .host = nullptr, .device = static_cast<std::byte*>(data), .bytes = bytes, .owner = std::move(owner)};
}

}  // namespace hotset::kernels::cuda
