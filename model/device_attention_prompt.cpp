// A layer's attention for a chunk of a prompt: its rows are kept, then attend to everything before them or each to its
// selection.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/load_keys.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/selection/top_k.h"
#include "kernels/cuda/slot_lists.h"
#include "model/device_attention.h"
#include "model/device_attention_rows.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

static_assert(kPieceTokens % (cuda::kPrefillPieceTiles * kPageTokens) == 0);

}  // namespace

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
