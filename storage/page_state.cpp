#include "storage/page_state.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"

namespace hotset::storage {
namespace {

using enum PageState;

// Every transition that exists. kCopying never goes to kFree: the page belongs to the copy until its event fires.
constexpr std::array kTransitions = {
    std::pair{kFilling, kDevice},         // the 64th row was written on the device
    std::pair{kFilling, kHost},           // streamed prefill: the 64th row was written to the host
    std::pair{kFilling, kFree},           // the sequence ended
    std::pair{kDevice, kCopying},         // its offload was started
    std::pair{kDevice, kFree},            //
    std::pair{kCopying, kDeviceAndHost},  // the offload's event fired
    std::pair{kDeviceAndHost, kHost},     // the sequence became hot or was parked
    std::pair{kDeviceAndHost, kFree},     //
    std::pair{kHost, kDeviceAndHost},     // loaded: the sequence became resident
    std::pair{kHost, kLower},             // evicted from the host, a lower tier keeps it
    std::pair{kHost, kFree},              //
    std::pair{kLower, kHost},             // loaded from the lower tier
    std::pair{kLower, kFree},             //
};

}  // namespace

std::string_view name_of(PageState state) {
  switch (state) {
    case kFilling: return "filling";
    case kDevice: return "device";
    case kCopying: return "copying";
    case kDeviceAndHost: return "device+host";
    case kHost: return "host";
    case kLower: return "lower";
    case kFree: return "free";
  }
  return "unknown";
}

bool transition_allowed(PageState from, PageState to) {
  return std::ranges::find(kTransitions, std::pair{from, to}) != kTransitions.end();
}

void advance(PageState& state, PageState to) {
  HS_CHECK(transition_allowed(state, to), "forbidden transition of a page's state");
  state = to;
}

}  // namespace hotset::storage
