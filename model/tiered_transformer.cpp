#include "model/tiered_transformer.h"

#include "core/check.h"

namespace hotset::model {

TieredTransformer::TieredTransformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
                                     const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows,
                                     std::int64_t max_prefill_rows)
    : expander_(weights.config.latent ? std::make_unique<LatentExpander>(weights, backend, kv.geometry()) : nullptr),
      transformer_(weights, backend, keeper, max_rows, kLogitsRows),
      attention_(transformer_.attention_shape(), backend, kv, keeper, expander_.get(), max_prefill_rows),
      vocabulary_(weights.config.vocabulary),
      positions_(static_cast<std::size_t>(max_rows)) {}

void TieredTransformer::forward(std::uint64_t step, std::span<const std::int32_t> tokens,
                                std::span<const SequenceSlice> slices) {
  HS_CHECK(tokens.size() <= positions_.size(), "the step fits the workspace");
  for (const SequenceSlice& slice : slices) {
    for (std::int64_t row = 0; row < slice.rows; ++row) {
      positions_[static_cast<std::size_t>(slice.first_row + row)] = slice.first_position + row;
    }
  }
  transformer_.forward(
      step,
      {.tokens = tokens.data(), .positions = positions_.data(), .count = static_cast<std::int64_t>(tokens.size())},
      slices, attention_);
}

std::span<float> TieredTransformer::logits(std::int64_t first_row, std::int64_t count) {
  return {transformer_.logits(first_row, count), static_cast<std::size_t>(count * vocabulary_)};
}

}  // namespace hotset::model
