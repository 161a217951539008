#include "model/device_attention.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/load_keys.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/selection/block_scores.h"
#include "kernels/cuda/selection/index_scores.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/selection/top_k.h"
#include "kernels/cuda/slot_lists.h"
#include "kernels/cuda/sparse_attention.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kPieceTokens = 4096;  // of earlier rows brought or expanded at once; whole prefill tiles
constexpr std::int64_t kSelectedRows = 256;  // of a prompt that select together
static_assert(kPieceTokens % (cuda::kPrefillPieceTiles * kPageTokens) == 0);

cuda::ActivationType type_of(kernels::ElementType type) {
  return type == kernels::ElementType::kF32 ? cuda::ActivationType::kF32 : cuda::ActivationType::kBF16;
}

// Of rows that are `width` wide.
std::int64_t stride_or(std::int64_t stride, std::int64_t width) { return stride == 0 ? width : stride; }

}  // namespace

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

void DeviceAttention::prompt(std::uint64_t step, const LayerAttention& layer) {
  keep_prompt(layer);
  if (!layer.shares_selection) selected_layer_ = layer.layer;
  const std::int64_t dense = slice_->dense_prompt_rows();
  if (dense > 0) prompt_dense(layer, dense);
  if (dense < slice_->rows) prompt_selected(layer, dense);
  if (report_ == nullptr) return;
  report_->tell(step, layer.layer, *slice_, static_cast<const std::int32_t*>(prompt_selection_.reserve(0)),
                static_cast<const std::int32_t*>(prompt_counts_.reserve(0)));
}

void DeviceAttention::keep_prompt(const LayerAttention& layer) {
  const sparse::DeviceTables& tables = kv_.tables();
  const std::int32_t metadata = metadata_layer(layer.layer);
  const std::int64_t first = slice_->first_position;
  const std::int64_t end = first + slice_->rows;
  if (!streamed()) {
    store(layer, {.rows = {.tables = tables.hot_rows_of(layer.layer) + tables.max_batch,
                           .table_stride = 0,
                           .positions = positions_,
                           .pool = kv_.row_pool()},
                  .metadata = {.pool = kv_.metadata_pool(),
                               .pages = metadata < 0 ? nullptr : tables.metadata_of(tables.max_batch, metadata),
                               .positions = metadata_positions_},
                  .count = slice_->rows});
  } else {
    const bool whole = streams_whole_layers();
    const std::int64_t buffer = round_up(whole ? limits_.max_tokens : limits_.max_prompt_rows, kPageTokens);
    auto* const rows = static_cast<std::byte*>(chunk_rows_.reserve(buffer * kv_.geometry().row_bytes()));
    const bool keeps = slice_->kv->keeps_metadata && metadata >= 0;
    auto* const kept = keeps ? static_cast<std::byte*>(metadata_rows_.reserve(pages_for_tokens(limits_.max_tokens) *
                                                                              kv_.layout().metadata.page_bytes()))
                             : nullptr;
    using Direction = sparse::DeviceKv::Direction;
    if (whole)
      kv_.move_parked_rows(*slice_->kv, layer.layer, 0, first, rows, buffer, Direction::kToDevice, *slice_->traffic,
                           stream_);
    // The pages that the chunk's rows lie in, and what is before them where it is scored.
    const std::int64_t known = whole ? 0 : first / kPageTokens * kPageTokens;
    if (keeps)
      kv_.move_parked_metadata(*slice_->kv, metadata, known, first, kept, Direction::kToDevice, *slice_->traffic);
    store(
        layer,
        {.rows = {.tables = streamed_row_.data(), .table_stride = 0, .positions = positions_, .pool = rows},
         .metadata = {.pool = kept, .pages = keeps ? own_pages_.data() + 1 : nullptr, .positions = metadata_positions_},
         .count = slice_->rows});
    kv_.move_parked_rows(*slice_->kv, layer.layer, first, end, rows, buffer, Direction::kToHost, *slice_->traffic,
                         stream_);
    if (keeps) kv_.move_parked_metadata(*slice_->kv, metadata, first, end, kept, Direction::kToHost, *slice_->traffic);
  }
}

// Of rows [first, first + kPieceTokens), where the last one is end - 1.
DeviceAttention::Piece DeviceAttention::piece(const LayerAttention& layer, std::int64_t first, std::int64_t end) {
  const sparse::DeviceTables& tables = kv_.tables();
  if (!streamed())
    return {.pool = kv_.row_pool(), .pages = tables.rows_of(tables.max_batch, layer.layer) + first / kPageTokens};
  if (streams_whole_layers()) {
    auto* const rows = static_cast<std::byte*>(chunk_rows_.reserve(0));
    return {.pool = rows + first * kv_.geometry().row_bytes(), .pages = own_pages_.data() + 1};
  }
  return {.pool = pieces_.take(layer.layer, first, end), .pages = own_pages_.data() + 1};
}

