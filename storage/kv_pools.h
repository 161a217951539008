// The memory of the two upper tiers. Data plane only: the stream that runs the steps reads and writes it; which page
// belongs to whom is decided elsewhere (storage/page_pool.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/kv_geometry.h"
#include "core/result.h"

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

// Layer-agnostic pages [page][64][row]; a page belongs to one (sequence, layer).
class DevicePool {
 public:
  // kInvalidArgument (nothing to hold, or more than 63 bits of bytes) and kOverloaded name --device-kv-tokens.
  static Result<DevicePool> create(const KvGeometry& geometry, std::int32_t pages);
  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::int32_t pages() const { return pages_; }
  [[nodiscard]] std::byte* base() const { return memory_.data(); }
  [[nodiscard]] std::byte* page(PageId page) const { return base() + page.value() * geometry_.page_bytes(); }
  [[nodiscard]] std::byte* row(SlotId slot) const { return base() + slot.value() * geometry_.row_bytes(); }

 private:
  DevicePool(const KvGeometry& geometry, std::int32_t pages, AnonymousMemory memory)
      : geometry_(geometry), pages_(pages), memory_(std::move(memory)) {}
  KvGeometry geometry_;
  std::int32_t pages_;
  AnonymousMemory memory_;
};

// [layer][host_slot][row], layer-major: random reads of one layer stay inside a small address range. A host page is 64
// consecutive host slots, the same in every layer.
class HostPool {
 public:
  // As DevicePool::create, naming --host-kv.
  static Result<HostPool> create(const KvGeometry& geometry, std::int32_t pages);
  [[nodiscard]] const KvGeometry& geometry() const { return geometry_; }
  [[nodiscard]] std::int32_t pages() const { return pages_; }
  [[nodiscard]] std::byte* row(LayerId layer, HostSlot slot) const {
    return memory_.data() + (layer.value() * (pages_ * kPageTokens) + slot.value()) * geometry_.row_bytes();
  }
  [[nodiscard]] std::byte* page(LayerId layer, HostPage page) const { return row(layer, host_slot_of(page, 0)); }

 private:
  HostPool(const KvGeometry& geometry, std::int32_t pages, AnonymousMemory memory)
      : geometry_(geometry), pages_(pages), memory_(std::move(memory)) {}
  KvGeometry geometry_;
  std::int32_t pages_;
  AnonymousMemory memory_;
};

}  // namespace hotset::storage
