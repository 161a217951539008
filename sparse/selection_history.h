// The selections of a trace's generated tokens, by sequence and layer: what a hot buffer would have seen. Held packed,
// about as large as in the file. Thread: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "sparse/selection_observer.h"

namespace hotset::sparse {

// One sequence in one layer, a row for each generated token that attended to a selection.
struct SelectionSeries {
  SequenceId sequence;
  LayerId layer;
  std::int32_t block_tokens = 1;
  std::vector<std::int64_t> positions;  // [rows] of the queries, ascending
  std::vector<std::size_t> ends;        // [rows] where the row's blocks end in `blocks`
  std::vector<std::int32_t> blocks;     // of all rows, ascending in each

  [[nodiscard]] std::size_t rows() const { return positions.size(); }
  [[nodiscard]] std::span<const std::int32_t> row(std::size_t index) const {
    const std::size_t begin = index == 0 ? 0 : ends[index - 1];
    return std::span(blocks).subspan(begin, ends[index] - begin);
  }
};

class SelectionHistory {
 public:
  // Rows of prompts and rows that attended to everything are passed over. kInvalidArgument: positions of one sequence
  // and layer that don't ascend, or its block size changes.
  Result<void> add(const SelectionRecord& record);

  [[nodiscard]] bool empty() const { return series_.empty(); }
  [[nodiscard]] std::size_t sequences() const;
  [[nodiscard]] std::int64_t rows() const { return rows_; }  // over all sequences and layers
  // K: tokens of the largest selection, blocks counted whole.
  [[nodiscard]] std::int64_t budget_tokens() const { return budget_tokens_; }

  // Calls visit(const SelectionSeries&) for each sequence and layer, in ascending order; the series is valid during the
  // call.
  template <class Visit>
  void for_each(Visit&& visit) const {
    SelectionSeries unpacked;
    for (const auto& [key, packed] : series_) {
      unpack(key, packed, unpacked);
      visit(std::as_const(unpacked));
    }
  }

 private:
  using Key = std::pair<SequenceId, LayerId>;
  struct Packed {
    std::int32_t block_tokens = 1;
    std::int64_t last_position = -1;
    std::size_t rows = 0;
    std::vector<std::uint8_t> bytes;  // per row: position less the one before, number of blocks, blocks
  };
  static void unpack(const Key& key, const Packed& packed, SelectionSeries& out);

  std::map<Key, Packed> series_;
  std::int64_t rows_ = 0;
  std::int64_t budget_tokens_ = 0;
};

}  // namespace hotset::sparse
