// The hot buffer of one (sequence, layer): an LRU cache of blocks on the device plus the ring of newest rows. This plain
// class is the specification of the sparse diff (docs/architecture.md, section 5); device kernels must give the same state
// and outputs, bit for bit. It moves no rows: the caller copies what the miss list says.
// Thread: one owner (the stream that runs the sequence's steps).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"

namespace hotset::sparse {

struct HotBufferShape {
  std::int32_t hot_blocks = 0;    // H: blocks that the buffer holds, >= the budget's blocks
  std::int32_t block_tokens = 1;  // B: divides 64
  std::int32_t ring_recent = 0;   // R: the newest tokens that are always on the device
  std::int32_t ring_tokens = 0;   // C = R + 64, rounded up to a multiple of B

  bool operator==(const HotBufferShape&) const = default;
};

// kInvalidArgument (naming --hot-ring, --sparse-block, ...) when a size breaks the contract.
Result<HotBufferShape> make_hot_buffer_shape(std::int64_t hot_blocks, std::int64_t block_tokens, std::int64_t ring_recent);

enum class MissSource : std::uint8_t { kHost, kRing };

struct Miss {
  std::int32_t block = 0;
  std::int32_t slot = 0;  // buffer slot 0 ... H-1 that the block's rows go to
  MissSource source = MissSource::kHost;

  bool operator==(const Miss&) const = default;
};

struct SparseDiff {
  std::vector<std::int32_t> slot_of;  // per selected entry: 0..H-1 buffer, H + (first position mod C) / B ring, -1 ignored
  std::vector<Miss> misses;           // in the order of the selection
  std::int32_t hits = 0;              // in the buffer
  std::int32_t ring_hits = 0;
};

class HotBuffer {
 public:
  explicit HotBuffer(const HotBufferShape& shape);

  // `selected`: the first entries of a selection that are valid (n <= H). `newest_position`: of the query's own token,
  // whose row is in the ring already. Reuses `out`'s memory.
  void diff(std::span<const std::int32_t> selected, std::int64_t newest_position, SparseDiff& out);

  [[nodiscard]] const HotBufferShape& shape() const { return shape_; }
  [[nodiscard]] std::span<const std::int32_t> block_of_slot() const { return block_of_slot_; }  // -1: empty
  [[nodiscard]] std::span<const std::int32_t> lru() const { return lru_; }                      // front: least recent

 private:
  HotBufferShape shape_;
  std::vector<std::int32_t> block_of_slot_;
  std::vector<std::int32_t> lru_;
  // Members of the implementation follow here (index of resident blocks, scratch reused by diff()).
};

}  // namespace hotset::sparse
