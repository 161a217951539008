// The memory of the two upper tiers. Data plane only: the stream that runs the steps reads and writes it; which page
// belongs to whom is decided elsewhere (storage/page_pool.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/kv_geometry.h"
#include "core/result.h"
#include "kernels/pool_memory.h"

namespace hotset::storage {

// Anonymous zero pages, huge-page advised, returned to the system by the destructor. Untouched pages cost no memory, so
// an allocation larger than the memory succeeds: bound it first (storage/host_memory.h). A moved-from object is empty.
class AnonymousMemory {
 public:
  // kOverloaded when the system refuses the size, kInvalidArgument when it is negative. 0 bytes: data() is null.
  static Result<AnonymousMemory> allocate(std::int64_t bytes);
  AnonymousMemory(AnonymousMemory&& other) noexcept;
  AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;
  ~AnonymousMemory();
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  AnonymousMemory(std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

// AnonymousMemory for a pool: the host's memory is the device's.
Result<kernels::PoolMemory> anonymous_pool_memory(std::int64_t bytes);

struct DevicePoolPages {
  std::int32_t rows = 0;      // pages of 64 rows of one layer
  std::int32_t metadata = 0;  // pages of 64 tokens' metadata of one layer; not used where nothing is kept
};

// Layer-agnostic pages of rows [page][64][row] and of metadata [page]; a page belongs to one (sequence, layer). All
// addresses are the device's: with a GPU's memory the host never reads them.
class DevicePool {
 public:
  // kInvalidArgument (nothing to hold, or more than 63 bits of bytes) and kOverloaded name --device-kv-tokens or
  // --device-metadata-tokens. `allocate` is called once for the rows and, where metadata is kept, once for that.
  static Result<DevicePool> create(const KvLayout& layout, const DevicePoolPages& pages,
                                   const kernels::PoolMemoryFactory& allocate = anonymous_pool_memory);
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] const KvGeometry& geometry() const { return layout_.rows; }
  [[nodiscard]] const DevicePoolPages& pages() const { return pages_; }
  [[nodiscard]] std::byte* base() const { return rows_.device; }
  [[nodiscard]] std::byte* page(PageId page) const { return base() + page.value() * geometry().page_bytes(); }
  [[nodiscard]] std::byte* row(SlotId slot) const { return base() + slot.value() * geometry().row_bytes(); }
  [[nodiscard]] std::byte* metadata(MetadataPageId page) const {
    return metadata_base() + page.value() * layout_.metadata.page_bytes();
  }
  [[nodiscard]] std::byte* metadata_base() const { return metadata_.device; }

 private:
  DevicePool(const KvLayout& layout, const DevicePoolPages& pages, kernels::PoolMemory rows,
             kernels::PoolMemory metadata)
      : layout_(layout), pages_(pages), rows_(std::move(rows)), metadata_(std::move(metadata)) {}
  KvLayout layout_;
  DevicePoolPages pages_;
  kernels::PoolMemory rows_, metadata_;
};

// Rows [layer][host_slot][row] and metadata [metadata layer][host page], layer-major: random reads of one layer stay
// inside a small address range. A host page is 64 consecutive host slots, the same in every layer, with their metadata.
// Addresses are the host's, but for the device_ ones.
class HostPool {
 public:
  // As DevicePool::create, naming --host-kv. The host reads and writes what `allocate` gives.
  static Result<HostPool> create(const KvLayout& layout, std::int32_t pages,
                                 const kernels::PoolMemoryFactory& allocate = anonymous_pool_memory);
  [[nodiscard]] const KvLayout& layout() const { return layout_; }
  [[nodiscard]] const KvGeometry& geometry() const { return layout_.rows; }
  [[nodiscard]] std::int32_t pages() const { return pages_; }
  [[nodiscard]] std::byte* row(LayerId layer, HostSlot slot) const {
    return rows_.host + (layer.value() * (pages_ * kPageTokens) + slot.value()) * geometry().row_bytes();
  }
  [[nodiscard]] std::byte* page(LayerId layer, HostPage page) const { return row(layer, host_slot_of(page, 0)); }
  // `metadata_layer`: KvLayout::metadata_of_layer.
  [[nodiscard]] std::byte* metadata(std::int32_t metadata_layer, HostPage page) const {
    return metadata_.host + (std::int64_t{metadata_layer} * pages_ + page.value()) * layout_.metadata.page_bytes();
  }
  // Where the device finds a layer's rows [pages][64][row] and metadata [pages].
  [[nodiscard]] std::byte* device_rows(LayerId layer) const {
    return rows_.device + layer.value() * pages_ * geometry().page_bytes();
  }
  [[nodiscard]] std::byte* device_metadata(std::int32_t metadata_layer) const {
    return metadata_.device + std::int64_t{metadata_layer} * pages_ * layout_.metadata.page_bytes();
  }

 private:
  HostPool(const KvLayout& layout, std::int32_t pages, kernels::PoolMemory rows, kernels::PoolMemory metadata)
      : layout_(layout), pages_(pages), rows_(std::move(rows)), metadata_(std::move(metadata)) {}
  KvLayout layout_;
  std::int32_t pages_;
  kernels::PoolMemory rows_, metadata_;
};

}  // namespace hotset::storage
