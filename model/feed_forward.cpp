#include "model/feed_forward.h"

#include <algorithm>

namespace hotset::model {
namespace {

// Of the MLPs that run on all rows.
std::int64_t widest_mlp(const ModelConfig& config) {
  const std::int64_t shared = config.experts ? config.experts->shared * config.experts->intermediate : 0;
  return std::max(config.intermediate, shared);
}

}  // namespace

FeedForward::FeedForward(const ModelWeights& weights, kernels::DenseBackend& backend, std::int64_t max_rows)
    : weights_(weights),
      backend_(backend),
      gate_(backend.array<float>(max_rows * widest_mlp(weights.config))),
      up_(backend.array<float>(gate_.size())) {
  if (backend.activation_type() != kernels::ElementType::kF32) gated_ = backend.activations(gate_.size());
  if (!weights.config.experts) return;
  const ExpertsConfig& experts = *weights.config.experts;
  router_logits_ = backend.array<float>(max_rows * experts.count);
  expert_ids_ = backend.array<std::int32_t>(max_rows * experts.per_token);
  expert_weights_ = backend.array<float>(expert_ids_.size());
}

void FeedForward::run(LayerId layer, kernels::Activations normed, std::int64_t rows, float* residual) {
  std::visit([&](const auto& part) { run(part, normed, rows, residual); },
             weights_.layers[static_cast<std::size_t>(layer.value())].feed_forward);
}

void FeedForward::run(const MlpWeights& mlp, kernels::Activations normed, std::int64_t rows, float* residual) {
  backend_.matmul(mlp.gate.product(normed, gate_.data(), rows));
  backend_.matmul(mlp.up.product(normed, up_.data(), rows));
  const kernels::ActivationsOut gated = gated_.empty() ? kernels::ActivationsOut(gate_.data()) : gated_.get();
  backend_.silu_gate(
      {.gate = gate_.data(), .up = up_.data(), .out = gated, .rows = rows, .width = mlp.gate.weight->rows()});
  backend_.matmul(mlp.down.added_product(gated, residual, rows));
}

void FeedForward::run(const ExpertsWeights& weights, kernels::Activations normed, std::int64_t rows, float* residual) {
  const ExpertsConfig& config = *weights_.config.experts;
  backend_.matmul(weights.router.product(normed, router_logits_.data(), rows));
  backend_.route({.logits = router_logits_.data(),
                  .bias = weights.correction_bias.data(),
                  .rows = rows,
                  .experts = config.count,
                  .per_token = config.per_token,
                  .groups = config.groups,
                  .top_groups = config.top_groups,
                  .softmax = config.router == ExpertsConfig::Router::kSoftmax,
                  .group_by_best = config.group_score == ExpertsConfig::GroupScore::kBest,
                  .normalised = config.normalised,
                  .scaling_factor = static_cast<float>(config.scaling_factor),
                  .ids = expert_ids_.data(),
                  .weights = expert_weights_.data()});
  if (weights.shared) run(*weights.shared, normed, rows, residual);
  backend_.experts({.x = normed,
                    .experts = weights.experts.get(),
                    .ids = expert_ids_.data(),
                    .weights = expert_weights_.data(),
                    .per_token = config.per_token,
                    .rows = rows,
                    .out = residual});
}

}  // namespace hotset::model
