#include "model/device_attention.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "kernels/cuda/selection/block_scores.h"
#include "kernels/cuda/selection/index_scores.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/sparse_attention.h"
#include "model/device_attention_rows.h"

namespace hotset::model {

namespace cuda = kernels::cuda;

DeviceAttention::DeviceAttention(const AttentionShape& shape, const ModelWeights& weights,
                                 kernels::DenseBackend& backend, const cuda::DeviceStream& stream,
                                 const cuda::DeviceInfo& device, sparse::DeviceKv& kv,
                                 const sparse::SelectionAlgorithm* keeper, const Limits& limits)
    : shape_(shape),
      weights_(weights),
      backend_(backend),
      stream_(stream),
      device_(device),
      form_(cuda::sparse_attention_form(kv.geometry(), shape.heads, device.capability_major)),
      kv_(kv),
      keeper_(keeper),
      limits_(limits),
      pieces_(kv, stream, kPieceTokens) {
  const sparse::DeviceTables& tables = kv.tables();
  const std::int64_t listed = std::max<std::int64_t>(kSelectedRows, tables.max_batch);
  list_counts_ = backend.array<std::int32_t>(listed);
  arrivals_ = backend.array<std::int32_t>(listed * shape.heads);
  slot_of_ = backend.array<std::int32_t>(tables.max_batch * tables.max_selected);
  misses_ = backend.array<cuda::SparseMiss>(tables.max_batch * tables.max_selected);
  diff_counts_ = backend.array<cuda::SparseDiffCounts>(tables.max_batch);
  swap_totals_ = backend.array<cuda::SwapTotals>(tables.max_batch);
  std::vector<std::int32_t> pages(static_cast<std::size_t>(pages_for_tokens(limits.max_tokens) + 2));
  std::iota(pages.begin() + 1, pages.end(), 0);
  own_pages_ = backend.array_of(std::span<const std::int32_t>(pages));
  // A chunk of a parked sequence lies in a ring as long as itself, or in a buffer of the whole layer.
  cuda::HotRow streamed{.device_pages = own_pages_.data() + 1};
  if (!streams_whole_layers()) {
    streamed.device_pages = own_pages_.data();
    streamed.hot_blocks = 1;  // one page of a buffer before the ring: the first entry
    streamed.ring_tokens = static_cast<std::int32_t>(round_up(limits.max_prompt_rows, kPageTokens));
  }
  streamed_row_ = backend.array_of(std::span<const cuda::HotRow>(&streamed, 1));
  if (keeper == nullptr || keeper->basis() == nullptr) return;
  for (std::int32_t layer = 0; layer < tables.layers; ++layer)
    basis_.push_back(backend.array_of(keeper->basis()->of(layer)));
}

void DeviceAttention::begin_decode(const DecodeBatch& batch, const DecodeShape& shape) {
  batch_ = &batch;
  decode_ = shape;
  slice_ = nullptr;
}

void DeviceAttention::begin_prompt(const SequenceSlice& slice, const std::int64_t* positions,
                                   const std::int64_t* metadata_positions) {
  slice_ = &slice;
  positions_ = positions;
  metadata_positions_ = metadata_positions;
  batch_ = nullptr;
  if (streamed()) pieces_.begin(slice);
}

void DeviceAttention::run(std::uint64_t step, const LayerAttention& layer, std::span<const SequenceSlice> /*slices*/) {
  if (batch_ != nullptr) {
    decode(layer);
  } else {
    prompt(step, layer);
  }
}

void DeviceAttention::store(const LayerAttention& layer, const Targets& targets) {
  const UnfinishedRows& rows = *layer.unfinished;
  const KvGeometry& geometry = kv_.geometry();
  const cuda::NewRowRotation rotation{rows.inv_freq, rows.rotary_dim, rows.attention_factor};
  const bool index_keys = kv_.layout().metadata.kind == MetadataGeometry::Kind::kIndexKeys;
  cuda::NewRowMetadata metadata;
  if (keeper_ != nullptr && targets.metadata.pages != nullptr && (!index_keys || layer.index_k != nullptr)) {
    metadata = {.geometry = kv_.layout().metadata,
                .target = targets.metadata,
                .basis = basis_.empty() ? nullptr : basis_[static_cast<std::size_t>(layer.layer.value())].data()};
  }
  const std::int64_t k_stride = stride_or(layer.k_stride, geometry.key_elements());
  if (geometry.layout == KvGeometry::Layout::kLatent) {
    cuda::LatentRowsParams params{.geometry = geometry,
                                  .targets = targets.rows,
                                  .rotation = rotation,
                                  .in = rows.k,
                                  .in_stride = k_stride,
                                  .norm = rows.k_norm,
                                  .epsilon = rows.epsilon,
                                  .out = index_keys ? nullptr : rows.k,
                                  .out_stride = k_stride,
                                  .metadata = metadata,
                                  .rows = targets.count,
                                  .follows_product = true};
    if (metadata.geometry.kind == MetadataGeometry::Kind::kIndexKeys) {
      params.index_keys = {.in = layer.index_k,
                           .in_stride = stride_or(layer.k_stride, metadata.geometry.dim),
                           .norm = rows.index_norm,
                           .bias = rows.index_bias,
                           .epsilon = rows.index_epsilon,
                           .rotation = rotation};
    }
    cuda::launch_latent_rows(params, stream_.get());
    return;
  }
  const std::int64_t q_stride = stride_or(layer.q_stride, std::int64_t{shape_.heads} * geometry.key_dim);
  cuda::launch_grouped_rows({.geometry = geometry,
                             .targets = targets.rows,
                             .rotation = rotation,
                             .q = rows.q,
                             .q_stride = q_stride,
                             .k = rows.k,
                             .k_stride = k_stride,
                             .v = layer.v,
                             .v_stride = stride_or(layer.k_stride, geometry.value_elements()),
                             .q_norm = rows.q_norm,
                             .k_norm = rows.k_norm,
                             .epsilon = rows.epsilon,
                             .q_out = rows.q,
                             .q_out_stride = q_stride,
                             .k_out = rows.k,
                             .k_out_stride = k_stride,
                             .metadata = metadata,
                             .rows = targets.count,
                             .heads = shape_.heads,
                             .follows_product = true},
                            stream_.get());
}

// [rows, max_length], by block.
float* DeviceAttention::score(const LayerAttention& layer, const Scoring& scoring) {
  const MetadataGeometry& geometry = keeper_->metadata();
  auto* const scores = static_cast<float*>(scores_.reserve(scoring.rows * scoring.max_length * 4));
  const cuda::ScoredPages rows{.geometry = geometry,
                               .pool = scoring.pool,
                               .pages = scoring.pages,
                               .page_stride = scoring.page_stride,
                               .query_rows = scoring.query_rows,
                               .lengths = scoring.lengths,
                               .rows = scoring.rows,
                               .max_length = scoring.max_length,
                               .scores = scores,
                               .stride = scoring.max_length};
  const std::int64_t q_stride = stride_or(layer.q_stride, std::int64_t{shape_.heads} * kv_.geometry().key_dim);
  const bool exact = backend_.activation_type() == kernels::ElementType::kF32;  // float32 throughout, as on the CPU
  switch (geometry.kind) {
    case MetadataGeometry::Kind::kIndexKeys:
      HS_CHECK(layer.index_q != nullptr && layer.index_weights != nullptr, "DSA needs the indexer's queries");
      cuda::launch_index_scores({.rows = rows,
                                 .q = layer.index_q + scoring.first_row * layer.index_heads * geometry.dim,
                                 .q_stride = std::int64_t{layer.index_heads} * geometry.dim,
                                 .weights = layer.index_weights + scoring.first_row * layer.index_heads,
                                 .heads = layer.index_heads,
                                 .spared_multiprocessors = scoring.spared,
                                 .plain = exact},
                                stream_.get());
      break;
    case MetadataGeometry::Kind::kLowRankKeys: {
      const auto bytes = cuda::low_rank_workspace_bytes(scoring.rows, scoring.max_length, shape_.heads, geometry.rank);
      cuda::launch_low_rank_scores({.rows = rows,
                                    .q = layer.q + scoring.first_row * q_stride,
                                    .q_stride = q_stride,
                                    .basis = basis_[static_cast<std::size_t>(layer.layer.value())].data(),
                                    .heads = shape_.heads,
                                    .scale = shape_.scale,
                                    .workspace = score_workspace_.reserve(static_cast<std::int64_t>(bytes)),
                                    .spared_multiprocessors = scoring.spared,
                                    .plain = exact},
                                   stream_.get());
      break;
    }
    case MetadataGeometry::Kind::kBlockBounds: {
      const auto bytes =
          cuda::block_workspace_bytes(scoring.rows, scoring.max_length, geometry.block_tokens, shape_.heads);
      cuda::launch_block_scores({.rows = rows,
                                 .q = layer.q + scoring.first_row * q_stride,
                                 .q_stride = q_stride,
                                 .first = scoring.first,
                                 .last = scoring.last,
                                 .heads = shape_.heads,
                                 .combine = keeper_->combine(),
                                 .scale = shape_.scale,
                                 .workspace = score_workspace_.reserve(static_cast<std::int64_t>(bytes))},
                                stream_.get());
      break;
    }
    case MetadataGeometry::Kind::kNone: HS_CHECK(false, "what keeps nothing is not scored");
  }
  return scores;
}

void DeviceAttention::attend(const LayerAttention& layer, const Attended& attended) {
  const auto& [rows, max_count, pool, first_list, whole] = attended;
  const KvGeometry& geometry = kv_.geometry();
  const std::int64_t q_stride = stride_or(layer.q_stride, std::int64_t{shape_.heads} * geometry.key_dim);
  const std::int64_t out_width = std::int64_t{shape_.heads} * geometry.value_dim;
  const kernels::ActivationsOut out = layer.context.from(rows.first * out_width);
  const std::int64_t bytes =
      cuda::sparse_attention_workspace_bytes(geometry, shape_.heads, rows.count, max_count, form_);
  cuda::launch_sparse_attention({.geometry = geometry,
                                 .q_type = cuda::ActivationType::kF32,
                                 .out_type = type_of(out.type()),
                                 .q = layer.q + rows.first * q_stride,
                                 .q_stride = q_stride,
                                 .pool = pool,
                                 .slot_type = cuda::SlotType::kInt32,
                                 .slots = static_cast<std::int32_t*>(lists_.reserve(0)) + first_list * max_count,
                                 .slot_stride = max_count,
                                 .counts = list_counts_.data() + first_list,
                                 .max_count = max_count,
                                 .whole = whole ? kv_.tables().hot_rows_of(layer.layer) + rows.first : nullptr,
                                 .lengths = whole ? batch_->lengths() + rows.first : nullptr,
                                 .out = out.data(),
                                 .out_stride = out_width,
                                 .rows = rows.count,
                                 .heads = shape_.heads,
                                 .scale = shape_.scale,
                                 .workspace = attention_workspace_.reserve(bytes),
                                 .arrivals = arrivals_.data()},
                                stream_.get());
}

}  // namespace hotset::model
