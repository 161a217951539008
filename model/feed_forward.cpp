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

FeedForward::FeedForward(const ModelWeights& weights, kernels::Backend& backend, std::int64_t max_rows)
    : weights_(weights),
      backend_(backend),
      gate_(static_cast<std::size_t>(max_rows * widest_mlp(weights.config))),
      up_(gate_.size()) {
  if (!weights.config.experts) return;
  const ExpertsConfig& experts = *weights.config.experts;
  router_logits_.resize(static_cast<std::size_t>(max_rows * experts.count));
  expert_ids_.resize(static_cast<std::size_t>(max_rows * experts.per_token));
  expert_weights_.resize(expert_ids_.size());
}

void FeedForward::run(LayerId layer, const float* normed, std::int64_t rows, float* residual) {
  std::visit([&](const auto& part) { run(part, normed, rows, residual); },
             weights_.layers[static_cast<std::size_t>(layer.value())].feed_forward);
}

void FeedForward::run(const MlpWeights& mlp, const float* normed, std::int64_t rows, float* residual) {
  backend_.matmul(mlp.gate.product(normed, gate_.data(), rows));
  backend_.matmul(mlp.up.product(normed, up_.data(), rows));
  backend_.silu_gate(
      {.gate = gate_.data(), .up = up_.data(), .out = gate_.data(), .rows = rows, .width = mlp.gate.weight->rows()});
  backend_.matmul(mlp.down.added_product(gate_.data(), residual, rows));
}

void FeedForward::run(const ExpertsWeights& weights, const float* normed, std::int64_t rows, float* residual) {
  const ExpertsConfig& config = *weights_.config.experts;
  backend_.matmul(weights.router.product(normed, router_logits_.data(), rows));
  backend_.route({.logits = router_logits_.data(),
                  .bias = weights.correction_bias.empty() ? nullptr : weights.correction_bias.data(),
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
                    .experts = weights.matrices.data(),
                    .expert_count = config.count,
                    .ids = expert_ids_.data(),
                    .weights = expert_weights_.data(),
                    .per_token = config.per_token,
                    .rows = rows,
                    .out = residual});
}

}  // namespace hotset::model