// The slice's first `rows` rows, over everything before them.
void DeviceAttention::prompt_dense(const LayerAttention& layer, std::int64_t rows) {
  const bool latent = weights_.config.latent.has_value();
  KvGeometry geometry = kv_.geometry();
  if (latent) {
    const LatentConfig& config = *weights_.config.latent;
    geometry = {.layers = geometry.layers,
                .kv_heads = shape_.heads,
                .key_dim = config.nope_dim + config.rope_dim,
                .value_dim = config.value_dim,
                .dtype = backend_.activation_type() == kernels::ElementType::kF32 ? KvDType::kF32 : KvDType::kBF16};
  }
  const kernels::ActivationsOut out = latent ? layer.expanded_context : layer.context;
  const std::int64_t q_width = std::int64_t{shape_.heads} * geometry.key_dim;
  const std::int64_t end = slice_->first_position + rows;
  const std::int64_t workspace = cuda::prefill_attention_workspace_bytes(geometry, shape_.heads, rows);
  const std::int64_t step = !latent && !streamed() ? end : kPieceTokens;
  cuda::PrefillAttentionDeviceParams params{.geometry = geometry,
                                            .q = latent ? layer.expanded_q : layer.q,
                                            .q_stride = latent ? q_width : stride_or(layer.q_stride, q_width),
                                            .rows = rows,
                                            .first_position = slice_->first_position,
                                            .out = out.data(),
                                            .out_stride = std::int64_t{shape_.heads} * geometry.value_dim,
                                            .heads = shape_.heads,
                                            .scale = shape_.scale,
                                            .workspace = prefill_workspace_.reserve(workspace)};
  params.activation = type_of(out.type());
  if (out.type() != kernels::ElementType::kF32) {  // queries are rounded to the type of the result either way
    void* const q = converted_.reserve(rows * q_width * element_bytes(out.type()));
    cuda::launch_convert_rows({.in = params.q,
                               .in_stride = params.q_stride,
                               .out = q,
                               .out_type = params.activation,
                               .rows = rows,
                               .width = q_width},
                              stream_.get());
    params.q = q;
    params.q_stride = q_width;
  }
  cuda::ExpandedKeysValues expanded;
  for (std::int64_t first = 0; first < end; first += step) {
    const std::int64_t piece_end = std::min(end, first + step);
    const Piece rows_of_piece = piece(layer, first, end);
    if (latent) {
      expand(layer.layer, rows_of_piece, piece_end - first);
      const LatentConfig& config = *weights_.config.latent;
      const std::int64_t element = element_bytes(backend_.activation_type());
      expanded = {.keys = expanded_keys_.reserve(0),
                  .key_row_stride = std::int64_t{shape_.heads} * config.nope_dim,
                  .key_head_stride = config.nope_dim,
                  .shared_keys = static_cast<std::byte*>(latents_.reserve(0)) + config.kv_rank * element,
                  .shared_row_stride = kv_.geometry().key_dim,
                  .shared_dim = config.rope_dim,
                  .values = expanded_values_.reserve(0),
                  .value_row_stride = std::int64_t{shape_.heads} * config.value_dim,
                  .value_head_stride = config.value_dim};
      params.expanded = &expanded;
    } else {
      params.pool = rows_of_piece.pool;
      params.pages = rows_of_piece.pages;
    }
    params.first_tile = first / kPageTokens;
    params.tile_count = pages_for_tokens(piece_end - first);
    params.begin = first == 0;
    params.finish = piece_end == end;
    cuda::launch_prefill_attention(params, stream_.get());
  }
}

// K and V of every head of the piece's `rows` rows. The products always have kPieceTokens rows, so that a row's numbers
// do not depend on how many there are.
void DeviceAttention::expand(LayerId layer, const Piece& piece, std::int64_t rows) {
  const auto& weights =
      std::get<LatentAttentionWeights>(weights_.layers[static_cast<std::size_t>(layer.value())].attention);
  const kernels::ElementType type = backend_.activation_type();
  const std::int64_t element = element_bytes(type);
  const std::int64_t key_dim = kv_.geometry().key_dim;
  void* const latents = latents_.reserve(kPieceTokens * key_dim * element);
  cuda::launch_load_keys({.geometry = kv_.geometry(),
                          .pool = piece.pool,
                          .pages = piece.pages,
                          .last = rows,
                          .out = latents,
                          .out_type = type_of(type)},
                         stream_.get());
  const auto product = [&](const Matrix& weight, cuda::GrowingMemory& out) {
    backend_.matmul({.x = {latents, type},
                     .x_stride = key_dim,
                     .weight = weight.get(),
                     .y = {out.reserve(kPieceTokens * weight->rows() * element), type},
                     .m = kPieceTokens});
  };
  product(weights.expand_k, expanded_keys_);
  product(weights.expand_v, expanded_values_);
}

