#include "model/device_selection_report.h"

namespace hotset::model {

DeviceSelectionReport::Layer DeviceSelectionReport::bring(const std::int32_t* selected, const std::int32_t* counts,
                                                          std::int64_t rows, std::int64_t stride) {
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::int32_t));
  const std::int64_t bytes = rows * (stride + 1) * kWord;
  if (bytes > host_bytes_) {
    host_ = kernels::cuda::allocate_pinned(bytes);
    host_bytes_ = bytes;
  }
  auto* const host = static_cast<std::int32_t*>(host_->data());
  stream_.copy(selected, host, rows * stride * kWord);
  stream_.copy(counts, host + rows * stride, rows * kWord);
  stream_.synchronize();
  return {.selected = host, .counts = host + rows * stride, .stride = stride};
}

void DeviceSelectionReport::tell(std::uint64_t step, std::span<const Row> rows, std::int32_t batch,
                                 const sparse::DeviceKv& kv) {
  if (rows.empty()) return;
  const sparse::DeviceTables& tables = kv.tables();
  for (std::int32_t index = 0; index < tables.layers; ++index) {
    const LayerId layer{index};
    const LayerId of = kv.selection_layer(layer);
    const Layer selections =
        bring(tables.selection_of(of, 0), tables.selection_counts_of(of), batch, tables.max_selected);
    for (const Row& row : rows) {
      observer_->observe({.step = step,
                          .sequence = row.sequence,
                          .layer = layer,
                          .position = row.position,
                          .block_tokens = row.block_tokens,
                          .blocks = selections.blocks(row.row)});
    }
  }
}

void DeviceSelectionReport::tell(std::uint64_t step, LayerId layer, const SequenceSlice& slice,
                                 const std::int32_t* selected, const std::int32_t* counts) {
  if (slice.selection == nullptr || !slice.selection->selects_prompt()) return;
  const std::int64_t dense = slice.dense_prompt_rows();
  Layer selections;
  if (dense < slice.rows) selections = bring(selected, counts, slice.rows - dense, slice.budget);
  for (std::int64_t row = 0; row < slice.rows; ++row) {
    const bool everything = row < dense;
    observer_->observe({.step = step,
                        .sequence = slice.kv->id,
                        .layer = layer,
                        .position = slice.first_position + row,
                        .block_tokens = slice.selection->block_tokens(),
                        .prefill = true,
                        .everything = everything,
                        .blocks = everything ? std::span<const std::int32_t>{} : selections.blocks(row - dense)});
  }
}

}  // namespace hotset::model
