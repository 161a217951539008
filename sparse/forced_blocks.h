// The forced part of selections in blocks (Quest, StreamingLLM): the first block and every block that overlaps the last
// `window` tokens.
#pragma once

#include <cstdint>

#include "core/kv_geometry.h"
#include "core/result.h"

namespace hotset::sparse {

// The first block of the recent part; it may be block 0. length >= 0.
[[nodiscard]] constexpr std::int64_t first_recent_block(std::int64_t length, std::int64_t block_tokens,
                                                        std::int64_t window) {
  return length > window ? (length - window) / block_tokens : 0;
}

// The first block, and those of a window whose oldest token is the last of its block.
[[nodiscard]] constexpr std::int64_t most_forced_blocks(std::int64_t block_tokens, std::int64_t window) {
  return 2 + ceil_div(window - 1, block_tokens);
}

// kInvalidArgument names --sparse-block or --sparse-window.
Result<void> check_forced_blocks(std::int64_t block_tokens, std::int64_t window);

}  // namespace hotset::sparse
