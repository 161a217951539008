#include "model/grouped_block.h"

#include <cmath>

namespace hotset::model {

GroupedBlock::GroupedBlock(const ModelWeights& weights, kernels::DenseBackend& backend, std::int64_t max_rows)
    : weights_(weights),
      config_(weights.config),
      backend_(backend),
      context_(backend.activations(max_rows * config_.heads * config_.head_dim)) {
  const std::int64_t kv_width = std::int64_t{config_.kv_heads} * config_.head_dim;
  const std::int64_t q_width = std::int64_t{config_.heads} * config_.head_dim;
  qkv_ = backend.array<float>(max_rows * (q_width + 2 * kv_width));
}

AttentionShape GroupedBlock::shape() const {
  return {.heads = config_.heads, .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim))};
}

const GroupedAttentionWeights& GroupedBlock::of(LayerId layer) const {
  return std::get<GroupedAttentionWeights>(weights_.layers[static_cast<std::size_t>(layer.value())].attention);
}

LayerAttention GroupedBlock::project(LayerId layer, const StepRows& rows, kernels::Activations normed) {
  const GroupedAttentionWeights& weights = of(layer);
  const std::int64_t q_width = std::int64_t{config_.heads} * config_.head_dim;
  const std::int64_t kv_width = std::int64_t{config_.kv_heads} * config_.head_dim;
  float* const q = qkv_.data();
  if (weights.qkv != nullptr) {
    const std::int64_t stride = q_width + 2 * kv_width;
    float* const k = q + q_width;
    backend_.matmul({.x = normed, .weight = weights.qkv.get(), .y = q, .m = rows.count});
    return finished({.layer = layer,
                     .q = q,
                     .k = k,
                     .v = k + kv_width,
                     .q_stride = stride,
                     .k_stride = stride,
                     .context = context_.get()},
                    weights, rows);
  }
  float* const k = q + rows.count * q_width;
  float* const v = k + rows.count * kv_width;
  backend_.matmul(weights.q.product(normed, q, rows.count));
  backend_.matmul(weights.k.product(normed, k, rows.count));
  backend_.matmul(weights.v.product(normed, v, rows.count));
  return finished({.layer = layer, .q = q, .k = k, .v = v, .context = context_.get()}, weights, rows);
}

// Norms and RoPE, or what there is to do of them.
LayerAttention GroupedBlock::finished(LayerAttention out, const GroupedAttentionWeights& weights,
                                      const StepRows& rows) {
  const bool norms = !weights.q_norm.empty();
  const bool joined = out.q_stride != 0;
  float* const q = qkv_.data();
  float* const k = q + (joined ? 1 : rows.count) * config_.heads * config_.head_dim;
  if (rows.left_unfinished) {
    out.unfinished = {.q = q,
                      .k = k,
                      .q_norm = norms ? weights.q_norm.data() : nullptr,
                      .k_norm = norms ? weights.k_norm.data() : nullptr,
                      .epsilon = static_cast<float>(config_.rms_epsilon),
                      .inv_freq = weights_.inv_freq.data(),
                      .rotary_dim = config_.rotary_dim,
                      .attention_factor = weights_.rope_attention_factor};
    return out;
  }
  if (norms) {
    norm_heads(q, weights.q_norm, rows.count * config_.heads);
    norm_heads(k, weights.k_norm, rows.count * config_.kv_heads);
  }
  if (joined) {
    rotate(q, config_.heads + config_.kv_heads, out.q_stride, rows);
  } else {
    rotate(q, config_.heads, std::int64_t{config_.heads} * config_.head_dim, rows);
    rotate(k, config_.kv_heads, std::int64_t{config_.kv_heads} * config_.head_dim, rows);
  }
  return out;
}

void GroupedBlock::add_output(LayerId layer, const StepRows& rows, float* residual) {
  backend_.matmul(of(layer).o.added_product(context_.get(), residual, rows.count));
}

void GroupedBlock::norm_heads(float* x, const Vector& weight, std::int64_t heads) {
  backend_.rms_norm({.in = x,
                     .weight = weight.data(),
                     .out = x,
                     .rows = heads,
                     .width = config_.head_dim,
                     .epsilon = static_cast<float>(config_.rms_epsilon)});
}

void GroupedBlock::rotate(float* x, std::int32_t heads, std::int64_t stride, const StepRows& rows) {
  backend_.rope({.x = x,
                 .row_stride = stride,
                 .positions = rows.positions,
                 .inv_freq = weights_.inv_freq.data(),
                 .rows = rows.count,
                 .heads = heads,
                 .head_dim = config_.head_dim,
                 .rotary_dim = config_.rotary_dim,
                 .attention_factor = weights_.rope_attention_factor});
}

}  // namespace hotset::model
