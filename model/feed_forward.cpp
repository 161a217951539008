#include "model/feed_forward.h"

#include <algorithm>

namespace hotset::model {
namespace {

// Of the MLPs that run on all rows.
std::int64_t widest_mlp(const ModelConfig& config) {
  const std::int64_t shared = config.experts ? config.experts->shared * config.experts->intermediate : 0;
  return std::max(config.intermediate, shared);
}

bool has_joined_mlp(const LayerWeights& layer) {
  const auto* const mlp = std::get_if<MlpWeights>(&layer.feed_forward);
  if (mlp != nullptr) return mlp->gate_up != nullptr;
  const auto& experts = std::get<ExpertsWeights>(layer.feed_forward);
  return experts.shared && experts.shared->gate_up != nullptr;
}

}  // namespace

FeedForward::FeedForward(const ModelWeights& weights, kernels::DenseBackend& backend, std::int64_t max_rows)
    : weights_(weights), backend_(backend) {
  const std::int64_t size = max_rows * widest_mlp(weights.config);
  gate_up_ = backend.array<float>(2 * size);
  const bool joined = std::ranges::any_of(weights.layers, has_joined_mlp);
  if (joined || backend.activation_type() != kernels::ElementType::kF32) gated_ = backend.activations(size);
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
  const std::int64_t width = mlp.gate.weight->rows();
  float* const gates = gate_up_.data();
  const kernels::ActivationsOut gated = gated_.empty() ? kernels::ActivationsOut(gates) : gated_.get();
  kernels::SiluGateParams gate{.gate = gates, .up = gates + rows * width, .out = gated, .rows = rows, .width = width};
  if (mlp.gate_up != nullptr) {
    if (backend_.gated_matmul({.x = normed, .gate_up = mlp.gate_up.get(), .out = gated, .m = rows})) {
      backend_.matmul(mlp.down.added_product(gated, residual, rows));
      return;
    }
    backend_.matmul({.x = normed, .weight = mlp.gate_up.get(), .y = gates, .m = rows});
    gate.up = gates + width;
    gate.stride = 2 * width;
  } else {
    backend_.matmul(mlp.gate.product(normed, gates, rows));
    backend_.matmul(mlp.up.product(normed, gates + rows * width, rows));
  }
  backend_.silu_gate(gate);
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
