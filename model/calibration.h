// Calibration: runs a text through the model and makes the basis of low-rank index keys from the keys that it caches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/result.h"
#include "kernels/backend.h"
#include "model/tiered_transformer.h"
#include "sparse/index_basis.h"

namespace hotset::model {

inline constexpr std::int64_t kMinCalibrationTokens = 256;  // fewer say too little about 64 and more channels

// The sequences that a text of `tokens` is calibrated with: one, if it has at most min(max_positions, 4,096) tokens.
// Else up to 4 pieces of min(max_positions, 2,048) tokens each, spread evenly over the text; models of short contexts
// get more and shorter ones, up to 8,192 tokens in all. What lies between the pieces is not used.
[[nodiscard]] std::vector<std::span<const std::int32_t>> calibration_sequences(std::span<const std::int32_t> tokens,
                                                                               std::int64_t max_positions);

// Called from the calling thread after each chunk of up to 256 tokens; `done` rises to `total`.
using CalibrationProgress = std::function<void(std::int64_t done, std::int64_t total)>;

struct Calibration {
  sparse::IndexBasis basis;
  std::vector<std::vector<double>> captured;  // sparse::captured_share(): [layers][kv_heads]
  std::int64_t tokens = 0;                    // that were run
};

// Runs the sequences one after the other: dense attention, float32 rows, a cache of its own (host memory for the
// longest sequence's rows, freed at the end). The same model, tokens and backend give the same basis bit for bit.
// Blocks for the whole run: seconds for 135 million parameters, minutes for billions on a CPU. `rank` absent:
// default_index_rank(). Errors: a rank that the model's keys don't allow (param --index-rank); a token outside the
// vocabulary; fewer than kMinCalibrationTokens tokens; kOverloaded when the memory
// for the rows is refused; kCorrupt when the model computes values that are not finite.
Result<Calibration> calibrate(const ModelWeights& weights, kernels::Backend& backend,
                              std::span<const std::int32_t> tokens, std::optional<std::int64_t> rank,
                              const CalibrationProgress& progress);

}  // namespace hotset::model
