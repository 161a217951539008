// The sparse diff once more, written from the contract (docs/architecture.md, section 5) as slowly and plainly as it
// reads, and the device's rows as arrays of token positions. Every implementation of the diff is tested against both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "sparse/hot_buffer.h"

namespace hotset::sparse {

class SparseDiffModel {
 public:
  explicit SparseDiffModel(const HotBufferShape& shape) : shape(shape), block_of_slot(shape.hot_blocks, -1) {
    for (std::int32_t slot = 0; slot < shape.hot_blocks; ++slot) lru.push_back(slot);
  }

  SparseDiff diff(const std::vector<std::int32_t>& selected, std::int64_t newest) {
    SparseDiff out;
    out.slot_of.assign(selected.size(), -1);
    std::vector<std::int32_t> valid, hit_slots, loaded_slots;
    for (std::size_t i = 0; i < selected.size(); ++i)
      if (is_valid(selected, i, newest)) valid.push_back(selected[i]);
    for (std::size_t i = 0; i < selected.size(); ++i) {
      if (!is_valid(selected, i, newest)) continue;
      const std::int32_t block = selected[i];
      if (any_token_recent(block, newest)) {
        out.slot_of[i] =
            static_cast<std::int32_t>(shape.hot_blocks + first_of(block) % shape.ring_tokens / shape.block_tokens);
        ++out.ring_hits;
      } else if (const std::int32_t slot = slot_with(block); slot >= 0 && !contains(loaded_slots, slot)) {
        out.slot_of[i] = slot;
        hit_slots.push_back(slot);
        ++out.hits;
      } else if (const std::int32_t victim = find_victim(valid, newest); victim < 0) {
        ++out.unplaced;
      } else {
        out.slot_of[i] = victim;
        block_of_slot[victim] = block;
        loaded_slots.push_back(victim);
        out.misses.push_back({block, victim, lies_in_ring(block, newest) ? MissSource::kRing : MissSource::kHost});
      }
    }
    std::vector<std::int32_t> order;
    for (const std::int32_t slot : lru)
      if (!contains(hit_slots, slot) && !contains(loaded_slots, slot)) order.push_back(slot);
    order.insert(order.end(), loaded_slots.begin(), loaded_slots.end());
    for (const std::int32_t slot : lru)
      if (contains(hit_slots, slot)) order.push_back(slot);
    lru = order;
    return out;
  }

  HotBufferShape shape;
  std::vector<std::int32_t> block_of_slot;
  std::vector<std::int32_t> lru;

 private:
  static bool contains(const std::vector<std::int32_t>& values, std::int32_t value) {
    return std::find(values.begin(), values.end(), value) != values.end();
  }
  [[nodiscard]] std::int64_t first_of(std::int32_t block) const { return std::int64_t{block} * shape.block_tokens; }
  [[nodiscard]] bool is_valid(const std::vector<std::int32_t>& selected, std::size_t i, std::int64_t newest) const {
    for (std::size_t earlier = 0; earlier < i; ++earlier)
      if (selected[earlier] == selected[i]) return false;
    return selected[i] >= 0 && first_of(selected[i]) <= newest;
  }
  [[nodiscard]] bool any_token_recent(std::int32_t block, std::int64_t newest) const {
    for (std::int64_t token = first_of(block); token < first_of(block) + shape.block_tokens; ++token)
      if (token <= newest && token > newest - shape.ring_recent) return true;
    return false;
  }
  [[nodiscard]] bool lies_in_ring(std::int32_t block, std::int64_t newest) const {
    for (std::int64_t token = first_of(block); token < first_of(block) + shape.block_tokens; ++token)
      if (token <= newest - shape.ring_tokens) return false;
    return true;
  }
  [[nodiscard]] std::int32_t slot_with(std::int32_t block) const {
    for (std::int32_t slot = 0; slot < shape.hot_blocks; ++slot)
      if (block_of_slot[slot] == block) return slot;
    return -1;
  }
  // The least recent slot whose block is not selected. What this selection loaded is selected, so it is spared too.
  [[nodiscard]] std::int32_t find_victim(const std::vector<std::int32_t>& valid, std::int64_t newest) const {
    for (const std::int32_t slot : lru) {
      const std::int32_t block = block_of_slot[slot];
      if (block < 0 || !contains(valid, block) || any_token_recent(block, newest)) return slot;
    }
    return -1;
  }
};

// Which token's row every device row holds, as positions advance: the ring is overwritten, the host has finished pages
// only. Checks that whatever the diff asks for can be copied, and that every slot it names then holds the block's rows.
class DeviceRowsModel {
 public:
  DeviceRowsModel(const HotBufferShape& shape, std::int64_t newest)
      : shape_(shape),
        buffer_(static_cast<std::size_t>(shape.hot_blocks) * shape.block_tokens, -1),
        ring_(static_cast<std::size_t>(shape.ring_tokens), -1),
        newest_(newest) {
    for (std::int64_t token = std::max<std::int64_t>(0, newest - shape.ring_tokens + 1); token <= newest; ++token)
      ring_[token % shape.ring_tokens] = token;
  }

  void advance_to(std::int64_t newest) {
    while (newest_ < newest) {
      ++newest_;
      ring_[newest_ % shape_.ring_tokens] = newest_;
    }
  }

  // Empty, or what is wrong.
  [[nodiscard]] std::string apply(const std::vector<std::int32_t>& selected, const SparseDiff& diff) {
    // The newest token's row is on its way; its page is offloaded after the step at the earliest.
    const std::int64_t on_host = newest_ / kPageTokens * kPageTokens;
    for (const Miss& miss : diff.misses)
      for (std::int64_t i = 0; i < shape_.block_tokens; ++i) {
        const std::int64_t token = std::int64_t{miss.block} * shape_.block_tokens + i;
        const bool there =
            miss.source == MissSource::kHost ? token < on_host : ring_[token % shape_.ring_tokens] == token;
        if (!there) return concat("the source of block ", miss.block, " lacks token ", token);
        buffer_[static_cast<std::size_t>(miss.slot) * shape_.block_tokens + i] = token;
      }
    for (std::size_t i = 0; i < selected.size(); ++i) {
      const std::int64_t slot = diff.slot_of[i];
      if (slot < 0) continue;
      const bool in_ring = slot >= shape_.hot_blocks;
      const std::vector<std::int64_t>& rows = in_ring ? ring_ : buffer_;
      const std::int64_t base = (in_ring ? slot - shape_.hot_blocks : slot) * shape_.block_tokens;
      const std::int64_t first = std::int64_t{selected[i]} * shape_.block_tokens;
      for (std::int64_t token = first; token < first + shape_.block_tokens && token <= newest_; ++token)
        if (rows.at(static_cast<std::size_t>(base + token - first)) != token)
          return concat("slot ", slot, " of block ", selected[i], " lacks token ", token);
    }
    return {};
  }

 private:
  HotBufferShape shape_;
  std::vector<std::int64_t> buffer_;  // [H][B]: token positions
  std::vector<std::int64_t> ring_;    // [C]
  std::int64_t newest_;
};

}  // namespace hotset::sparse
