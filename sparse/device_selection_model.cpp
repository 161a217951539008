#include "sparse/device_selection_model.h"

#include <cmath>
#include <span>
#include <vector>

#include "core/concat.h"
#include "core/log.h"

namespace hotset::sparse {

namespace cuda = kernels::cuda;

Result<std::unique_ptr<const DeviceSelectionModel>> DeviceSelectionModel::create(const SelectionModel& model,
                                                                                 std::int32_t layers,
                                                                                 std::int32_t block_tokens,
                                                                                 kernels::DenseBackend& backend) {
  auto out = std::unique_ptr<DeviceSelectionModel>(new DeviceSelectionModel);
  out->layers_ = layers;
  if (const auto* churn = std::get_if<ChurnModel>(&model)) {
    out->churn_ = static_cast<std::uint64_t>(std::ldexp(churn->share, 32));
    return std::unique_ptr<const DeviceSelectionModel>(std::move(out));
  }
  const auto read = read_recorded_selections(std::get<RecordedModel>(model).trace);
  if (!read) return read.error();
  const RecordedSelections& recorded = read.value();
  if (recorded.block_tokens != block_tokens) {
    return invalid_argument(concat("--selection-model: the trace selects blocks of ", recorded.block_tokens,
                                   " tokens, the server's algorithm of ", block_tokens),
                            "--selection-model");
  }
  std::vector<cuda::RecordedSequence> sequences;
  for (const auto& one : recorded.sequences)
    sequences.push_back({.first_row = one.first_row, .first_length = one.first_length, .rows = one.count});
  std::vector<cuda::RecordedRow> rows;
  for (const auto& one : recorded.rows) rows.push_back({.at = one.at, .count = one.count, .blocks = one.blocks});
  out->recorded_layers_ = recorded.layers;
  out->block_tokens_ = recorded.block_tokens;
  out->sequences_ = backend.array_of(std::span<const cuda::RecordedSequence>(sequences));
  out->rows_ = backend.array_of(std::span<const cuda::RecordedRow>(rows));
  out->blocks_ = backend.array_of(std::span<const std::int32_t>(recorded.blocks));
  log_info("--selection-model: ", sequences.size(), " recorded sequences, ", rows.size(), " selections");
  return std::unique_ptr<const DeviceSelectionModel>(std::move(out));
}

void DeviceSelectionModel::replace(const cuda::ReplacedRows& rows, cuda::Stream stream) const {
  if (sequences_.empty()) {
    cuda::launch_churn({.rows = rows, .share = churn_}, stream);
    return;
  }
  cuda::launch_recorded(
      {.rows = rows,
       .tables = {.sequences = sequences_.data(),
                  .rows = rows_.data(),
                  .blocks = blocks_.data(),
                  .sequence_count = static_cast<std::int32_t>(sequences_.size()),
                  .block_tokens = block_tokens_},
       .recorded_layer = static_cast<std::int32_t>(std::int64_t{rows.layer} * recorded_layers_ / layers_)},
      stream);
}

}  // namespace hotset::sparse
