// The life of one logical page (64 tokens of a sequence, all layers). Allowed transitions stand in one table, checked
// in one function.
#pragma once

#include <string_view>

namespace hotset::storage {

enum class PageState {
  kFilling,        // fewer than 64 rows; on the device, or (streamed prefill, parked sequence) on the host alone
  kDevice,         // complete, on the device only
  kCopying,        // its copy to the host is under way; the page belongs to the copy until its event fires
  kDeviceAndHost,  // complete on both
  kHost,           // complete on the host only
  kLower,          // complete in a lower tier only
  kFree,           // given back
};

[[nodiscard]] std::string_view name_of(PageState state);
[[nodiscard]] bool transition_allowed(PageState from, PageState to);
// HS_CHECK: a forbidden transition is our bug.
void advance(PageState& state, PageState to);

}  // namespace hotset::storage
