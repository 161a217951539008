// A page below the device, by identity. Plain values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/ids.h"

namespace hotset::actors {

// 16 bytes. Pages that sequences may share have a hash of their contents here; private ones their owner and number.
struct PageIdentity {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const PageIdentity&) const = default;
};
// Page `number` (64 tokens each) of a sequence that shares nothing.
[[nodiscard]] constexpr PageIdentity private_page(SequenceId owner, std::int64_t number) {
  return {owner.value(), static_cast<std::uint64_t>(number)};
}

struct TierPage {
  PageIdentity identity;
  HostPage page;  // where its rows lie
};

}  // namespace hotset::actors

template <>
struct std::hash<hotset::actors::PageIdentity> {
  std::size_t operator()(const hotset::actors::PageIdentity& id) const noexcept {
    return static_cast<std::size_t>((id.high * 0x9E3779B97F4A7C15ULL) ^ (id.low + 0x7F4A7C15ULL + (id.high << 6)));
  }
};
