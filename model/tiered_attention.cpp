#include "model/tiered_attention.h"

#include <algorithm>

#include "core/check.h"

namespace hotset::model {
namespace {

// Rows beyond one query's selection that a sub-batch of prompt rows may bring from the host together. Neighbouring
// queries share about three quarters of their selections.
constexpr std::int64_t kExtraStagedRows = 2048;

}  // namespace

std::int64_t SequenceSlice::dense_prompt_rows() const {
  if (!prefill) return 0;
  if (selection == nullptr || !selection->selects_prompt()) return rows;
  return std::clamp<std::int64_t>(dense_until - first_position, 0, rows);
}

bool SequenceSlice::selects(std::int64_t position) const {
  return selection != nullptr && (!prefill || (selection->selects_prompt() && position + 1 > dense_until));
}

TieredAttention::TieredAttention(const AttentionShape& shape, kernels::Backend& backend, sparse::TieredKv& kv,
                                 const sparse::SelectionAlgorithm* keeper, TileExpander* expander,
                                 std::int64_t max_prefill_rows)
    : shape_(shape),
      backend_(backend),
      kv_(kv),
      keeper_(keeper),
      expander_(expander),
      tile_geometry_(expander != nullptr ? expander->geometry() : kv.geometry()),
      acc_(static_cast<std::size_t>(max_prefill_rows * shape.heads * tile_geometry_.value_dim)),
      max_(static_cast<std::size_t>(max_prefill_rows * shape.heads)),
      sum_(static_cast<std::size_t>(max_prefill_rows * shape.heads)),
      staged_tile_(static_cast<std::size_t>(kv.geometry().page_bytes())) {
  HS_CHECK((expander != nullptr) == (kv.geometry().layout == KvGeometry::Layout::kLatent), "latent rows are expanded");
  if (expander != nullptr) expanded_tile_.resize(static_cast<std::size_t>(tile_geometry_.page_bytes()));
  if (keeper != nullptr && keeper->selects_prompt()) {
    staged_capacity_ = keeper->max_blocks() * keeper->block_tokens() + kExtraStagedRows;
    staged_rows_.resize(static_cast<std::size_t>(staged_capacity_ * kv.geometry().row_bytes()));
  }
}

void TieredAttention::run(std::uint64_t step, const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  store(layer, slices);
  append_metadata(layer, slices);
  if (!layer.shares_selection) select(layer, slices);
  if (observer_ != nullptr) tell(step, layer.layer, slices);
  std::size_t decode_slices = 0;
  while (decode_slices < slices.size() && !slices[decode_slices].prefill) ++decode_slices;
  if (decode_slices > 0) {
    decode(layer, slices.first(decode_slices));
    if (verifier_ && verifier_->due(step, layer.layer)) verify_decode(layer, slices.first(decode_slices));
  }
  for (const SequenceSlice& slice : slices.subspan(decode_slices)) prefill(layer, slice);
}

void TieredAttention::store(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  row_targets_.clear();
  for (const SequenceSlice& slice : slices) {
    kv_.row_targets(*slice.kv, layer.layer, slice.first_position, slice.rows, row_targets_);
  }
  backend_.store_rows({.geometry = kv_.geometry(),
                       .k = layer.k,
                       .k_stride = kv_.geometry().key_elements(),
                       .v = layer.v,
                       .v_stride = kv_.geometry().value_elements(),
                       .rows_out = row_targets_.data(),
                       .rows = static_cast<std::int64_t>(row_targets_.size())});
}

void TieredAttention::append_metadata(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  if (keeper_ == nullptr || kv_.layout().metadata_of_layer[static_cast<std::size_t>(layer.layer.value())] < 0) return;
  const MetadataGeometry& metadata = kv_.layout().metadata;
  const bool index_keys = metadata.kind == MetadataGeometry::Kind::kIndexKeys;
  const std::int64_t stride = std::int64_t{metadata.kv_heads} * metadata.dim;
  for (const SequenceSlice& slice : slices) {
    if (!slice.kv->keeps_metadata) continue;
    metadata_targets_.clear();
    metadata_offsets_.clear();
    kv_.metadata_targets(*slice.kv, layer.layer, slice.first_position, slice.rows, metadata_targets_,
                         metadata_offsets_);
    keeper_->append(layer.layer,
                    {.keys = (index_keys ? layer.index_k : layer.k) + slice.first_row * stride,
                     .stride = stride,
                     .pages = metadata_targets_,
                     .offsets = metadata_offsets_},
                    backend_);
  }
}

void TieredAttention::select(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  selections_.clear();
  selection_index_.clear();
  for (const SequenceSlice& slice : slices) selection_index_.insert(selection_index_.end(), slice.rows, -1);
  // A batch holds few different algorithms.
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const sparse::SelectionAlgorithm* algorithm = slices[i].selection;
    const auto same = [&](const SequenceSlice& other) { return other.selection == algorithm; };
    if (algorithm == nullptr || std::ranges::any_of(slices.first(i), same)) continue;
    select_with(*algorithm, layer, slices.subspan(i));
  }
}

