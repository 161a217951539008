// Numbers of pages and slots as kernels and the tables of device_kv.h have them: words of 32 bits. Private to
// device_kv*.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/device.h"

namespace hotset::sparse {

inline constexpr std::int64_t kWord = sizeof(std::int32_t);

// [ids.size()] in `block`'s memory: valid until the block is cleared.
template <class Id>
std::int32_t* keep_ids(std::span<const Id> ids, kernels::cuda::PinnedBlock& block) {
  const std::span<std::int32_t> out = block.take<std::int32_t>(static_cast<std::int64_t>(ids.size()));
  std::transform(ids.begin(), ids.end(), out.begin(), [](Id id) { return id.value(); });
  return out.data();
}

}  // namespace hotset::sparse
