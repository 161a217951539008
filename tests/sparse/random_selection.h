// A selection for tests that makes hot buffers evict: random blocks, the newest token's always among them. The choice
// depends on (seed, sequence, layer, length) alone, not on the row's budget, so runs in resident and hot mode select
// the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "core/splitmix.h"
#include "sparse/selection.h"

namespace hotset::sparse {

class RandomSelection final : public SelectionAlgorithm {
 public:
  // block_tokens divides 64; max_blocks >= 1.
  RandomSelection(std::uint64_t seed, std::int32_t block_tokens, std::int64_t max_blocks)
      : seed_(seed), block_tokens_(block_tokens), max_blocks_(max_blocks) {
    HS_CHECK(block_tokens >= 1 && kPageTokens % block_tokens == 0 && max_blocks >= 1, "bad random selection");
  }

  [[nodiscard]] std::string_view name() const override { return "random"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return block_tokens_; }
  [[nodiscard]] std::int64_t max_blocks() const override { return max_blocks_; }
  [[nodiscard]] std::int64_t forced_blocks() const override { return 1; }
  [[nodiscard]] std::int64_t window_tokens() const override { return 1; }

  void select(LayerId layer, std::span<const SelectionRow> rows, const SelectionQueries&, kernels::Backend&,
              SelectionScratch&, SelectionList& out) const override {
    for (const SelectionRow& row : rows) {
      if (row.length > 0) {
        const std::vector<std::int32_t> blocks = choose(row.sequence, layer, row.length);
        out.blocks.insert(out.blocks.end(), blocks.begin(), blocks.end());
      }
      out.offsets.push_back(static_cast<std::int64_t>(out.blocks.size()));
    }
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> choose(SequenceId sequence, LayerId layer, std::int64_t length) const {
    std::vector<std::int32_t> blocks;
    const std::int64_t last = (length - 1) / block_tokens_;
    const std::int64_t others = std::min(max_blocks_ - 1, last);
    std::uint64_t state = seed_;
    for (const std::uint64_t part :
         {sequence.value(), static_cast<std::uint64_t>(layer.value()), static_cast<std::uint64_t>(length)})
      state = splitmix64(state ^ part);
    // Floyd's sampling: `others` distinct numbers below `last`.
    for (std::int64_t end = last - others; end < last; ++end) {
      state = splitmix64(state);
      const auto pick = static_cast<std::int32_t>(state % static_cast<std::uint64_t>(end + 1));
      const bool known = std::find(blocks.begin(), blocks.end(), pick) != blocks.end();
      blocks.push_back(known ? static_cast<std::int32_t>(end) : pick);
    }
    blocks.push_back(static_cast<std::int32_t>(last));
    std::sort(blocks.begin(), blocks.end());
    return blocks;
  }

  std::uint64_t seed_;
  std::int32_t block_tokens_;
  std::int64_t max_blocks_;
};

}  // namespace hotset::sparse
