#include "sparse/hot_buffer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "core/concat.h"
#include "core/kv_geometry.h"
#include "sparse/selection.h"

namespace hotset::sparse {
namespace {

// Slot numbers H + C / B and row numbers H * B stay inside 32 bits.
constexpr std::int64_t kMostRows = std::int64_t{1} << 29;
constexpr std::int64_t kDefaultRing = 128;

}  // namespace

Result<HotBufferShape> make_hot_buffer_shape(std::int64_t hot_blocks, std::int64_t block_tokens,
                                             std::int64_t ring_recent) {
  if (block_tokens < 1 || kPageTokens % block_tokens != 0)
    return invalid_argument(concat("--sparse-block is ", block_tokens, ": use 1, 2, 4, 8, 16, 32 or 64"),
                            "--sparse-block");
  if (ring_recent < kLeastRecent || ring_recent > kMostRows)
    return invalid_argument(concat("--hot-ring is ", ring_recent, ": use ", kLeastRecent, " to ", kMostRows),
                            "--hot-ring");
  if (hot_blocks < 1 || hot_blocks > kMostRows / block_tokens)
    return invalid_argument(concat("a hot buffer of ", hot_blocks,
                                   " blocks is not possible: use another --sparse-window or --sparse-block"),
                            "--sparse-window");
  HotBufferShape shape;
  shape.hot_blocks = static_cast<std::int32_t>(hot_blocks);
  shape.block_tokens = static_cast<std::int32_t>(block_tokens);
  shape.ring_recent = static_cast<std::int32_t>(ring_recent);
  shape.ring_tokens = static_cast<std::int32_t>(ceil_div(ring_recent + kPageTokens, block_tokens) * block_tokens);
  return shape;
}

Result<HotBufferShape> hot_buffer_shape_for(const SelectionAlgorithm& algorithm, std::optional<std::int64_t> hot_ring,
                                            std::optional<std::int64_t> hot_buffer) {
  const std::int64_t window = algorithm.window_tokens();
  const std::int64_t ring = hot_ring.value_or(std::max(kDefaultRing, window));
  if (ring < window)
    return invalid_argument(concat("--hot-ring is ", ring, ": it must hold the window of ", window, " tokens"),
                            "--hot-ring");
  const std::int64_t block_tokens = algorithm.block_tokens();
  const std::int64_t budget = algorithm.max_blocks();
  if (!hot_buffer) {
    // Forced blocks change with the position only: more slots than they need would never be used.
    const bool only_forced = algorithm.forced_blocks() >= budget;
    const std::int64_t most = std::max(budget, kMostRows / block_tokens);
    return make_hot_buffer_shape(only_forced ? budget : std::min(2 * budget, most), block_tokens, ring);
  }
  if (*hot_buffer < budget * block_tokens || *hot_buffer > kMostRows)
    return invalid_argument(concat("--hot-buffer is ", *hot_buffer, ": use at least ", budget * block_tokens,
                                   " tokens, which hold a whole selection, and at most ", kMostRows),
                            "--hot-buffer");
  return make_hot_buffer_shape(*hot_buffer / block_tokens, block_tokens, ring);
}

HotBuffer::HotBuffer(const HotBufferShape& shape) : shape_(shape) {
  HS_CHECK(shape.hot_blocks > 0 && shape.block_tokens > 0 && shape.ring_tokens > shape.ring_recent &&
               shape.ring_recent > 0 && shape.ring_tokens % shape.block_tokens == 0,
           "a hot buffer needs a shape from make_hot_buffer_shape");
  const auto slots = static_cast<std::size_t>(shape.hot_blocks);
  block_of_slot_.assign(slots, -1);
  lru_.resize(slots);
  std::iota(lru_.begin(), lru_.end(), 0);
  use_of_slot_.resize(slots);
  next_lru_.reserve(slots);
  miss_entries_.reserve(slots);
  loaded_slots_.reserve(slots);
  index_.resize(std::bit_ceil(4 * slots));
}

void HotBuffer::diff(std::span<const std::int32_t> selected, std::int64_t newest_position, SparseDiff& out) {
  const std::int64_t block_tokens = shape_.block_tokens;
  const std::int64_t ring_tokens = shape_.ring_tokens;
  out.slot_of.assign(selected.size(), -1);
  out.misses.clear();
  out.hits = out.ring_hits = out.unplaced = 0;
  miss_entries_.clear();
  index_buffer(selected.size());

  for (std::size_t i = 0; i < selected.size(); ++i) {
    const std::int64_t first = selected[i] * block_tokens;
    if (first < 0 || first > newest_position) continue;
    IndexEntry& entry = find_or_add(selected[i]);
    if (entry.selected) continue;
    entry.selected = true;
    if (shape_.overlaps_newest(selected[i], newest_position)) {
      out.slot_of[i] = static_cast<std::int32_t>(shape_.hot_blocks + first % ring_tokens / block_tokens);
      ++out.ring_hits;
    } else if (entry.slot >= 0) {
      out.slot_of[i] = entry.slot;
      use_of_slot_[static_cast<std::size_t>(entry.slot)] = Use::kHit;
      ++out.hits;
    } else {
      const bool in_ring = shape_.in_ring(selected[i], newest_position);
      out.misses.push_back({selected[i], -1, in_ring ? MissSource::kRing : MissSource::kHost});
      miss_entries_.push_back(static_cast<std::int32_t>(i));
    }
  }
  load_misses(out);
  renew_order();
}

HotBuffer::IndexEntry& HotBuffer::find_or_add(std::int32_t block) {
  const std::size_t mask = index_.size() - 1;
  // Fibonacci hashing: neighbouring blocks, the usual case, are spread over the table.
  std::size_t at = (static_cast<std::uint32_t>(block) * std::uint64_t{0x9E3779B97F4A7C15} >> 32) & mask;
  while (index_[at].stamp == stamp_ && index_[at].block != block) at = (at + 1) & mask;
  if (index_[at].stamp != stamp_) index_[at] = {stamp_, block, -1, false};
  return index_[at];
}

void HotBuffer::index_buffer(std::size_t selected) {
  ++stamp_;
  const std::size_t needed = std::bit_ceil(2 * (block_of_slot_.size() + selected));
  if (index_.size() < needed) index_.resize(needed);
  for (std::size_t slot = 0; slot < block_of_slot_.size(); ++slot)
    if (block_of_slot_[slot] >= 0) find_or_add(block_of_slot_[slot]).slot = static_cast<std::int32_t>(slot);
  std::ranges::fill(use_of_slot_, Use::kUntouched);
}

// Victims are the slots that this selection does not hit, from the least recent on.
void HotBuffer::load_misses(SparseDiff& out) {
  loaded_slots_.clear();
  std::size_t next = 0;
  for (std::size_t m = 0; m < out.misses.size(); ++m) {
    while (next < lru_.size() && use_of_slot_[static_cast<std::size_t>(lru_[next])] != Use::kUntouched) ++next;
    if (next == lru_.size()) {
      out.unplaced = static_cast<std::int32_t>(out.misses.size() - m);
      out.misses.resize(m);
      return;
    }
    const std::int32_t slot = lru_[next];
    use_of_slot_[static_cast<std::size_t>(slot)] = Use::kLoaded;
    block_of_slot_[static_cast<std::size_t>(slot)] = out.misses[m].block;
    out.misses[m].slot = slot;
    out.slot_of[static_cast<std::size_t>(miss_entries_[m])] = slot;
    loaded_slots_.push_back(slot);
  }
}

// Untouched slots, then loaded ones in the order of the selection, then hits; the first and last keep their order.
void HotBuffer::renew_order() {
  next_lru_.clear();
  for (const std::int32_t slot : lru_)
    if (use_of_slot_[static_cast<std::size_t>(slot)] == Use::kUntouched) next_lru_.push_back(slot);
  next_lru_.insert(next_lru_.end(), loaded_slots_.begin(), loaded_slots_.end());
  for (const std::int32_t slot : lru_)
    if (use_of_slot_[static_cast<std::size_t>(slot)] == Use::kHit) next_lru_.push_back(slot);
  lru_.swap(next_lru_);
}

}  // namespace hotset::sparse
