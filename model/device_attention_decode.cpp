// A layer's attention in a decode step: selection, swap-in and attention of the batch's rows.
#include <iterator>

#include "kernels/cuda/page_io.h"
#include "kernels/cuda/selection/top_k.h"
#include "kernels/cuda/slot_lists.h"
#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/swap_in.h"
#include "model/device_attention.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

// Buckets of so many rows go in groups that load while others select and attend. Fewer lose: 16 in three groups took
// 10.9 ms, in one 9.4 (docs/results, throughput).
constexpr std::int64_t kLeastRowsInGroups = 32;
constexpr std::int32_t kLoadBlocks = 16;  // of page I/O beside other work, which leaves it as many multiprocessors

}  // namespace

void DeviceAttention::decode(const LayerAttention& layer) {
  const sparse::DeviceTables& tables = kv_.tables();
  const cuda::HotRow* const rows = tables.hot_rows_of(layer.layer);
  const std::int32_t metadata = metadata_layer(layer.layer);
  using Part = DecodeProbe::Part;
  tell_probe(Part::kProjected, layer.layer);
  store(layer, {.rows = {.tables = rows, .positions = batch_->positions(), .pool = kv_.row_pool()},
                .metadata = {.pool = kv_.metadata_pool(),
                             .pages = metadata < 0 ? nullptr : tables.metadata_of(0, metadata),
                             .page_stride = tables.metadata_layers * tables.pages,
                             .positions = batch_->metadata_positions()},
                .count = decode_.rows});
  tell_probe(Part::kStored, layer.layer);
  if (!layer.shares_selection) selected_layer_ = layer.layer;
  kv_.share_selection(layer.layer, selected_layer_);
  const bool selects = !layer.shares_selection && decode_.most_blocks > 0;
  if (decode_.hot && decode_.rows >= kLeastRowsInGroups) return decode_in_groups(layer, selects);
  const RowRange all{.count = decode_.rows};
  if (selects) select(layer, all, 0);
  if (decode_.hot) {
    cuda::launch_swap_in({.diff = diff(layer.layer, all),
                          .host_rows = kv_.host_rows(layer.layer),
                          .device_rows = kv_.row_pool(),
                          .row_bytes = kv_.geometry().row_bytes()},
                         stream_.get());
    cuda::launch_add_swap_counts(diff_counts_.data(), swap_totals_.data(), decode_.rows, stream_.get());
  }
  tell_probe(Part::kSwapped, layer.layer);
  const bool whole = !decode_.hot && decode_.most_blocks == 0 && form_ != cuda::AttentionForm::kLatent;
  if (!whole) list_slots(layer.layer, all);
  tell_probe(Part::kListed, layer.layer);
  attend(layer, {.rows = all, .max_count = decode_.longest_list, .pool = kv_.row_pool(), .whole = whole});
  tell_probe(Part::kAttended, layer.layer);
}

// While the bus brings what a group of rows misses, the next ones select, and those before attend. A row's numbers do
// not depend on its group.
void DeviceAttention::decode_in_groups(const LayerAttention& layer, bool selects) {
  const std::int64_t groups = std::ssize(loaded_);
  const sparse::DeviceTables& tables = kv_.tables();
  using Part = DecodeProbe::Part;
  const auto rows_of = [&](std::int64_t group) {
    const std::int64_t first = decode_.rows * group / groups;
    return RowRange{.first = first, .count = decode_.rows * (group + 1) / groups - first};
  };
  for (std::int64_t group = 0; group < groups; ++group) {
    const RowRange rows = rows_of(group);
    // Scores whose blocks wait for one another would else wait until the page I/O leaves its multiprocessors.
    if (selects) select(layer, rows, group == 0 ? 0 : kLoadBlocks);
    cuda::launch_sparse_diff(diff(layer.layer, rows), stream_.get());
    tell_probe(Part::kSwapped, layer.layer);
    diff_done_.record(stream_);
    diff_done_.make_wait(load_stream_);
    cuda::launch_load_misses({.rows = tables.hot_rows_of(layer.layer) + rows.first,
                              .misses = misses_.data() + rows.first * tables.max_selected,
                              .counts = diff_counts_.data() + rows.first,
                              .host_rows = kv_.host_rows(layer.layer),
                              .device_rows = kv_.row_pool(),
                              .row_bytes = kv_.geometry().row_bytes(),
                              .batch = static_cast<std::int32_t>(rows.count),
                              .max_selected = static_cast<std::int32_t>(tables.max_selected),
                              .blocks = kLoadBlocks},
                             load_stream_.get());
    loaded_[static_cast<std::size_t>(group)].record(load_stream_);
    list_slots(layer.layer, rows);
    tell_probe(Part::kListed, layer.layer);
  }
  cuda::launch_add_swap_counts(diff_counts_.data(), swap_totals_.data(), decode_.rows, stream_.get());
  for (std::int64_t group = 0; group < groups; ++group) {
    loaded_[static_cast<std::size_t>(group)].make_wait(stream_);
    tell_probe(Part::kSwapped, layer.layer);
    const RowRange rows = rows_of(group);
    attend(layer, {.rows = rows, .max_count = decode_.longest_list, .pool = kv_.row_pool(), .first_list = rows.first});
    tell_probe(Part::kAttended, layer.layer);
  }
}

