// What the device knows of one (sequence, layer) in hot mode. The sparse diff, the page I/O and the offload read the
// same table of these: one [batch] array per layer, written when a sequence becomes hot or the batch changes. The lists
// of slots and the new rows' targets read it for resident sequences too: hot_blocks 0, and device_pages are theirs.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

// All pointers are the device's. The fields of the shape are those of sparse::HotBufferShape.
struct HotRow {
  std::int32_t* block_of_slot = nullptr;  // [H], -1: empty
  std::uint16_t* lru = nullptr;           // [H], front: least recent; starts as 0 ... H-1
  const std::int32_t* device_pages =
      nullptr;  // [buffer pages, then ring pages] of this layer (sparse::HotPages); resident: all pages
  const std::int32_t* host_pages = nullptr;  // [pages of the sequence], the same in every layer
  std::int32_t hot_blocks = 0;               // H, at most kMostHotBlocks; 0: this batch row is not a hot sequence
  std::int32_t block_tokens = 1;             // B: 1, 2, 4 ... 64
  std::int32_t ring_recent = 0;              // R
  std::int32_t ring_tokens = 0;              // C
};

inline constexpr std::int32_t kMostHotBlocks = 16'384;
inline constexpr std::int32_t kMostSelected = 4'096;
inline constexpr std::int32_t kMostSwapBatch = 512;

}  // namespace hotset::kernels::cuda
