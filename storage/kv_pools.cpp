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

using kernels::PoolMemory;
using kernels::PoolMemoryFactory;

// Bytes of `pages` pages of `layers` layers, `page_bytes` each, or an Error that names `option`.
Result<std::int64_t> pool_bytes(std::int64_t page_bytes, std::int32_t layers, std::int32_t pages,
                                std::string_view option) {
  if (pages <= 0 || layers <= 0 || page_bytes <= 0)
    return invalid_argument(concat("a KV pool of ", pages, " pages cannot hold anything: use a larger ", option),
                            std::string(option));
  const auto factor = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  std::optional<std::uint64_t> bytes = checked_mul(factor(page_bytes), factor(layers));
  if (bytes) bytes = checked_mul(*bytes, factor(pages));
  if (!bytes || *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return invalid_argument(concat("a KV pool of ", pages, " pages is larger than any memory: use a smaller ", option),
                            std::string(option));
  return static_cast<std::int64_t>(*bytes);
}

// Widths of 2^20 channels and 2^16 heads are far beyond any model and keep the bytes of a page inside 64 bits.
bool possible(const KvGeometry& rows) {
  const auto within = [](std::int64_t value, std::int64_t most) { return value > 0 && value <= most; };
  return within(rows.kv_heads, 1 << 16) && within(rows.key_dim, 1 << 20) && within(rows.value_dim, 1 << 20);
}

Result<PoolMemory> allocate_pool(std::int64_t page_bytes, std::int32_t layers, std::int32_t pages,
                                 std::string_view option, const PoolMemoryFactory& allocate) {
  Result<std::int64_t> bytes = pool_bytes(page_bytes, layers, pages, option);
  if (!bytes) return bytes.error();
  Result<PoolMemory> memory = allocate(bytes.value());
  if (!memory)
    return Error{memory.error().code, concat(memory.error().message, ": use a smaller ", option), std::string(option)};
  return memory;
}

// Metadata memory, or none where nothing is kept.
Result<PoolMemory> allocate_metadata(const KvLayout& layout, std::int32_t layers, std::int32_t pages,
                                     std::string_view option, const PoolMemoryFactory& allocate) {
  if (layout.metadata_layers == 0) return PoolMemory{};
  return allocate_pool(layout.metadata.page_bytes(), layers, pages, option, allocate);
}

Error impossible(std::string_view option) {
  return invalid_argument(concat("a KV pool of rows without a possible width cannot hold anything; see ", option),
                          std::string(option));
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

Result<PoolMemory> anonymous_pool_memory(std::int64_t bytes) {
  Result<AnonymousMemory> memory = AnonymousMemory::allocate(bytes);
  if (!memory) return memory.error();
  auto owner = std::make_shared<AnonymousMemory>(std::move(memory).value());
  std::byte* const data = owner->data();
  return PoolMemory{.host = data, .device = data, .bytes = bytes, .owner = std::move(owner)};
}

Result<DevicePool> DevicePool::create(const KvLayout& layout, const DevicePoolPages& pages,
                                      const PoolMemoryFactory& allocate) {
  if (!possible(layout.rows)) return impossible("--device-kv-tokens");
  // A device page holds one layer.
  Result<PoolMemory> rows = allocate_pool(layout.rows.page_bytes(), 1, pages.rows, "--device-kv-tokens", allocate);
  if (!rows) return rows.error();
  Result<PoolMemory> metadata = allocate_metadata(layout, 1, pages.metadata, "--device-metadata-tokens", allocate);
  if (!metadata) return metadata.error();
  return DevicePool(layout, pages, std::move(rows).value(), std::move(metadata).value());
}

Result<HostPool> HostPool::create(const KvLayout& layout, std::int32_t pages, const PoolMemoryFactory& allocate) {
  if (!possible(layout.rows)) return impossible("--host-kv");
  Result<PoolMemory> rows = allocate_pool(layout.rows.page_bytes(), layout.rows.layers, pages, "--host-kv", allocate);
  if (!rows) return rows.error();
  Result<PoolMemory> metadata = allocate_metadata(layout, layout.metadata_layers, pages, "--host-kv", allocate);
  if (!metadata) return metadata.error();
  return HostPool(layout, pages, std::move(rows).value(), std::move(metadata).value());
}

}  // namespace hotset::storage
