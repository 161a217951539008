#include "sparse/scored_selection.h"

#include <algorithm>

#include "core/check.h"

namespace hotset::sparse {
namespace {

constexpr std::int64_t kMostScores = std::int64_t{4} << 20;  // floats of a batch, unless one row alone has more

void add_pages(const SelectionRow& row, const SelectionRow* previous, SelectionScratch& scratch) {
  const auto pages = static_cast<std::size_t>(pages_for_tokens(row.length));
  HS_CHECK(row.pages.size() >= pages, "a row has fewer metadata pages than its length needs");
  std::size_t offset = scratch.pages.size();
  // Rows of one sequence share one table, which ends the list so far.
  if (previous != nullptr && previous->pages.data() == row.pages.data())
    offset = static_cast<std::size_t>(scratch.page_offsets.back());
  scratch.page_offsets.push_back(static_cast<std::int64_t>(offset));
  for (std::size_t page = scratch.pages.size() - offset; page < pages; ++page) scratch.pages.push_back(row.pages[page]);
}

}  // namespace

std::int64_t ScoredSelection::blocks_of(std::int64_t length) const { return ceil_div(length, block_tokens()); }

bool ScoredSelection::takes_everything(const SelectionRow& row) const {
  if (blocks_of(row.length) <= row.budget) return true;
  const Candidates open = candidates(row.length);
  return open.first >= open.last;
}

void ScoredSelection::select(LayerId layer, std::span<const SelectionRow> rows, const SelectionQueries& queries,
                             kernels::Backend& backend, SelectionScratch& scratch, SelectionList& out) const {
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    end = collect(rows, begin, scratch);
    choose(layer, queries, backend, scratch);
    std::size_t chosen = 0;
    const std::size_t stride = scratch.counts.empty() ? 0 : scratch.top.size() / scratch.counts.size();
    for (const SelectionRow& row : rows.subspan(begin, end - begin)) {
      if (takes_everything(row)) {
        for (std::int32_t block = 0; block < blocks_of(row.length); ++block) out.blocks.push_back(block);
      } else {
        const auto first = scratch.top.begin() + static_cast<std::ptrdiff_t>(chosen * stride);
        out.blocks.insert(out.blocks.end(), first, first + scratch.counts[chosen]);
        ++chosen;
      }
      out.offsets.push_back(static_cast<std::int64_t>(out.blocks.size()));
    }
  }
}

std::size_t ScoredSelection::collect(std::span<const SelectionRow> rows, std::size_t begin,
                                     SelectionScratch& scratch) const {
  for (auto* list :
       {&scratch.query_rows, &scratch.lengths, &scratch.blocks, &scratch.page_offsets, &scratch.first, &scratch.last})
    list->clear();
  scratch.k.clear();
  scratch.pages.clear();
  std::int64_t stride = 0;
  const SelectionRow* previous = nullptr;
  std::size_t at = begin;
  for (; at < rows.size(); ++at) {
    const SelectionRow& row = rows[at];
    if (takes_everything(row)) continue;
    const std::int64_t blocks = blocks_of(row.length);
    const std::int64_t scores = static_cast<std::int64_t>(scratch.k.size() + 1) * std::max(stride, blocks);
    if (scores > kMostScores && !scratch.k.empty()) break;
    stride = std::max(stride, blocks);
    const Candidates open = candidates(row.length);
    add_pages(row, previous, scratch);
    scratch.query_rows.push_back(row.query_row);
    scratch.lengths.push_back(row.length);
    scratch.blocks.push_back(blocks);
    scratch.first.push_back(open.first);
    scratch.last.push_back(open.last);
    // Below the row's blocks, which fit 31 bits.
    scratch.k.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(row.budget, 0)));
    previous = &row;
  }
  return at;
}

void ScoredSelection::choose(LayerId layer, const SelectionQueries& queries, kernels::Backend& backend,
                             SelectionScratch& scratch) const {
  const std::size_t rows = scratch.k.size();
  scratch.counts.resize(rows);
  scratch.top.clear();
  if (rows == 0) return;
  const std::int64_t stride = *std::ranges::max_element(scratch.blocks);
  if (static_cast<std::int64_t>(scratch.scores.size()) < static_cast<std::int64_t>(rows) * stride)
    scratch.scores.resize(rows * static_cast<std::size_t>(stride));
  kernels::ScoredRows scored;
  scored.geometry = metadata();
  scored.query_rows = scratch.query_rows.data();
  scored.lengths = scratch.lengths.data();
  scored.pages = scratch.pages.data();
  scored.page_offsets = scratch.page_offsets.data();
  scored.rows = static_cast<std::int64_t>(rows);
  scored.scores = scratch.scores.data();
  scored.stride = stride;
  score(layer, scored, queries, scratch, backend);

  const std::int64_t most = std::max<std::int64_t>(*std::ranges::max_element(scratch.k), forced_blocks());
  const std::int64_t out_stride = std::min(most, stride);
  scratch.top.resize(rows * static_cast<std::size_t>(out_stride));
  kernels::TopKParams top;
  top.scores = scratch.scores.data();
  top.stride = stride;
  top.lengths = scratch.blocks.data();
  top.first = scratch.first.data();
  top.last = scratch.last.data();
  top.rows = static_cast<std::int64_t>(rows);
  top.k = scratch.k.data();
  top.out = scratch.top.data();
  top.out_stride = out_stride;
  top.counts = scratch.counts.data();
  backend.top_k(top);
}

}  // namespace hotset::sparse
