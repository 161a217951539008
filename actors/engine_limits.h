// What the kernels of a device take of a server's sequences. Plain values.
#pragma once

#include <cstdint>
#include <limits>

namespace hotset::actors {

// No number: the device has no limit of its own.
struct EngineLimits {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t context = kNone;          // tokens of a sequence
  std::int64_t selected_blocks = kNone;  // of one selection, where sequences may be hot
  std::int64_t hot_blocks = kNone;       // of the hot buffer of a sequence and layer
  std::int64_t index_rank = kNone;       // directions of a low-rank index key
};

}  // namespace hotset::actors
