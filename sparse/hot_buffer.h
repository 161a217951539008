// The hot buffer of one (sequence, layer): an LRU cache of blocks on the device plus the ring of newest rows. This
// plain class is the specification of the sparse diff (docs/architecture.md, section 5); device kernels must give the
// same state and outputs, bit for bit. It moves no rows: the caller copies what the miss list says. Thread: one owner
// (the stream that runs the sequence's steps).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/result.h"

namespace hotset::sparse {

inline constexpr std::int32_t kLeastRecent = 1;  // R: the query's own row

struct HotBufferShape {
  std::int32_t hot_blocks = 0;    // H: blocks that the buffer holds, >= the budget's blocks
  std::int32_t block_tokens = 1;  // B: divides 64
  std::int32_t ring_recent = 0;   // R: the newest tokens that are always on the device
  std::int32_t ring_tokens = 0;   // C = R + 64, rounded up to a multiple of B

  // `newest`: the newest position, >= the block's first. Whether any token of the block is among the newest R.
  [[nodiscard]] bool overlaps_newest(std::int32_t block, std::int64_t newest) const {
    return (block + std::int64_t{1}) * block_tokens > newest + 1 - ring_recent;
  }
  // Whether the ring, which holds the newest C rows, holds the block's. Blocks and the ring are aligned to B, so a
  // block is in it whole or not at all.
  [[nodiscard]] bool in_ring(std::int32_t block, std::int64_t newest) const {
    return std::int64_t{block} * block_tokens > newest - ring_tokens;
  }

  bool operator==(const HotBufferShape&) const = default;
};

// kInvalidArgument (naming --hot-ring, --sparse-block, ...) when a size breaks the contract.
Result<HotBufferShape> make_hot_buffer_shape(std::int64_t hot_blocks, std::int64_t block_tokens,
                                             std::int64_t ring_recent);

class SelectionAlgorithm;

// The shape that serves the algorithm's largest selection.
// - `hot_ring`: --hot-ring, tokens; absent: max(128, window); less than the window is refused: its rows must be in the
//   ring.
// - `hot_buffer`: --hot-buffer, tokens per sequence and layer, whole blocks count; absent: twice the budget (where
//   everything that is selected is forced: the forced blocks); less than the budget is refused.
Result<HotBufferShape> hot_buffer_shape_for(const SelectionAlgorithm& algorithm, std::optional<std::int64_t> hot_ring,
                                            std::optional<std::int64_t> hot_buffer = std::nullopt);

enum class MissSource : std::uint8_t { kHost, kRing };

struct Miss {
  std::int32_t block = 0;
  std::int32_t slot = 0;  // buffer slot 0 ... H-1 that the block's rows go to
  MissSource source = MissSource::kHost;

  bool operator==(const Miss&) const = default;
};

struct SparseDiff {
  // Per selected entry: 0..H-1 buffer, H + (first position mod C) / B ring, -1 ignored.
  std::vector<std::int32_t> slot_of;
  std::vector<Miss> misses;  // in the order of the selection
  std::int32_t hits = 0;     // in the buffer
  std::int32_t ring_hits = 0;
  std::int32_t unplaced = 0;  // valid entries with slot -1 because the buffer is full; 0 whenever n <= H
};

class HotBuffer {
 public:
  // The shape comes from make_hot_buffer_shape.
  explicit HotBuffer(const HotBufferShape& shape);

  // `selected`: a selection's entries (n <= H), in any order. `newest_position`: of the query's own token, whose row is
  // in the ring already; it never shrinks from call to call. Time O(n + H); `out`'s memory is reused and nothing is
  // allocated once it has grown. More than H valid blocks outside the ring are our bug, but a harmless one here: the
  // entries that find no slot get -1, change nothing, and are counted in `unplaced`; a caller that sees one must fail
  // the sequence.
  void diff(std::span<const std::int32_t> selected, std::int64_t newest_position, SparseDiff& out);

  [[nodiscard]] const HotBufferShape& shape() const { return shape_; }
  [[nodiscard]] std::span<const std::int32_t> block_of_slot() const { return block_of_slot_; }  // -1: empty
  [[nodiscard]] std::span<const std::int32_t> lru() const { return lru_; }                      // front: least recent

 private:
  HotBufferShape shape_;
  std::vector<std::int32_t> block_of_slot_;
  std::vector<std::int32_t> lru_;

  // Where a block is in this call: open addressing, entries of earlier calls are void by their stamp.
  struct IndexEntry {
    std::uint64_t stamp = 0;
    std::int32_t block = 0;
    std::int32_t slot = -1;  // of the buffer; -1: not in the buffer
    bool selected = false;   // by an earlier entry of this call
  };
  IndexEntry& find_or_add(std::int32_t block);
  void index_buffer(std::size_t selected);
  void load_misses(SparseDiff& out);
  void renew_order();

  enum class Use : std::uint8_t { kUntouched, kLoaded, kHit };
  std::vector<Use> use_of_slot_;            // [H], of this call
  std::vector<std::int32_t> next_lru_;      // [H]
  std::vector<std::int32_t> miss_entries_;  // per miss: its place in the selection
  std::vector<std::int32_t> loaded_slots_;  // per loaded miss
  std::vector<IndexEntry> index_;           // a power of two, at least twice H + n
  std::uint64_t stamp_ = 0;
};

}  // namespace hotset::sparse
