// Selection algorithms: which blocks of earlier tokens a query attends to, in one layer, and what they keep of each
// token for that (docs/architecture.md, section 6). A new algorithm is one class of this kind and, if it needs one, one
// launcher.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/kv_geometry.h"
#include "core/result.h"
#include "kernels/backend.h"
#include "sparse/index_basis.h"

namespace hotset::sparse {

// One query that selects.
struct SelectionRow {
  SequenceId sequence;
  std::int64_t query_row = 0;               // in SelectionQueries
  std::int64_t length = 0;                  // tokens seen so far, the query's own included (query position + 1)
  std::int64_t budget = 0;                  // blocks of the selection, forced ones included; <= max_blocks()
  std::span<const std::byte* const> pages;  // metadata pages of this layer, [pages_for_tokens(length)]
};

// The queries of a step in one layer, after RoPE; device pointers.
struct SelectionQueries {
  const float* q = nullptr;  // [rows, heads * key_dim]; in latent models absorbed
  std::int64_t q_stride = 0;
  std::int32_t heads = 0;
  float scale = 1.0F;                    // of the model's attention
  const float* index_q = nullptr;        // DSA: [rows, index_heads * index_dim]
  const float* index_weights = nullptr;  // DSA: [rows, index_heads], every constant factor in them
  std::int32_t index_heads = 0;
};

// Selections of several rows, one after the other; each ascending, unique, in range; the last block may be partly full.
struct SelectionList {
  std::vector<std::int32_t> blocks;
  std::vector<std::int64_t> offsets{0};  // [rows + 1]

  void clear() {
    blocks.clear();
    offsets.assign(1, 0);
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  [[nodiscard]] std::span<const std::int32_t> row(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    return std::span(blocks).subspan(static_cast<std::size_t>(offsets[at]),
                                     static_cast<std::size_t>(offsets[at + 1] - offsets[at]));
  }
};

// Memory that select() reuses from call to call; one per stream.
struct SelectionScratch {
  std::vector<float> scores;
  std::vector<std::int64_t> query_rows, lengths, blocks, page_offsets, first, last;
  std::vector<std::int32_t> k, top, counts;
  std::vector<const std::byte*> pages;
};

// New tokens whose metadata is to be kept.
struct MetadataRows {
  const float* keys = nullptr;  // [rows, kv_heads * key_dim] after RoPE, float32; DSA: index keys [rows, index_dim]
  std::int64_t stride = 0;
  std::span<std::byte* const> pages;      // [rows] metadata page of each row
  std::span<const std::int32_t> offsets;  // [rows] position in the page; a page's rows are neighbours and ascend
};

// Immutable after construction. append() and select() are called from the stream thread only.
class SelectionAlgorithm {
 public:
  virtual ~SelectionAlgorithm() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;       // as --algorithm spells it
  [[nodiscard]] virtual std::int32_t block_tokens() const = 0;   // B, divides 64
  [[nodiscard]] virtual std::int64_t max_blocks() const = 0;     // of one selection
  [[nodiscard]] virtual std::int64_t forced_blocks() const = 0;  // the most that are taken whatever their scores
  [[nodiscard]] virtual std::int64_t window_tokens() const = 0;  // newest tokens always selected; the ring holds them
  [[nodiscard]] virtual bool selects_prompt() const { return false; }  // DSA; else the prompt is attended in full
  [[nodiscard]] virtual MetadataGeometry metadata() const { return {}; }

  // Blocks [first, last) of a query of that length compete for the budget; those before and behind are forced. 0 <=
  // first <= last <= blocks of the length. An algorithm that keeps no metadata selects the forced ones alone.
  struct Candidates {
    std::int64_t first = 0;
    std::int64_t last = 0;
  };
  [[nodiscard]] virtual Candidates candidates(std::int64_t length) const {
    return {0, ceil_div(length, block_tokens())};
  }
  // What scoring needs beside the metadata: of kLowRankKeys and of kBlockBounds.
  [[nodiscard]] virtual const IndexBasis* basis() const { return nullptr; }
  [[nodiscard]] virtual kernels::HeadCombine combine() const { return kernels::HeadCombine::kMax; }

  // Keeps the metadata of new tokens. Not called when metadata() is kNone.
  virtual void append(LayerId layer, const MetadataRows& rows, kernels::Backend& backend) const;

  // Appends one selection per row to `out`, in the rows' order. A row's selection depends on the row, its query and its
  // metadata only. Rows of one sequence should be neighbours and share the page table's memory: they are scored faster.
  // A length of 0 (padding) selects nothing.
  virtual void select(LayerId layer, std::span<const SelectionRow> rows, const SelectionQueries& queries,
                      kernels::Backend& backend, SelectionScratch& scratch, SelectionList& out) const = 0;
};

// First block plus every block that overlaps the last `window` tokens. Xiao et al., Efficient Streaming Language Models
// with Attention Sinks (ICLR 2024), in blocks. kInvalidArgument names the option.
Result<std::shared_ptr<const SelectionAlgorithm>> make_streaming(std::int64_t block_tokens, std::int64_t window_tokens);

// The server's choice of --algorithm and its options. `algorithm` null = dense.
struct SelectionPolicy {
  std::shared_ptr<const SelectionAlgorithm> algorithm;
  std::int64_t threshold = 4096;  // lengths up to it are attended in full, in every mode. DSA: index_topk
  std::int64_t budget = 0;        // blocks; 0: the algorithm's max_blocks()

  // Whether a generated token whose length (position + 1) is `length` attends to a selection.
  [[nodiscard]] bool sparse_at(std::int64_t length) const { return algorithm != nullptr && length > threshold; }
  [[nodiscard]] std::int64_t budget_blocks() const {
    return budget > 0 || !algorithm ? budget : algorithm->max_blocks();
  }
};

}  // namespace hotset::sparse
