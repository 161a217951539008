// Runs selection algorithms on one sequence: metadata pages that were used before, and one call per set of lengths.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/kv_geometry.h"
#include "kernels/cpu/cpu_backend.h"
#include "sparse/selection.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::sparse {

using Ints = std::vector<std::int32_t>;

// The metadata of one sequence in one layer.
class SelectionSequence {
 public:
  SelectionSequence(const SelectionAlgorithm& algorithm, LayerId layer) : algorithm_(algorithm), layer_(layer) {}

  // keys [tokens][kv_heads * dim].
  void append(kernels::Backend& backend, const std::vector<float>& keys) {
    const MetadataGeometry geometry = algorithm_.metadata();
    const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
    const std::int64_t tokens = static_cast<std::int64_t>(keys.size()) / width;
    std::vector<std::byte*> pages;
    std::vector<std::int32_t> offsets;
    for (std::int64_t i = 0; i < tokens; ++i, ++length_) {
      if (length_ % kPageTokens == 0) add_page(static_cast<std::size_t>(geometry.page_bytes()));
      pages.push_back(storage_.back().get());
      offsets.push_back(static_cast<std::int32_t>(length_ % kPageTokens));
    }
    algorithm_.append(layer_, {.keys = keys.data(), .stride = width, .pages = pages, .offsets = offsets}, backend);
  }

  [[nodiscard]] SelectionRow row(std::int64_t query_row, std::int64_t length, std::int64_t budget) const {
    return {.sequence = SequenceId{1}, .query_row = query_row, .length = length, .budget = budget, .pages = pages_};
  }

 private:
  void add_page(std::size_t bytes) {
    storage_.push_back(std::make_unique<std::byte[]>(bytes));
    std::fill_n(storage_.back().get(), bytes, std::byte{0xff});  // NaN in every format
    pages_.push_back(storage_.back().get());
  }

  const SelectionAlgorithm& algorithm_;
  LayerId layer_;
  std::int64_t length_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> storage_;
  std::vector<const std::byte*> pages_;
};

inline std::vector<Ints> select_rows(const SelectionAlgorithm& algorithm, LayerId layer,
                                     const std::vector<SelectionRow>& rows, const SelectionQueries& queries,
                                     kernels::Backend& backend) {
  SelectionScratch scratch;
  SelectionList list;
  algorithm.select(layer, rows, queries, backend, scratch, list);
  std::vector<Ints> out;
  for (std::int64_t i = 0; i < list.size(); ++i) out.emplace_back(list.row(i).begin(), list.row(i).end());
  return out;
}

// For algorithms that look at nothing but the length.
inline Ints select_by_length(const SelectionAlgorithm& algorithm, std::int64_t length, std::uint64_t sequence = 1,
                             std::int32_t layer = 0) {
  const std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend(1);
  const std::vector<SelectionRow> rows = {{.sequence = SequenceId{sequence},
                                           .query_row = 0,
                                           .length = length,
                                           .budget = algorithm.max_blocks(),
                                           .pages = {}}};
  return select_rows(algorithm, LayerId{layer}, rows, {}, *backend).at(0);
}

// Empty, or what is wrong with a selection of `budget` blocks whose candidates are [first, last): the forced ones are
// in, the count is right, and no candidate that was left out scores more than `slack` above one that was taken.
// scores [last - first].
inline std::string wrong_with(const Ints& blocks, std::int64_t count, std::int64_t first, std::int64_t last,
                              std::int64_t budget, const std::vector<double>& scores, double slack) {
  if (!std::is_sorted(blocks.begin(), blocks.end()) || std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end())
    return "not strictly ascending";
  const std::int64_t forced = first + count - last;
  if (static_cast<std::int64_t>(blocks.size()) != std::min(std::max(budget, forced), count)) return "wrong count";
  std::vector<bool> taken(static_cast<std::size_t>(count), false);
  for (const std::int32_t block : blocks) {
    if (block < 0 || block >= count) return "out of range";
    taken[static_cast<std::size_t>(block)] = true;
  }
  double least_in = 1e300;
  double most_out = -1e300;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool in = taken[static_cast<std::size_t>(i)];
    if (i < first || i >= last) {
      if (!in) return "a forced block is missing";
      continue;
    }
    const double score = scores[static_cast<std::size_t>(i - first)];
    if (in)
      least_in = std::min(least_in, score);
    else
      most_out = std::max(most_out, score);
  }
  return least_in + slack >= most_out ? "" : "a better block was left out";
}

}  // namespace hotset::sparse
