// What takes the place of a model's own selections in measurements (--selection-model): a model of churn, or selections
// that were recorded. Dummy weights select nearly at random, so their hot buffers would miss as those of no real model.
// How selections are replaced: sparse/device_selection_model.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <variant>
#include <vector>

#include "core/result.h"

namespace hotset::sparse {

struct ChurnModel {
  double share = 0;  // of a selection that changes from token to token, 0 to 1; forced blocks stay
};
struct RecordedModel {
  std::filesystem::path trace;  // of --trace-selections
};
using SelectionModel = std::variant<ChurnModel, RecordedModel>;

// "churn=P" or "trace=FILE". kInvalidArgument names --selection-model.
Result<SelectionModel> parse_selection_model(std::string_view text);

// The recorded selections of generated tokens, row after row.
struct RecordedSelections {
  struct Row {
    std::int64_t at = 0;      // of its blocks
    std::int32_t count = 0;   // > 0
    std::int32_t blocks = 0;  // of its length, the query's own token included
  };
  // Rows of consecutive lengths: of layer l, rows[first_row + l * count ...].
  struct Sequence {
    std::int64_t first_row = 0;
    std::int64_t first_length = 0;  // tokens
    std::int32_t count = 0;         // > 0
  };
  std::int32_t layers = 0;
  std::int32_t block_tokens = 1;
  std::vector<Sequence> sequences;  // not empty
  std::vector<Row> rows;
  std::vector<std::int32_t> blocks;
};

// Reads a trace up to `most_blocks` blocks; what follows is left out. Of a sequence counts what was recorded in every
// layer, from its first selecting row on. kNotFound, kCorrupt; kInvalidArgument where no sequence is left, or blocks
// have more than one size.
Result<RecordedSelections> read_recorded_selections(const std::filesystem::path& path,
                                                    std::int64_t most_blocks = std::int64_t{1} << 28);

}  // namespace hotset::sparse