void TieredAttention::select_with(const sparse::SelectionAlgorithm& algorithm, const LayerAttention& layer,
                                  std::span<const SequenceSlice> slices) {
  const bool metadata = algorithm.metadata().kind != MetadataGeometry::Kind::kNone;
  selecting_.clear();
  metadata_pages_.clear();
  first_pages_.clear();  // [selecting row]: where its page table starts
  for (const SequenceSlice& slice : slices) {
    const std::int64_t skipped = slice.dense_prompt_rows();
    if (slice.selection != &algorithm || skipped == slice.rows) continue;
    const auto table = static_cast<std::int64_t>(metadata_pages_.size());
    if (metadata) kv_.metadata_pages(*slice.kv, layer.layer, slice.first_position + slice.rows, metadata_pages_);
    for (std::int64_t row = skipped; row < slice.rows; ++row) {
      selection_index_[static_cast<std::size_t>(slice.first_row + row)] =
          selections_.size() + static_cast<std::int64_t>(selecting_.size());
      selecting_.push_back({.sequence = slice.kv->id,
                            .query_row = slice.first_row + row,
                            .length = slice.first_position + row + 1,
                            .budget = slice.budget,
                            .pages = {}});
      first_pages_.push_back(table);
    }
  }
  if (metadata) {
    for (std::size_t i = 0; i < selecting_.size(); ++i) {
      selecting_[i].pages = std::span(metadata_pages_)
                                .subspan(static_cast<std::size_t>(first_pages_[i]),
                                         static_cast<std::size_t>(pages_for_tokens(selecting_[i].length)));
    }
  }
  algorithm.select(layer.layer, selecting_,
                   {.q = layer.q,
                    .q_stride = shape_.heads * kv_.geometry().key_dim,
                    .heads = shape_.heads,
                    .scale = shape_.scale,
                    .index_q = layer.index_q,
                    .index_weights = layer.index_weights,
                    .index_heads = layer.index_heads},
                   backend_, scratch_, selections_);
}

std::span<const std::int32_t> TieredAttention::selection_of(std::int64_t row) const {
  const std::int64_t index = selection_index_[static_cast<std::size_t>(row)];
  HS_CHECK(index >= 0, "the row selects");
  return selections_.row(index);
}

void TieredAttention::tell(std::uint64_t step, LayerId layer, std::span<const SequenceSlice> slices) {
  for (const SequenceSlice& slice : slices) {
    if (slice.selection == nullptr || (slice.prefill && !slice.selection->selects_prompt())) continue;
    for (std::int64_t row = 0; row < slice.rows; ++row) {
      const bool everything = row < slice.dense_prompt_rows();
      observer_->observe(
          {.step = step,
           .sequence = slice.kv->id,
           .layer = layer,
           .position = slice.first_position + row,
           .block_tokens = slice.selection->block_tokens(),
           .prefill = slice.prefill,
           .everything = everything,
           .blocks = everything ? std::span<const std::int32_t>{} : selection_of(slice.first_row + row)});
    }
  }
}

