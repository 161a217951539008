#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "core/concat.h"
#include "kernels/cuda/mapped_pool.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

Error overloaded(std::string message) { return Error{ErrorCode::kOverloaded, std::move(message), {}}; }

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
    return overloaded(not_pinned(bytes));
  }
}

}  // namespace

std::optional<std::int64_t> pinnable_bytes() {
  constexpr std::size_t kLittle = std::size_t{2} << 20;
  const auto pins = [] {
    try {
      const MappedHostMemory memory(kLittle);
      return true;
    } catch (const CudaError&) {
      (void)cudaGetLastError();
      return false;
    }
  };
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur >= kLittle && !pins()) return std::nullopt;  // the limit is not the reason
  if (setrlimit(RLIMIT_MEMLOCK, &none) != 0) return std::nullopt;
  const bool ignored = pins();
  setrlimit(RLIMIT_MEMLOCK, &limit);  // within the hard limit: cannot fail
  if (ignored) return std::nullopt;
  const auto all =
      static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<std::int64_t>::max()));
  return std::max<std::int64_t>(all - kPinnedElsewhere, 0);
}

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
