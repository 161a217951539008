#include "model/synthetic_prompts.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/random_fill.h"

namespace hotset::model {
namespace {

constexpr std::uint64_t kSeed = 7;

bool is_latent(const KvGeometry& geometry) { return geometry.layout == KvGeometry::Layout::kLatent; }

// Queries, keys and values side by side; of latent models the latent row alone.
std::int64_t product_width(const KvGeometry& geometry, std::int32_t heads) {
  if (is_latent(geometry)) return geometry.key_dim;
  return std::int64_t{heads} * geometry.key_dim + geometry.key_elements() + geometry.value_elements();
}

}  // namespace

SyntheticPrompts::SyntheticPrompts(const KvLayout& layout, std::int32_t heads, std::int64_t rows,
                                   kernels::DenseBackend& backend, const kernels::cuda::DeviceStream& stream)
    : layout_(layout), heads_(heads), width_(product_width(layout.rows, heads)) {
  // Index keys are the first channels of the same rows.
  const std::int64_t count = rows * std::max<std::int64_t>(width_, layout.metadata.dim);
  rows_ = backend.array<float>(count);
  kernels::cuda::launch_random_fill({.numbers = kernels::random_rows(kSeed, 1.0F, width_),
                                     .rows = count / width_,
                                     .cols = width_,
                                     .out = rows_.data()},
                                    stream.get());
  const auto widest = static_cast<std::size_t>(std::max(layout.rows.key_dim, layout.metadata.dim));
  ones_ = backend.array_of(std::span<const float>(std::vector<float>(widest, 1.0F)));
  zeros_ = backend.array_of(std::span<const float>(std::vector<float>(widest, 0.0F)));
}

LayerAttention SyntheticPrompts::layer(LayerId layer) const {
  const KvGeometry& geometry = layout_.rows;
  const bool latent = is_latent(geometry);
  float* const q = latent ? nullptr : rows_.data();
  float* const k = rows_.data() + (latent ? 0 : std::int64_t{heads_} * geometry.key_dim);
  const bool index_keys = layout_.metadata.kind == MetadataGeometry::Kind::kIndexKeys;
  LayerAttention out{.layer = layer,
                     .q = q,
                     .k = k,
                     .v = latent ? nullptr : k + geometry.key_elements(),
                     .q_stride = width_,
                     .k_stride = width_,
                     .index_k = index_keys ? rows_.data() : nullptr};
  // Angles of zero.
  out.unfinished = UnfinishedRows{.q = q,
                                  .k = k,
                                  .k_norm = latent ? ones_.data() : nullptr,
                                  .inv_freq = zeros_.data(),
                                  .rotary_dim = latent ? geometry.key_dim - geometry.value_dim : geometry.key_dim,
                                  .index_norm = ones_.data(),
                                  .index_bias = zeros_.data()};
  return out;
}

}  // namespace hotset::model