cuda::SparseDiffParams DeviceAttention::diff(LayerId layer, const RowRange& rows) const {
  const sparse::DeviceTables& tables = kv_.tables();
  return {.rows = tables.hot_rows_of(layer) + rows.first,
          .lengths = batch_->lengths() + rows.first,
          .selected = tables.selection_of(selected_layer_, rows.first),
          .selected_counts = tables.selection_counts_of(selected_layer_) + rows.first,
          .slot_of = slot_of_.data() + rows.first * tables.max_selected,
          .misses = misses_.data() + rows.first * tables.max_selected,
          .counts = diff_counts_.data() + rows.first,
          .batch = static_cast<std::int32_t>(rows.count),
          .max_selected = static_cast<std::int32_t>(tables.max_selected),
          .max_hot_blocks = kv_.limits().largest_hot.hot_blocks};
}

// Of what the selections name, or of everything.
void DeviceAttention::list_slots(LayerId layer, const RowRange& rows) {
  const sparse::DeviceTables& tables = kv_.tables();
  auto* const lists = static_cast<std::int32_t*>(lists_.reserve(decode_.rows * decode_.longest_list * 4));
  cuda::launch_slot_lists(
      {.rows = tables.hot_rows_of(layer) + rows.first,
       .lengths = batch_->lengths() + rows.first,
       .blocks = decode_.most_blocks > 0 ? tables.selection_of(selected_layer_, rows.first) : nullptr,
       .block_counts = tables.selection_counts_of(selected_layer_) + rows.first,
       .slot_of = slot_of_.data() + rows.first * tables.max_selected,
       .slots = lists + rows.first * decode_.longest_list,
       .counts = list_counts_.data() + rows.first,
       .slot_stride = decode_.longest_list,
       .max_count = decode_.longest_list,
       .max_selected = static_cast<std::int32_t>(tables.max_selected),
       .row_block_tokens = batch_->block_tokens() + rows.first,
       .batch = static_cast<std::int32_t>(rows.count)},
      stream_.get());
}

void DeviceAttention::select(const LayerAttention& layer, const RowRange& rows, std::int32_t spared) {
  const sparse::DeviceTables& tables = kv_.tables();
  const std::int32_t metadata = metadata_layer(layer.layer);
  const float* scores = nullptr;
  if (decode_.longest_scored > 0) {
    scores = score(layer, {.lengths = batch_->scored_lengths() + rows.first,
                           .first = batch_->first() + rows.first,
                           .last = batch_->last() + rows.first,
                           .pool = kv_.metadata_pool(),
                           .pages = tables.metadata_of(rows.first, metadata),
                           .page_stride = tables.metadata_layers * tables.pages,
                           .first_row = rows.first,
                           .rows = rows.count,
                           .max_length = decode_.longest_scored,
                           .spared = spared});
  }
  tell_probe(DecodeProbe::Part::kScored, layer.layer);
  cuda::launch_top_k({.scores = scores,
                      .stride = decode_.longest_scored,
                      .lengths = batch_->blocks() + rows.first,
                      .first = batch_->first() + rows.first,
                      .last = batch_->last() + rows.first,
                      .k = batch_->budgets() + rows.first,
                      .rows = rows.count,
                      .max_length = decode_.most_blocks,
                      .out = tables.selection_of(layer.layer, rows.first),
                      .out_stride = tables.max_selected,
                      .counts = tables.selection_counts_of(layer.layer) + rows.first},
                     stream_.get());
  tell_probe(DecodeProbe::Part::kSelected, layer.layer);
  if (selection_model_ == nullptr) return;
  // A sequence's first page on the host stays while it runs.
  selection_model_->replace({.selections = tables.selection_of(layer.layer, rows.first),
                             .counts = tables.selection_counts_of(layer.layer) + rows.first,
                             .stride = tables.max_selected,
                             .lengths = batch_->lengths() + rows.first,
                             .blocks = batch_->blocks() + rows.first,
                             .first = batch_->first() + rows.first,
                             .last = batch_->last() + rows.first,
                             .block_tokens = batch_->block_tokens() + rows.first,
                             .sequences = tables.host_pages + rows.first * tables.pages,
                             .sequence_stride = tables.pages,
                             .layer = layer.layer.value(),
                             .rows = static_cast<std::int32_t>(rows.count)},
                            stream_.get());
  tell_probe(DecodeProbe::Part::kReplaced, layer.layer);
}

}  // namespace hotset::model
