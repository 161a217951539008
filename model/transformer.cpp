#include "model/transformer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::model {
namespace {

// Loads tensors one after the other and keeps the first error.
class WeightLoader {
 public:
  WeightLoader(Checkpoint& checkpoint, kernels::Backend& backend) : checkpoint_(checkpoint), backend_(backend) {}

  Matrix matrix(const std::string& name) {
    if (!status_.ok()) return nullptr;
    const auto view = checkpoint_.matrix(name);
    if (!view.ok()) {
      status_ = view.error();
      return nullptr;
    }
    return backend_.pack(view.value());
  }
  std::vector<float> vector(const std::string& name) {
    if (!status_.ok()) return {};
    auto values = checkpoint_.vector(name);
    if (!values.ok()) {
      status_ = values.error();
      return {};
    }
    return std::move(values).value();
  }
  Linear linear(const std::string& name, bool bias) {
    Linear out;
    out.weight = matrix(name);
    if (bias) out.bias = vector(name + ".bias");
    return out;
  }
  [[nodiscard]] const Result<void>& status() const { return status_; }

 private:
  Checkpoint& checkpoint_;
  kernels::Backend& backend_;
  Result<void> status_;
};

LayerWeights load_layer(WeightLoader& loader, const ModelConfig& config, std::int32_t index) {
  const std::string prefix = concat("layers.", index, ".");
  LayerWeights out;
  out.attention_norm = loader.vector(prefix + "input_layernorm");
  out.mlp_norm = loader.vector(prefix + "post_attention_layernorm");
  out.q = loader.linear(prefix + "self_attn.q_proj", config.qkv_bias);
  out.k = loader.linear(prefix + "self_attn.k_proj", config.qkv_bias);
  out.v = loader.linear(prefix + "self_attn.v_proj", config.qkv_bias);
  out.o = loader.linear(prefix + "self_attn.o_proj", config.o_bias);
  if (config.qk_norm) {
    out.q_norm = loader.vector(prefix + "self_attn.q_norm");
    out.k_norm = loader.vector(prefix + "self_attn.k_norm");
  }
  out.gate = loader.linear(prefix + "mlp.gate_proj", config.mlp_bias);
  out.up = loader.linear(prefix + "mlp.up_proj", config.mlp_bias);
  out.down = loader.linear(prefix + "mlp.down_proj", config.mlp_bias);
  return out;
}

template <class Visitor>
void visit_matrices(const ModelWeights& weights, Visitor&& visit) {
  visit(*weights.embedding);
  if (weights.lm_head) visit(*weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      visit(*linear->weight);
    }
  }
}

}  // namespace

std::int64_t ModelWeights::bytes() const {
  std::int64_t sum = 0;
  visit_matrices(*this, [&](const kernels::PackedMatrix& matrix) { sum += matrix.bytes(); });
  return sum;
}

std::int64_t ModelWeights::parameters() const {
  std::int64_t sum = 0;
  visit_matrices(*this, [&](const kernels::PackedMatrix& matrix) { sum += matrix.rows() * matrix.cols(); });
  return sum;
}

Result<std::unique_ptr<ModelWeights>> load_weights(Checkpoint& checkpoint, kernels::Backend& backend) {
  auto weights = std::make_unique<ModelWeights>();
  weights->config = checkpoint.config();
  weights->rope = make_rope(weights->config);
  WeightLoader loader(checkpoint, backend);
  weights->embedding = loader.matrix("embed_tokens");
  weights->final_norm = loader.vector("norm");
  if (!weights->config.tied_embeddings) weights->lm_head = loader.matrix("lm_head");
  for (std::int32_t layer = 0; layer < weights->config.layers && loader.status().ok(); ++layer) {
    weights->layers.push_back(load_layer(loader, weights->config, layer));
  }
  if (!loader.status().ok()) return loader.status().error();
  return weights;
}

KvGeometry kv_geometry_of(const ModelConfig& config, KvDType dtype) {
  if (config.latent) {
    return {.layers = config.layers,
            .kv_heads = 1,
            .key_dim = config.latent->kv_rank + config.latent->rope_dim,
            .value_dim = config.latent->kv_rank,
            .layout = KvGeometry::Layout::kLatent,
            .dtype = dtype};
  }
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .key_dim = config.head_dim,
          .value_dim = config.head_dim,
          .dtype = dtype};
}

