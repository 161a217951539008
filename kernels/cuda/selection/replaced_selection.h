// Selections in the place of top-k's, for measurements: dummy weights select nearly at random, so how often a hot
// buffer misses has to come from elsewhere. Either of a model of churn, or recorded ones. What is selected depends on
// the sequence, its length and the layer alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/splitmix.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// The rows of a decode batch in one layer. Device pointers.
struct ReplacedRows {
  std::int32_t* selections = nullptr;  // [rows, stride]: top-k's, ascending; replaced
  std::int32_t* counts = nullptr;      // [rows]; 0: padding. A recorded selection may be shorter
  std::int64_t stride = 0;
  const std::int32_t* lengths = nullptr;       // [rows] tokens
  const std::int64_t* blocks = nullptr;        // [rows] of the length
  const std::int64_t* first = nullptr;         // [rows] blocks [first, last) compete, the others are forced
  const std::int64_t* last = nullptr;          // [rows]
  const std::int32_t* block_tokens = nullptr;  // [rows]
  const std::int32_t* sequences = nullptr;     // a number of row r's sequence that stays, at [r * sequence_stride]
  std::int64_t sequence_stride = 0;
  std::int32_t layer = 0;
  std::int32_t rows = 0;
};

// Of a sequence in a layer.
[[nodiscard]] constexpr std::uint64_t churn_seed(std::int32_t layer, std::int32_t sequence) {
  return splitmix64((static_cast<std::uint64_t>(layer) << 32) | static_cast<std::uint32_t>(sequence));
}

// Part `entry` of the blocks from `first` on, each part `width` blocks wide, has one block at a time. It becomes
// another one of them `share` / 2^32 times a step (a step is one token more), each part at its own time.
[[nodiscard]] constexpr std::int64_t churned_block(std::uint64_t seed, std::uint64_t share, std::int64_t length,
                                                   std::int64_t entry, std::int64_t first, std::int64_t width) {
  const std::uint64_t own = splitmix64(seed ^ static_cast<std::uint64_t>(entry));
  const std::uint64_t epoch = (static_cast<std::uint64_t>(length) * share + (own >> 32)) >> 32;
  const std::uint64_t place = (splitmix64(own ^ splitmix64(epoch)) >> 32) * static_cast<std::uint64_t>(width) >> 32;
  return first + entry * width + static_cast<std::int64_t>(place);
}

struct ChurnParams {
  ReplacedRows rows;
  std::uint64_t share = 0;  // in units of 2^-32, at most 2^32
};

// Forced blocks stay. The others lie in parts of (last - first) / n blocks, one in each; what is left of the newest
// ones is not selected. So when last - first reaches the next multiple of n, parts grow and everything moves once.
void launch_churn(const ChurnParams& params, Stream stream);

// One row's recorded selection in a layer.
struct RecordedRow {
  std::int64_t at = 0;      // in RecordedTables::blocks
  std::int32_t count = 0;   // > 0
  std::int32_t blocks = 0;  // of the recorded length: the largest is below it
};
// Its rows of layer l: [first_row + l * rows, first_row + (l + 1) * rows), by length.
struct RecordedSequence {
  std::int64_t first_row = 0;
  std::int64_t first_length = 0;  // tokens, of the first row
  std::int32_t rows = 0;          // > 0
};
struct RecordedTables {
  const RecordedSequence* sequences = nullptr;
  const RecordedRow* rows = nullptr;
  const std::int32_t* blocks = nullptr;
  std::int32_t sequence_count = 0;
  std::int32_t block_tokens = 1;
};

// Which of `rows` recorded rows comes at step `step`, counted from the first one: behind the last one they come
// backwards, then forwards again, so that neighbours in time stay neighbours. Before the first one likewise.
[[nodiscard]] constexpr std::int32_t recorded_row(std::int64_t step, std::int32_t rows) {
  if (rows == 1) return 0;
  const std::int64_t period = 2 * (static_cast<std::int64_t>(rows) - 1);
  const std::int64_t at = (step % period + period) % period;
  return static_cast<std::int32_t>(at < rows ? at : period - at);
}

inline constexpr std::int64_t kNearTokens = 128;

// Where block `block` of `recorded` ones lies among `now`: the newest `near` (less than both) keep their distance from
// the end, the others are spread evenly. Never falls as `block` grows; where now < recorded neighbours may meet.
[[nodiscard]] constexpr std::int64_t spread_block(std::int64_t block, std::int64_t recorded, std::int64_t now,
                                                  std::int64_t near) {
  if (recorded - block <= near) return now - (recorded - block);
  return block * (now - near) / (recorded - near);
}
[[nodiscard]] constexpr std::int64_t near_blocks(std::int64_t recorded, std::int64_t now, std::int32_t block_tokens) {
  return std::min({kNearTokens / block_tokens, recorded - 1, now - 1});
}

struct RecordedParams {
  ReplacedRows rows;
  RecordedTables tables;
  std::int32_t recorded_layer = 0;
};

// The sequence's recorded one is its number modulo those that there are; of a recorded selection longer than top-k's,
// evenly taken blocks. Rows that select everything, or blocks of another size than the recorded ones, keep top-k's.
void launch_recorded(const RecordedParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