void TieredAttention::decode(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  slots_.clear();
  slot_offsets_.assign(1, 0);
  for (const SequenceSlice& slice : slices) {
    HS_CHECK(slice.rows == 1 && slice.first_row + 1 == static_cast<std::int64_t>(slot_offsets_.size()),
             "generated tokens have one row each and come first");
    const std::int64_t length = slice.first_position + 1;
    if (slice.selection == nullptr) {
      kv_.all_slots(*slice.kv, layer.layer, length, slots_);
    } else {
      kv_.selected_slots(*slice.kv, layer.layer, selection_of(slice.first_row), slice.selection->block_tokens(), length,
                         slots_, *slice.traffic);
    }
    slot_offsets_.push_back(static_cast<std::int64_t>(slots_.size()));
  }
  attend_slots(layer, kv_.device_base(), 0);
}

void TieredAttention::verify(double rate) {
  if (rate > 0) verifier_.emplace(rate, shape_.heads, shape_.scale, backend_, kv_);
}

void TieredAttention::verify_decode(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  for (const SequenceSlice& slice : slices) {
    const bool everything = slice.selection == nullptr;
    verifier_->check(layer.layer,
                     {.kv = slice.kv,
                      .blocks = everything ? std::span<const std::int32_t>{} : selection_of(slice.first_row),
                      .everything = everything,
                      .block_tokens = everything ? 1 : slice.selection->block_tokens(),
                      .length = slice.first_position + 1,
                      .q = layer.q + slice.first_row * shape_.heads * kv_.geometry().key_dim,
                      .context = layer.context.f32() + slice.first_row * shape_.heads * kv_.geometry().value_dim});
  }
}

// Rows from `first_row` on, one per slot list.
void TieredAttention::attend_slots(const LayerAttention& layer, const std::byte* pool, std::int64_t first_row) {
  const std::int64_t q_width = std::int64_t{shape_.heads} * kv_.geometry().key_dim;
  const std::int64_t out_width = std::int64_t{shape_.heads} * kv_.geometry().value_dim;
  backend_.slot_attention({.geometry = kv_.geometry(),
                           .q = layer.q + first_row * q_width,
                           .q_stride = q_width,
                           .pool = pool,
                           .slots = slots_.data(),
                           .slot_offsets = slot_offsets_.data(),
                           .out = layer.context.f32() + first_row * out_width,
                           .out_stride = out_width,
                           .rows = static_cast<std::int64_t>(slot_offsets_.size()) - 1,
                           .heads = shape_.heads,
                           .scale = shape_.scale});
}

void TieredAttention::prefill(const LayerAttention& layer, const SequenceSlice& slice) {
  HS_CHECK(slice.kv->mode != sparse::KvMode::kHot, "a prompt is prefilled resident or from the host");
  const std::int64_t dense = slice.dense_prompt_rows();
  if (dense > 0) prefill_tiles(layer, slice, dense);
  if (dense == slice.rows) return;
  if (slice.kv->mode == sparse::KvMode::kResident) {
    prefill_selected(layer, slice, dense);
  } else {
    prefill_staged(layer, slice, dense);
  }
}

