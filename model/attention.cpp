#include "model/attention.h"

#include <cmath>

#include "core/check.h"

namespace hotset::model {

TieredAttention::TieredAttention(const AttentionShape& shape, kernels::Backend& backend, sparse::TieredKv& kv,
                                 std::int64_t max_prefill_rows)
    : shape_(shape),
      scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))),
      backend_(backend),
      kv_(kv),
      acc_(static_cast<std::size_t>(max_prefill_rows * shape.heads * shape.head_dim)),
      max_(static_cast<std::size_t>(max_prefill_rows * shape.heads)),
      sum_(static_cast<std::size_t>(max_prefill_rows * shape.heads)),
      staged_tile_(static_cast<std::size_t>(kv.geometry().page_bytes())) {}

void TieredAttention::run(const LayerAttention& layer, std::span<const SequenceSlice> slices,
                          sparse::TierTraffic& traffic) {
  store(layer, slices);
  std::size_t decode_slices = 0;
  while (decode_slices < slices.size() && !slices[decode_slices].prefill) ++decode_slices;
  if (decode_slices > 0) decode(layer, slices.first(decode_slices), traffic);
  for (const SequenceSlice& slice : slices.subspan(decode_slices)) prefill(layer, slice, traffic);
}

void TieredAttention::store(const LayerAttention& layer, std::span<const SequenceSlice> slices) {
  row_targets_.clear();
  for (const SequenceSlice& slice : slices) {
    kv_.row_targets(*slice.kv, layer.layer, slice.first_position, slice.rows, row_targets_);
  }
  backend_.store_rows({.geometry = kv_.geometry(),
                       .k = layer.k,
                       .v = layer.v,
                       .stride = kv_.geometry().half_row_elements(),
                       .rows_out = row_targets_.data(),
                       .rows = static_cast<std::int64_t>(row_targets_.size())});
}

void TieredAttention::decode(const LayerAttention& layer, std::span<const SequenceSlice> slices,
                             sparse::TierTraffic& traffic) {
  const std::int64_t width = std::int64_t{shape_.heads} * shape_.head_dim;
  slots_.clear();
  slot_offsets_.assign(1, 0);
  for (const SequenceSlice& slice : slices) {
    HS_CHECK(slice.rows == 1 && slice.first_row + 1 == static_cast<std::int64_t>(slot_offsets_.size()),
             "decode slices have one row each and come first");
    const std::int64_t length = slice.first_position + 1;
    if (slice.selection == nullptr) {
      kv_.all_slots(*slice.kv, layer.layer, length, slots_);
    } else {
      const sparse::SelectionContext context{
          .sequence = slice.kv->id, .layer = layer.layer, .length = length, .query = layer.q + slice.first_row * width};
      slice.selection->select(context, blocks_);
      kv_.selected_slots(*slice.kv, layer.layer, blocks_, slice.selection->block_tokens(), length, slots_, traffic);
    }
    slot_offsets_.push_back(static_cast<std::int64_t>(slots_.size()));
  }
  backend_.slot_attention({.geometry = kv_.geometry(),
                           .q = layer.q,
                           .q_stride = width,
                           .pool = kv_.device_base(),
                           .slots = slots_.data(),
                           .slot_offsets = slot_offsets_.data(),
                           .out = layer.context,
                           .rows = static_cast<std::int64_t>(slices.size()),
                           .heads = shape_.heads,
                           .scale = scale_});
}

void TieredAttention::prefill(const LayerAttention& layer, const SequenceSlice& slice, sparse::TierTraffic& traffic) {
  HS_CHECK(slice.kv->mode != sparse::KvMode::kHot, "a prompt is prefilled resident or from the host");
  const std::int64_t width = std::int64_t{shape_.heads} * shape_.head_dim;
  const std::int64_t length = slice.first_position + slice.rows;
  kernels::PrefillAttentionParams params{.geometry = kv_.geometry(),
                                         .q = layer.q + slice.first_row * width,
                                         .q_stride = width,
                                         .rows = slice.rows,
                                         .first_position = slice.first_position,
                                         .state = {.acc = acc_.data(), .max = max_.data(), .sum = sum_.data()},
                                         .out = layer.context + slice.first_row * width,
                                         .heads = shape_.heads,
                                         .scale = scale_};
  const std::int64_t tile_count = pages_for_tokens(length);
  if (slice.kv->mode == sparse::KvMode::kResident) {
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
  const std::byte* const staged = staged_tile_.data();
  params.tiles = &staged;
  params.tile_count = 1;
  for (std::int64_t tile = 0; tile < tile_count; ++tile) {
    kv_.stage_tile(*slice.kv, layer.layer, tile, length, staged_tile_.data(), traffic);
    params.first_tile = tile;
    params.begin = tile == 0;
    params.finish = tile + 1 == tile_count;
    backend_.prefill_attention(params);
  }
}

}  // namespace hotset::model
