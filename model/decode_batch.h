// The decode rows of a step as kernels read them: one array for each number of a row, in one piece of device memory
// that is filled by one copy. Rows behind the last sequence, up to the bucket, are padding: position -1, lengths 0.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device.h"
#include "kernels/dense_backend.h"
#include "sparse/selection.h"

namespace hotset::model {

// One generated token.
struct DecodeRow {
  std::int32_t token = 0;   // without `drawn`
  std::int32_t drawn = -1;  // index of the token among those that the previous step drew; -1: `token` is known
  std::int64_t position = 0;
  const sparse::SelectionAlgorithm* selection = nullptr;  // null: attends to everything
  std::int64_t budget = 0;                                // with `selection`: blocks
  bool hot = false;
  bool keeps_metadata = false;
};

// What decides the shape of a step's launches, rounded up so that few graphs serve all steps.
struct DecodeShape {
  std::int32_t rows = 0;            // bucket
  std::int64_t longest_list = 0;    // rows of the cache that one query attends to, at most
  std::int64_t longest_scored = 0;  // tokens that one query's selection looks at, at most; 0: nobody is scored
  std::int64_t most_blocks = 0;     // that one query selects from; 0: nobody selects
  bool hot = false;                 // some row is hot
  auto operator<=>(const DecodeShape&) const = default;
};

class DecodeBatch {
 public:
  // The rows that a batch of so many sequences is padded to.
  [[nodiscard]] static std::int32_t bucket(std::int64_t rows);

  // Every batch is padded to the bucket of `least_rows` at least.
  DecodeBatch(kernels::DenseBackend& backend, std::int32_t max_rows, std::int32_t least_rows = 1);

  // Fills the arrays with `rows` (by row) and padding up to the bucket; queued on `stream`, from memory of `block`.
  // `drawn`: the previous step's tokens on the device. The most tokens of a sequence is `max_tokens`.
  [[nodiscard]] DecodeShape fill(std::span<const DecodeRow> rows, const std::int32_t* drawn, std::int64_t max_tokens,
                                 kernels::cuda::PinnedBlock& block, const kernels::cuda::DeviceStream& stream);

  // Device pointers, [max_rows].
  [[nodiscard]] const std::int32_t* tokens() const { return device_.tokens; }
  [[nodiscard]] const std::int64_t* positions() const { return device_.positions; }
  [[nodiscard]] const std::int64_t* metadata_positions() const { return device_.metadata_positions; }  // -1: keeps none
  [[nodiscard]] const std::int32_t* lengths() const { return device_.lengths; }  // newest position + 1
  // Of rows that select, else 0.
  [[nodiscard]] const std::int64_t* scored_lengths() const { return device_.scored_lengths; }  // tokens; 0: not scored
  [[nodiscard]] const std::int64_t* blocks() const { return device_.blocks; }
  [[nodiscard]] const std::int64_t* first() const { return device_.first; }  // blocks [first, last) compete
  [[nodiscard]] const std::int64_t* last() const { return device_.last; }
  [[nodiscard]] const std::int32_t* budgets() const { return device_.budgets; }
  [[nodiscard]] const std::int32_t* block_tokens() const { return device_.block_tokens; }  // 0: attends to everything

 private:
  struct Arrays {
    std::int64_t *positions, *metadata_positions, *scored_lengths, *blocks, *first, *last;
    std::int32_t *tokens, *drawn, *lengths, *budgets, *block_tokens;
  };
  [[nodiscard]] Arrays arrays_at(std::byte* memory) const;

  std::int32_t max_rows_, least_rows_;
  std::int64_t bytes_;
  kernels::Array<std::byte> memory_;
  Arrays device_;
};

}  // namespace hotset::model