// The slice's first `rows` rows, densely.
void TieredAttention::prefill_tiles(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t rows) {
  const std::int64_t q_width = std::int64_t{shape_.heads} * tile_geometry_.key_dim;
  const std::int64_t out_width = std::int64_t{shape_.heads} * tile_geometry_.value_dim;
  const std::int64_t length = slice.first_position + rows;
  const std::int64_t tile_count = pages_for_tokens(length);
  const bool resident = slice.kv->mode == sparse::KvMode::kResident;
  kernels::PrefillAttentionParams params{
      .geometry = tile_geometry_,
      .q = (expander_ != nullptr ? layer.expanded_q : layer.q) + slice.first_row * q_width,
      .q_stride = q_width,
      .rows = rows,
      .first_position = slice.first_position,
      .state = {.acc = acc_.data(), .max = max_.data(), .sum = sum_.data()},
      .out = (expander_ != nullptr ? layer.expanded_context : layer.context).f32() + slice.first_row * out_width,
      .heads = shape_.heads,
      .scale = shape_.scale};
  if (resident && expander_ == nullptr) {
    tiles_.clear();
    for (std::int64_t tile = 0; tile < tile_count; ++tile) {
      tiles_.push_back(kv_.resident_tile(*slice.kv, layer.layer, tile));
    }
    params.tiles = tiles_.data();
    params.tile_count = tile_count;
    params.begin = params.finish = true;
    backend_.prefill_attention(params);
    return;
  }
  for (std::int64_t tile = 0; tile < tile_count; ++tile) {
    const std::byte* rows_of_tile = resident ? kv_.resident_tile(*slice.kv, layer.layer, tile) : staged_tile_.data();
    if (!resident) kv_.stage_tile(*slice.kv, layer.layer, tile, length, staged_tile_.data(), *slice.traffic);
    if (expander_ != nullptr) {
      expander_->expand(layer.layer, rows_of_tile, std::min(kPageTokens, length - tile * kPageTokens),
                        expanded_tile_.data());
      rows_of_tile = expanded_tile_.data();
    }
    params.tiles = &rows_of_tile;
    params.first_tile = tile;
    params.tile_count = 1;
    params.begin = tile == 0;
    params.finish = tile + 1 == tile_count;
    backend_.prefill_attention(params);
  }
}

// Rows of a resident prompt from `first` on, over their selections.
void TieredAttention::prefill_selected(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t first) {
  slots_.clear();
  slot_offsets_.assign(1, 0);
  for (std::int64_t row = first; row < slice.rows; ++row) {
    kv_.resident_slots(*slice.kv, layer.layer, selection_of(slice.first_row + row), slice.selection->block_tokens(),
                       slice.first_position + row + 1, slots_);
    slot_offsets_.push_back(static_cast<std::int64_t>(slots_.size()));
  }
  attend_slots(layer, kv_.device_base(), slice.first_row + first);
}

// The same for a prompt that lies on the host: sub-batches of rows whose selected rows fit the staging area together.
void TieredAttention::prefill_staged(const LayerAttention& layer, const SequenceSlice& slice, std::int64_t first) {
  const std::int32_t block_tokens = slice.selection->block_tokens();
  const std::int64_t length = slice.first_position + slice.rows;
  std::int64_t begin = first;
  while (begin < slice.rows) {
    slots_.clear();
    slot_offsets_.assign(1, 0);
    staged_positions_.clear();
    staged_index_.assign(static_cast<std::size_t>(length), -1);
    std::int64_t row = begin;
    for (; row < slice.rows; ++row) {
      const auto blocks = selection_of(slice.first_row + row);
      const std::int64_t most = static_cast<std::int64_t>(blocks.size()) * block_tokens;
      if (row > begin && static_cast<std::int64_t>(staged_positions_.size()) + most > staged_capacity_) break;
      for (const std::int32_t block : blocks) {
        const std::int64_t start = std::int64_t{block} * block_tokens;
        const std::int64_t end = std::min(start + block_tokens, slice.first_position + row + 1);
        for (std::int64_t position = start; position < end; ++position) {
          std::int32_t& index = staged_index_[static_cast<std::size_t>(position)];
          if (index < 0) {
            index = static_cast<std::int32_t>(staged_positions_.size());
            staged_positions_.push_back(position);
          }
          slots_.push_back(index);
        }
      }
      slot_offsets_.push_back(static_cast<std::int64_t>(slots_.size()));
    }
    kv_.stage_rows(*slice.kv, layer.layer, staged_positions_, staged_rows_.data(), *slice.traffic);
    attend_slots(layer, staged_rows_.data(), slice.first_row + begin);
    begin = row;
  }
}

}  // namespace hotset::model