Transformer::Transformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
                         const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_prefill_rows)
    : weights_(weights),
      config_(weights.config),
      backend_(backend),
      attention_({.heads = config_.heads, .scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim))}, backend, kv,
                 keeper, nullptr, max_prefill_rows) {
  const auto floats = [](std::int64_t rows, std::int64_t width) { return static_cast<std::size_t>(rows * width); };
  const std::int64_t q_width = std::int64_t{config_.heads} * config_.head_dim;
  const std::int64_t kv_width = std::int64_t{config_.kv_heads} * config_.head_dim;
  residual_.resize(floats(max_rows, config_.hidden));
  normed_.resize(floats(std::max(max_rows, kLogitsRows), config_.hidden));
  q_.resize(floats(max_rows, q_width));
  k_.resize(floats(max_rows, kv_width));
  v_.resize(floats(max_rows, kv_width));
  context_.resize(floats(max_rows, q_width));
  gate_.resize(floats(max_rows, config_.intermediate));
  up_.resize(floats(max_rows, config_.intermediate));
  logits_.resize(floats(kLogitsRows, config_.vocabulary));
  positions_.resize(static_cast<std::size_t>(max_rows));
}

void Transformer::forward(std::uint64_t step, std::span<const std::int32_t> tokens,
                          std::span<const SequenceSlice> slices) {
  rows_ = static_cast<std::int64_t>(tokens.size());
  HS_CHECK(rows_ <= static_cast<std::int64_t>(positions_.size()), "the step fits the workspace");
  for (const SequenceSlice& slice : slices) {
    for (std::int64_t row = 0; row < slice.rows; ++row) {
      positions_[static_cast<std::size_t>(slice.first_row + row)] = slice.first_position + row;
    }
  }
  backend_.embed({.table = weights_.embedding.get(), .tokens = tokens.data(), .count = rows_, .out = residual_.data()});
  for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& layer_weights = weights_.layers[static_cast<std::size_t>(layer)];
    attention_block(step, layer_weights, LayerId{layer}, slices);
    mlp_block(layer_weights);
  }
}

void Transformer::attention_block(std::uint64_t step, const LayerWeights& layer, LayerId id,
                                  std::span<const SequenceSlice> slices) {
  norm_rows(residual_.data(), layer.attention_norm, normed_.data(), rows_, config_.hidden);
  multiply(layer.q, normed_.data(), q_.data(), false);
  multiply(layer.k, normed_.data(), k_.data(), false);
  multiply(layer.v, normed_.data(), v_.data(), false);
  if (!layer.q_norm.empty()) {
    norm_rows(q_.data(), layer.q_norm, q_.data(), rows_ * config_.heads, config_.head_dim);
    norm_rows(k_.data(), layer.k_norm, k_.data(), rows_ * config_.kv_heads, config_.head_dim);
  }
  rotate(q_.data(), config_.heads);
  rotate(k_.data(), config_.kv_heads);
  attention_.run(step, {.layer = id, .q = q_.data(), .k = k_.data(), .v = v_.data(), .context = context_.data()},
                 slices);
  multiply(layer.o, context_.data(), residual_.data(), true);
}

void Transformer::mlp_block(const LayerWeights& layer) {
  norm_rows(residual_.data(), layer.mlp_norm, normed_.data(), rows_, config_.hidden);
  multiply(layer.gate, normed_.data(), gate_.data(), false);
  multiply(layer.up, normed_.data(), up_.data(), false);
  backend_.silu_gate(
      {.gate = gate_.data(), .up = up_.data(), .out = gate_.data(), .rows = rows_, .width = config_.intermediate});
  multiply(layer.down, gate_.data(), residual_.data(), true);
}

std::span<float> Transformer::logits(std::span<const std::int64_t> rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  HS_CHECK(count <= kLogitsRows, "at most kLogitsRows rows in one call");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    norm_rows(residual_.data() + row * config_.hidden, weights_.final_norm, normed_.data() + i * config_.hidden, 1,
              config_.hidden);
  }
  backend_.matmul({.x = normed_.data(), .weight = &weights_.output(), .y = logits_.data(), .m = count});
  return std::span<float>(logits_).first(static_cast<std::size_t>(count * config_.vocabulary));
}

void Transformer::norm_rows(const float* in, const std::vector<float>& weight, float* out, std::int64_t rows,
                            std::int64_t width) {
  backend_.rms_norm({.in = in,
                     .weight = weight.data(),
                     .out = out,
                     .rows = rows,
                     .width = width,
                     .epsilon = static_cast<float>(config_.rms_epsilon)});
}

void Transformer::multiply(const Linear& linear, const float* x, float* y, bool accumulate) {
  backend_.matmul({.x = x,
                   .weight = linear.weight.get(),
                   .bias = linear.bias.empty() ? nullptr : linear.bias.data(),
                   .y = y,
                   .m = rows_,
                   .accumulate = accumulate});
}

void Transformer::rotate(float* x, std::int32_t heads) {
  backend_.rope({.x = x,
                 .row_stride = std::int64_t{heads} * config_.head_dim,
                 .positions = positions_.data(),
                 .inv_freq = weights_.rope.inv_freq.data(),
                 .rows = rows_,
                 .heads = heads,
                 .head_dim = config_.head_dim,
                 .rotary_dim = config_.rotary_dim,
                 .attention_factor = weights_.rope.attention_factor});
}

}  // namespace hotset::model
