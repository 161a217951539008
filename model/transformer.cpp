#include "model/transformer.h"

#include <algorithm>

#include "core/check.h"
#include "model/grouped_block.h"
#include "model/latent_block.h"

namespace hotset::model {
namespace {

std::unique_ptr<AttentionBlock> make_block(const ModelWeights& weights, kernels::DenseBackend& backend,
                                           const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows) {
  if (weights.config.latent) return std::make_unique<LatentBlock>(weights, backend, keeper, max_rows);
  return std::make_unique<GroupedBlock>(weights, backend, max_rows);
}

}  // namespace

Transformer::Transformer(const ModelWeights& weights, kernels::DenseBackend& backend,
                         const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_logits_rows)
    : weights_(weights),
      config_(weights.config),
      backend_(backend),
      max_rows_(max_rows),
      max_logits_rows_(max_logits_rows),
      block_(make_block(weights, backend, keeper, max_rows)),
      feed_forward_(weights, backend, max_rows),
      residual_(backend.array<float>(max_rows * config_.hidden)),
      logits_(backend.array<float>(max_logits_rows * config_.vocabulary)),
      normed_(backend.activations(std::max(max_rows, max_logits_rows) * config_.hidden)) {}

void Transformer::forward(std::uint64_t step, const StepInputs& inputs, std::span<const SequenceSlice> slices,
                          KvAttention& attention, DecodeProbe* probe) {
  const std::int64_t count = inputs.count;
  HS_CHECK(count <= max_rows_, "the step fits the workspace");
  const StepRows rows{
      .count = count, .positions = inputs.positions, .slices = slices, .left_unfinished = attention.finishes_rows()};
  float* const residual = residual_.data();
  backend_.embed({.table = weights_.embedding.get(), .tokens = inputs.tokens, .count = count, .out = residual});
  for (std::int32_t index = 0; index < config_.layers; ++index) {
    const LayerId layer{index};
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
    norm(residual, weights.attention_norm, count);
    attention.run(step, block_->project(layer, rows, normed_.get()), slices);
    block_->add_output(layer, rows, residual);
    if (probe != nullptr) probe->after(DecodeProbe::Part::kOutput, layer);
    norm(residual, weights.mlp_norm, count);
    feed_forward_.run(layer, normed_.get(), count, residual);
    if (probe != nullptr) probe->after(DecodeProbe::Part::kFed, layer);
  }
}

float* Transformer::logits(std::int64_t first_row, std::int64_t count) {
  HS_CHECK(count <= max_logits_rows_, "at most max_logits_rows rows in one call");
  norm(residual_.data() + first_row * config_.hidden, weights_.final_norm, count);
  backend_.matmul({.x = normed_.get(), .weight = &weights_.output(), .y = logits_.data(), .m = count});
  return logits_.data();
}

// To normed_.
void Transformer::norm(const float* in, const Vector& weight, std::int64_t rows) {
  backend_.rms_norm({.in = in,
                     .weight = weight.data(),
                     .out = normed_.get(),
                     .rows = rows,
                     .width = config_.hidden,
                     .epsilon = static_cast<float>(config_.rms_epsilon)});
}

}  // namespace hotset::model
