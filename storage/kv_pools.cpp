#include "storage/kv_pools.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "core/checked_math.h"
#include "core/concat.h"

namespace hotset::storage {
namespace {

// Bytes of `pages` pages of `layers` layers, or an Error that names `option`.
Result<std::int64_t> pool_bytes(const KvGeometry& geometry, std::int32_t layers, std::int32_t pages,
                                std::string_view option) {
  if (pages <= 0 || layers <= 0 || geometry.kv_heads <= 0 || geometry.head_dim <= 0)
    return invalid_argument(concat("a KV pool of ", pages, " pages cannot hold anything: use a larger ", option),
                            std::string(option));
  const auto factor = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  std::optional<std::uint64_t> bytes = checked_mul(factor(geometry.kv_heads), factor(geometry.head_dim));
  for (const std::uint64_t next :
       {factor(2 * kv_dtype_bytes(geometry.dtype)), factor(kPageTokens), factor(layers), factor(pages)})
    if (bytes) bytes = checked_mul(*bytes, next);
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return invalid_argument(concat("a KV pool of ", pages, " pages is larger than any memory: use a smaller ", option),
                            std::string(option));
  return static_cast<std::int64_t>(*bytes);
}

Result<AnonymousMemory> allocate_pool(const KvGeometry& geometry, std::int32_t layers, std::int32_t pages,
                                      std::string_view option) {
  Result<std::int64_t> bytes = pool_bytes(geometry, layers, pages, option);
  if (!bytes) return bytes.error();
  Result<AnonymousMemory> memory = AnonymousMemory::allocate(bytes.value());
  if (!memory)
    return Error{memory.error().code, concat(memory.error().message, ": use a smaller ", option), std::string(option)};
  return memory;
}

}  // namespace

Result<AnonymousMemory> AnonymousMemory::allocate(std::int64_t bytes) {
  if (bytes < 0) return invalid_argument("memory of a negative size was asked for");
  if (bytes == 0) return AnonymousMemory(nullptr, 0);
  void* data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    const int reason = errno;
    return Error{ErrorCode::kOverloaded,
                 concat("the system refuses ", bytes, " bytes of memory (", std::strerror(reason), ")"),
                 {}};
  }
  // Only advice: kernels built without huge pages answer EINVAL.
  (void)madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return AnonymousMemory(static_cast<std::byte*>(data), bytes);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  AnonymousMemory taken(std::move(other));  // leaves `other` empty; gives back what this held
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

AnonymousMemory::~AnonymousMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

Result<DevicePool> DevicePool::create(const KvGeometry& geometry, std::int32_t pages) {
  // A device page holds one layer.
  Result<AnonymousMemory> memory = allocate_pool(geometry, 1, pages, "--device-kv-tokens");
  if (!memory) return memory.error();
  return DevicePool(geometry, pages, std::move(memory).value());
}

Result<HostPool> HostPool::create(const KvGeometry& geometry, std::int32_t pages) {
  Result<AnonymousMemory> memory = allocate_pool(geometry, geometry.layers, pages, "--host-kv");
  if (!memory) return memory.error();
  return HostPool(geometry, pages, std::move(memory).value());
}

}  // namespace hotset::storage
