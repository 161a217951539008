// Strong identifiers. A plain int never names a page, slot, layer or sequence.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace hotset {

// An integer that only compares with its own kind. `value()` is for indexing and printing.
template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  constexpr auto operator<=>(const StrongId&) const = default;

 private:
  Rep value_{};
};

using LayerId = StrongId<struct LayerTag, std::int32_t>;
using PageId = StrongId<struct DevicePageTag, std::int32_t>;  // a page of the device pool: 64 rows of one layer
using MetadataPageId =
    StrongId<struct MetadataPageTag, std::int32_t>;              // of the device: 64 tokens' metadata of one layer
using HostPage = StrongId<struct HostPageTag, std::int32_t>;     // 64 consecutive host slots, in every layer
using SlotId = StrongId<struct DeviceSlotTag, std::int64_t>;     // a row slot of the device pool: page * 64 + offset
using HostSlot = StrongId<struct HostSlotTag, std::int64_t>;     // a row slot of the host pool, the same in every layer
using SequenceId = StrongId<struct SequenceTag, std::uint64_t>;  // never reused within a process

}  // namespace hotset

template <class Tag, class Rep>
struct std::hash<hotset::StrongId<Tag, Rep>> {
  std::size_t operator()(const hotset::StrongId<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
