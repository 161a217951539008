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
  q_latent_ = floats(latent_.q_rank);
  q_latent_normed_ = backend.activations(max_rows * latent_.q_rank);
  q_ = floats(heads * config_.head_dim);
  keys_ = floats(key_dim_);
  absorbed_q_ = floats(heads * key_dim_);
  context_ = backend.activations(max_rows * heads * latent_.kv_rank);
  values_ = backend.activations(max_rows * heads * latent_.value_dim);
  if (!keeps_index_keys_ || !config_.indexer) return;
  index_q_ = floats(std::int64_t{config_.indexer->heads} * config_.indexer->dim);
  index_k_ = floats(config_.indexer->dim);
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
  kernels::Activations q_input = normed;
  if (latent_.q_rank > 0) {
    backend_.matmul(weights.q_a.product(normed, q_latent_.data(), rows.count));
    norm(q_latent_.data(), weights.q_norm, q_latent_normed_.get(), rows.count, latent_.q_rank);
    q_input = q_latent_normed_.get();
  }
  backend_.matmul(weights.q.product(q_input, q_.data(), rows.count));
  rotate(q_.data() + latent_.nope_dim, config_.heads, config_.head_dim, rows);
  backend_.matmul(weights.kv_a.product(normed, keys_.data(), rows.count));
  if (!rows.left_unfinished) {
    norm(keys_.data(), weights.kv_norm, keys_.data(), rows.count, key_dim_);
    rotate(keys_.data() + latent_.kv_rank, 1, key_dim_, rows);
  }
  find_latent_rows(rows.slices);
  absorb_queries(weights);
  LayerAttention out{.layer = layer,
                     .q = absorbed_q_.data(),
                     .k = keys_.data(),
                     .context = context_.get(),
                     .expanded_q = q_.data(),
                     .expanded_context = values_.get(),
                     .shares_selection = keeps_index_keys_ && !weights.indexer};
  if (rows.left_unfinished) {
    out.unfinished = {.k = keys_.data(),
                      .k_norm = weights.kv_norm.data(),
                      .epsilon = kLatentEpsilon,
                      .inv_freq = weights_.inv_freq.data(),
                      .rotary_dim = config_.rotary_dim,
                      .attention_factor = weights_.rope_attention_factor,
                      .index_epsilon = kLatentEpsilon};
  }
  if (keeps_index_keys_ && weights.indexer) project_index(*weights.indexer, rows, normed, out);
  return out;
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
                                LayerAttention& out) {
  const IndexerConfig& indexer = *config_.indexer;
  if (std::ranges::any_of(rows.slices, [](const SequenceSlice& slice) { return slice.kv->keeps_metadata; })) {
    backend_.matmul(weights.k.product(normed, index_k_.data(), rows.count));
    if (rows.left_unfinished) {
      out.unfinished->index_norm = weights.k_norm.data();
      out.unfinished->index_bias = weights.k_norm_bias.data();
    } else {
      backend_.layer_norm({.in = index_k_.data(),
                           .weight = weights.k_norm.data(),
                           .bias = weights.k_norm_bias.data(),
                           .out = index_k_.data(),
                           .rows = rows.count,
                           .width = indexer.dim,
                           .epsilon = kLatentEpsilon});
      rotate(index_k_.data(), 1, indexer.dim, rows);
    }
    out.index_k = index_k_.data();
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

// The first weight.size() channels of rows that lie `stride` apart.
void LatentBlock::norm(const float* in, const Vector& weight, kernels::ActivationsOut out, std::int64_t rows,
                       std::int64_t stride) {
  backend_.rms_norm({.in = in,
                     .weight = weight.data(),
                     .out = out,
                     .rows = rows,
                     .width = weight.size(),
                     .stride = stride,
                     .epsilon = kLatentEpsilon});
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
