#include "model/latent_expander.h"

namespace hotset::model {

LatentExpander::LatentExpander(const ModelWeights& weights, kernels::Backend& backend, const KvGeometry& cache)
    : weights_(weights), backend_(backend), cache_(cache) {
  const LatentConfig& latent = *weights.config.latent;
  const std::int32_t heads = weights.config.heads;
  geometry_ = {.layers = weights.config.layers,
               .kv_heads = heads,
               .key_dim = latent.nope_dim + latent.rope_dim,
               .value_dim = latent.value_dim,
               .dtype = KvDType::kF32};
  keys_.resize(static_cast<std::size_t>(kPageTokens * cache.key_dim));
  nope_.resize(static_cast<std::size_t>(kPageTokens * heads * latent.nope_dim));
}

void LatentExpander::expand(LayerId layer, const std::byte* tile, std::int64_t rows, std::byte* out) {
  const auto& weights =
      std::get<LatentAttentionWeights>(weights_.layers[static_cast<std::size_t>(layer.value())].attention);
  const LatentConfig& latent = *weights_.config.latent;
  const std::int64_t row_floats = geometry_.key_elements() + geometry_.value_elements();
  auto* const rows_out = reinterpret_cast<float*>(out);
  backend_.load_keys({.geometry = cache_, .source = tile, .rows = rows, .out = keys_.data()});
  backend_.matmul({.x = keys_.data(),
                   .x_stride = cache_.key_dim,
                   .weight = weights.expand_v.get(),
                   .y = rows_out + geometry_.key_elements(),
                   .y_stride = row_floats,
                   .m = rows});
  backend_.matmul(
      {.x = keys_.data(), .x_stride = cache_.key_dim, .weight = weights.expand_k.get(), .y = nope_.data(), .m = rows});
  // Each head's key: its own nope part, then the rope part that all heads share.
  const auto copy_parts = [&](std::int64_t offset, std::int64_t width, const auto& source) {
    sources_.clear();
    targets_.clear();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < geometry_.kv_heads; ++head) {
        sources_.push_back(reinterpret_cast<const std::byte*>(source(row, head)));
        targets_.push_back(
            reinterpret_cast<std::byte*>(rows_out + row * row_floats + head * geometry_.key_dim + offset));
      }
    }
    backend_.copy({.sources = sources_.data(),
                   .targets = targets_.data(),
                   .count = static_cast<std::int64_t>(sources_.size()),
                   .bytes = width * static_cast<std::int64_t>(sizeof(float))});
  };
  copy_parts(0, latent.nope_dim, [&](std::int64_t row, std::int64_t head) {
    return nope_.data() + (row * geometry_.kv_heads + head) * latent.nope_dim;
  });
  copy_parts(latent.nope_dim, latent.rope_dim,
             [&](std::int64_t row, std::int64_t) { return keys_.data() + row * cache_.key_dim + cache_.value_dim; });
}

}  // namespace hotset::model
