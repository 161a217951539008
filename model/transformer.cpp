#include "model/transformer.h"

#include <algorithm>

#include "core/check.h"
#include "model/grouped_block.h"
#include "model/latent_block.h"

namespace hotset::model {
namespace {

std::unique_ptr<AttentionBlock> make_block(const ModelWeights& weights, kernels::Backend& backend,
                                           const KvGeometry& cache, const sparse::SelectionAlgorithm* keeper,
                                           std::int64_t max_rows) {
  if (weights.config.latent) return std::make_unique<LatentBlock>(weights, backend, cache, keeper, max_rows);
  return std::make_unique<GroupedBlock>(weights, backend, max_rows);
}

}  // namespace

Transformer::Transformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
                         const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_prefill_rows)
    : weights_(weights),
      config_(weights.config),
      backend_(backend),
      block_(make_block(weights, backend, kv.geometry(), keeper, max_rows)),
      attention_(block_->shape(), backend, kv, keeper, block_->expander(), max_prefill_rows),
      feed_forward_(weights, backend, max_rows),
      residual_(static_cast<std::size_t>(max_rows * config_.hidden)),
      normed_(static_cast<std::size_t>(std::max(max_rows, kLogitsRows) * config_.hidden)),
      logits_(static_cast<std::size_t>(kLogitsRows * config_.vocabulary)),
      positions_(static_cast<std::size_t>(max_rows)) {}

void Transformer::forward(std::uint64_t step, std::span<const std::int32_t> tokens,
                          std::span<const SequenceSlice> slices) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  HS_CHECK(count <= static_cast<std::int64_t>(positions_.size()), "the step fits the workspace");
  for (const SequenceSlice& slice : slices) {
    for (std::int64_t row = 0; row < slice.rows; ++row) {
      positions_[static_cast<std::size_t>(slice.first_row + row)] = slice.first_position + row;
    }
  }
  const StepRows rows{.count = count, .positions = positions_.data(), .slices = slices};
  backend_.embed({.table = weights_.embedding.get(), .tokens = tokens.data(), .count = count, .out = residual_.data()});
  for (std::int32_t index = 0; index < config_.layers; ++index) {
    const LayerId layer{index};
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
    norm(residual_.data(), weights.attention_norm, normed_.data(), count);
    attention_.run(step, block_->project(layer, rows, normed_.data()), slices);
    block_->add_output(layer, rows, residual_.data());
    norm(residual_.data(), weights.mlp_norm, normed_.data(), count);
    feed_forward_.run(layer, normed_.data(), count, residual_.data());
  }
}

std::span<float> Transformer::logits(std::span<const std::int64_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  HS_CHECK(count <= kLogitsRows, "at most kLogitsRows rows in one call");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    norm(residual_.data() + row * config_.hidden, weights_.final_norm, normed_.data() + i * config_.hidden, 1);
  }
  backend_.matmul({.x = normed_.data(), .weight = &weights_.output(), .y = logits_.data(), .m = count});
  return std::span<float>(logits_).first(static_cast<std::size_t>(count * config_.vocabulary));
}

void Transformer::norm(const float* in, const std::vector<float>& weight, float* out, std::int64_t rows) {
  backend_.rms_norm({.in = in,
                     .weight = weight.data(),
                     .out = out,
                     .rows = rows,
                     .width = config_.hidden,
                     .epsilon = static_cast<float>(config_.rms_epsilon)});
}

}  // namespace hotset::model