// The slice's rows from `first` on, each over its selection.
void DeviceAttention::prompt_selected(const LayerAttention& layer, std::int64_t first) {
  const std::int64_t most = slice_->budget * slice_->selection->block_tokens();
  HS_CHECK(slice_->budget <= kv_.tables().max_selected, "the selection fits");
  if (!layer.shares_selection) select_prompt_rows(layer, first, slice_->rows - first);
  const bool whole = streamed();
  const std::byte* const pool = whole ? static_cast<const std::byte*>(chunk_rows_.reserve(0)) : kv_.row_pool();
  const sparse::DeviceTables& tables = kv_.tables();
  const auto* const selected = static_cast<const std::int32_t*>(prompt_selection_.reserve(0));
  const auto* const counts = static_cast<const std::int32_t*>(prompt_counts_.reserve(0));
  const auto* const numbers = static_cast<const std::int64_t*>(prompt_numbers_.reserve(0));
  const auto* const lengths32 = reinterpret_cast<const std::int32_t*>(numbers + 4 * limits_.max_prompt_rows);
  for (std::int64_t begin = first; begin < slice_->rows; begin += kSelectedRows) {
    const std::int64_t rows = std::min(kSelectedRows, slice_->rows - begin);
    const std::int64_t at = begin - first;
    cuda::launch_slot_lists({.rows = whole ? streamed_row_.data() : tables.hot_rows_of(layer.layer) + tables.max_batch,
                             .row_stride = 0,
                             .lengths = lengths32 + at,
                             .blocks = selected + at * slice_->budget,
                             .block_counts = counts + at,
                             .slots = static_cast<std::int32_t*>(lists_.reserve(rows * most * 4)),
                             .counts = list_counts_.data(),
                             .slot_stride = most,
                             .max_count = most,
                             .max_selected = static_cast<std::int32_t>(slice_->budget),
                             .block_tokens = slice_->selection->block_tokens(),
                             .batch = static_cast<std::int32_t>(rows)},
                            stream_.get());
    attend(layer, {.rows = {.first = begin, .count = rows}, .max_count = most, .pool = pool});
  }
}

// Selections of rows [first, first + count) of the slice; they stay for the layers that share them.
void DeviceAttention::select_prompt_rows(const LayerAttention& layer, std::int64_t first, std::int64_t count) {
  const sparse::DeviceTables& tables = kv_.tables();
  const std::int64_t most = limits_.max_prompt_rows;
  auto* const numbers = static_cast<std::int64_t*>(prompt_numbers_.reserve(most * (4 * 8 + 2 * 4)));
  auto* const selected = static_cast<std::int32_t*>(prompt_selection_.reserve(most * slice_->budget * 4));
  auto* const counts = static_cast<std::int32_t*>(prompt_counts_.reserve(most * 4));
  const std::span<std::int64_t> host = kv_.block().take<std::int64_t>(most * 5);
  auto* const host32 = reinterpret_cast<std::int32_t*>(host.data() + 4 * most);
  const sparse::SelectionAlgorithm& algorithm = *slice_->selection;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t length = slice_->first_position + first + i + 1;
    const auto open = algorithm.candidates(length);
    host[at] = first + i;
    host[static_cast<std::size_t>(most) + at] = length;
    host[static_cast<std::size_t>(2 * most) + at] = open.first;
    host[static_cast<std::size_t>(3 * most) + at] = open.last;
    host32[i] = static_cast<std::int32_t>(length);
    host32[most + i] = static_cast<std::int32_t>(slice_->budget);
  }
  stream_.copy(host.data(), numbers, most * 5 * 8);
  HS_CHECK(algorithm.block_tokens() == 1, "what selects for prompts selects single tokens");
  const std::int32_t metadata = metadata_layer(layer.layer);
  const bool whole = streamed();
  const std::int64_t max_length = slice_->first_position + first + count;
  for (std::int64_t begin = 0; begin < count; begin += kSelectedRows) {
    const std::int64_t rows = std::min(kSelectedRows, count - begin);
    const float* const scores =
        score(layer, {.query_rows = numbers + begin,
                      .lengths = numbers + most + begin,
                      .first = numbers + 2 * most + begin,
                      .last = numbers + 3 * most + begin,
                      .pool = whole ? static_cast<std::byte*>(metadata_rows_.reserve(0)) : kv_.metadata_pool(),
                      .pages = whole ? own_pages_.data() + 1 : tables.metadata_of(tables.max_batch, metadata),
                      .rows = rows,
                      .max_length = max_length});
    cuda::launch_top_k({.scores = scores,
                        .stride = max_length,
                        .lengths = numbers + most + begin,
                        .first = numbers + 2 * most + begin,
                        .last = numbers + 3 * most + begin,
                        .k = reinterpret_cast<const std::int32_t*>(numbers + 4 * most) + most + begin,
                        .rows = rows,
                        .max_length = max_length,
                        .out = selected + begin * slice_->budget,
                        .out_stride = slice_->budget,
                        .counts = counts + begin},
                       stream_.get());
  }
}

}  // namespace hotset::model
