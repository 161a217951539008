#include "model/latent_block.h"

#include <algorithm>

#include "model/rope.h"

namespace hotset::model {
namespace {

constexpr float kLatentEpsilon = 1e-6F;  // of the latents' and the indexer's norms, whatever the model's own is

bool selects_by_index(const SequenceSlice& slice) {
  return slice.selection != nullptr && slice.selection->metadata().kind == MetadataGeometry::Kind::kIndexKeys &&
         slice.dense_prompt_rows() < slice.rows;
}

}  // namespace

LatentBlock::LatentBlock(const ModelWeights& weights, kernels::DenseBackend& backend,
                         const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows)
    : weights_(weights),
      config_(weights.config),
      latent_(*weights.config.latent),
      backend_(backend),
      keeps_index_keys_(keeper != nullptr && keeper->metadata().kind == MetadataGeometry::Kind::kIndexKeys),
      key_dim_(latent_.kv_rank + latent_.rope_dim) {
  const auto floats = [&](std::int64_t width) { return backend.array<float>(max_rows * width); };
  const std::int64_t heads = config_.heads;
  inputs_ = floats(latent_.q_rank + (config_.indexer ? config_.indexer->dim : 0) + key_dim_);
  q_latent_normed_ = backend.activations(max_rows * latent_.q_rank);
  q_ = floats(heads * config_.head_dim);
  absorbed_q_ = floats(heads * key_dim_);
  context_ = backend.activations(max_rows * heads * latent_.kv_rank);
  values_ = backend.activations(max_rows * heads * latent_.value_dim);
  if (!keeps_index_keys_ || !config_.indexer) return;
  index_q_ = floats(std::int64_t{config_.indexer->heads} * config_.indexer->dim);
  index_weights_ = floats(config_.indexer->heads);
}

AttentionShape LatentBlock::shape() const {
  return {.heads = config_.heads, .scale = static_cast<float>(attention_scale(config_))};
}

const LatentAttentionWeights& LatentBlock::of(LayerId layer) const {
  return std::get<LatentAttentionWeights>(weights_.layers[static_cast<std::size_t>(layer.value())].attention);
}

LayerAttention LatentBlock::project(LayerId layer, const StepRows& rows, kernels::Activations normed) {
  const LatentAttentionWeights& weights = of(layer);
  const Inputs inputs = project_inputs(weights, rows, normed);
  kernels::Activations q_input = normed;
  if (latent_.q_rank > 0) {
    backend_.rms_norm({.in = inputs.q_latent,
                       .weight = weights.q_norm.data(),
                       .out = q_latent_normed_.get(),
                       .rows = rows.count,
                       .width = latent_.q_rank,
                       .stride = inputs.stride,
                       .epsilon = kLatentEpsilon,
                       .out_stride = latent_.q_rank});
    q_input = q_latent_normed_.get();
  }
  backend_.matmul(weights.q.product(q_input, q_.data(), rows.count));
  rotate(q_.data() + latent_.nope_dim, config_.heads, config_.head_dim, rows);
  if (!rows.left_unfinished) {
    backend_.rms_norm({.in = inputs.keys,
                       .weight = weights.kv_norm.data(),
                       .out = inputs.keys,
                       .rows = rows.count,
                       .width = latent_.kv_rank,
                       .stride = key_dim_,
                       .epsilon = kLatentEpsilon});
    rotate(inputs.keys + latent_.kv_rank, 1, key_dim_, rows);
  }
  find_latent_rows(rows.slices);
  absorb_queries(weights);
  LayerAttention out{.layer = layer,
                     .q = absorbed_q_.data(),
                     .k = inputs.keys,
                     .k_stride = inputs.stride,
                     .context = context_.get(),
                     .expanded_q = q_.data(),
                     .expanded_context = values_.get(),
                     .shares_selection = keeps_index_keys_ && !weights.indexer};
  if (rows.left_unfinished) {
    out.unfinished = {.k = inputs.keys,
                      .k_norm = weights.kv_norm.data(),
                      .epsilon = kLatentEpsilon,
                      .inv_freq = weights_.inv_freq.data(),
                      .rotary_dim = config_.rotary_dim,
                      .attention_factor = weights_.rope_attention_factor,
                      .index_epsilon = kLatentEpsilon};
  }
  if (keeps_index_keys_ && weights.indexer) project_index(*weights.indexer, rows, normed, inputs, out);
  return out;
}

// Rows of one product are left unfinished always: the finishing here takes rows that lie apart.
LatentBlock::Inputs LatentBlock::project_inputs(const LatentAttentionWeights& weights, const StepRows& rows,
                                                kernels::Activations normed) {
  const std::int64_t index_dim = weights.indexer ? config_.indexer->dim : 0;
  const bool joined = weights.inputs != nullptr && rows.left_unfinished;
  const std::int64_t each = joined ? 1 : rows.count;
  float* const q_latent = inputs_.data();
  float* const index_k = q_latent + each * latent_.q_rank;
  float* const keys = index_k + each * index_dim;
  if (joined) {
    backend_.matmul({.x = normed, .weight = weights.inputs.get(), .y = q_latent, .m = rows.count});
    return {q_latent, index_k, keys, weights.inputs->rows()};
  }
  if (latent_.q_rank > 0) backend_.matmul(weights.q_a.product(normed, q_latent, rows.count));
  backend_.matmul(weights.kv_a.product(normed, keys, rows.count));
  return {q_latent, index_k, keys, 0};
}

void LatentBlock::add_output(LayerId layer, const StepRows& rows, float* residual) {
  const LatentAttentionWeights& weights = of(layer);
  const std::int64_t context_width = std::int64_t{config_.heads} * latent_.kv_rank;
  const std::int64_t value_width = std::int64_t{config_.heads} * latent_.value_dim;
  for (const RowRange& range : latent_rows_) {
    backend_.batched_matmul({.x = context_.get().from(range.first * context_width),
                             .x_stride = context_width,
                             .x_distance = latent_.kv_rank,
                             .weights = weights.output_v_views.data(),
                             .batch = config_.heads,
                             .y = values_.get().from(range.first * value_width),
                             .y_stride = value_width,
                             .y_distance = latent_.value_dim,
                             .m = range.count});
  }
  backend_.matmul(weights.o.added_product(values_.get(), residual, rows.count));
}

void LatentBlock::find_latent_rows(std::span<const SequenceSlice> slices) {
  latent_rows_.clear();
  for (const SequenceSlice& slice : slices) {
    const std::int64_t dense = slice.dense_prompt_rows();
    if (dense == slice.rows) continue;
    const RowRange range{slice.first_row + dense, slice.rows - dense};
    if (!latent_rows_.empty() && latent_rows_.back().first + latent_rows_.back().count == range.first) {
      latent_rows_.back().count += range.count;
    } else {
      latent_rows_.push_back(range);
    }
  }
}

void LatentBlock::absorb_queries(const LatentAttentionWeights& weights) {
  const std::int64_t q_width = std::int64_t{config_.heads} * config_.head_dim;
  const std::int64_t absorbed_width = std::int64_t{config_.heads} * key_dim_;
  for (const RowRange& range : latent_rows_) {
    const float* q = q_.data() + range.first * q_width;
    float* absorbed = absorbed_q_.data() + range.first * absorbed_width;
    backend_.batched_matmul({.x = q,
                             .x_stride = q_width,
                             .x_distance = config_.head_dim,
                             .weights = weights.absorb_k_views.data(),
                             .batch = config_.heads,
                             .y = absorbed,
                             .y_stride = absorbed_width,
                             .y_distance = key_dim_,
                             .m = range.count});
    backend_.copy_columns({.source = q + latent_.nope_dim,
                           .source_stride = config_.head_dim,
                           .target = absorbed + latent_.kv_rank,
                           .target_stride = key_dim_,
                           .rows = range.count * config_.heads,
                           .width = latent_.rope_dim});
  }
}

void LatentBlock::project_index(const IndexerWeights& weights, const StepRows& rows, kernels::Activations normed,
                                const Inputs& inputs, LayerAttention& out) {
  const IndexerConfig& indexer = *config_.indexer;
  if (std::ranges::any_of(rows.slices, [](const SequenceSlice& slice) { return slice.kv->keeps_metadata; })) {
    if (inputs.stride == 0) backend_.matmul(weights.k.product(normed, inputs.index_k, rows.count));
    if (rows.left_unfinished) {
      out.unfinished->index_norm = weights.k_norm.data();
      out.unfinished->index_bias = weights.k_norm_bias.data();
    } else {
      backend_.layer_norm({.in = inputs.index_k,
                           .weight = weights.k_norm.data(),
                           .bias = weights.k_norm_bias.data(),
                           .out = inputs.index_k,
                           .rows = rows.count,
                           .width = indexer.dim,
                           .epsilon = kLatentEpsilon});
      rotate(inputs.index_k, 1, indexer.dim, rows);
    }
    out.index_k = inputs.index_k;
  }
  if (std::ranges::any_of(rows.slices, selects_by_index)) {
    backend_.matmul(weights.q.product(q_latent_normed_.get(), index_q_.data(), rows.count));
    rotate(index_q_.data(), indexer.heads, indexer.dim, rows);
    backend_.matmul(weights.weights.product(normed, index_weights_.data(), rows.count));
    out.index_q = index_q_.data();
    out.index_weights = index_weights_.data();
    out.index_heads = indexer.heads;
  }
}

void LatentBlock::rotate(float* x, std::int32_t heads, std::int32_t width, const StepRows& rows) {
  backend_.rope({.x = x,
                 .row_stride = std::int64_t{heads} * width,
                 .positions = rows.positions,
                 .inv_freq = weights_.inv_freq.data(),
                 .rows = rows.count,
                 .heads = heads,
                 .head_dim = width,
                 .rotary_dim = config_.rotary_dim,
                 .attention_factor = weights_.rope_attention_factor});
}

}  // namespace hotset::model
