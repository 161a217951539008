// Replaces selections on a GPU, behind top-k, for measurements: sparse/selection_model.h.
//
// Churn: kernels/cuda/selection/replaced_selection.h. Recorded ones: a sequence replays a recorded one, at the lengths
// that it had there; past the last recorded row the rows come backwards, then forwards again. In a model of L layers
// layer l replays recorded layer l * (recorded layers) / L. In a context of another length than the recorded one the
// newest 128 tokens keep their distance from the end, the others are spread evenly over what is before; in a shorter
// one some fall together, and the selection is that much smaller. Immutable. Thread: the stream that runs the steps.
#pragma once

#include <cstdint>
#include <memory>

#include "core/result.h"
#include "kernels/cuda/selection/replaced_selection.h"
#include "kernels/dense_backend.h"
#include "sparse/selection_model.h"

namespace hotset::sparse {

class DeviceSelectionModel {
 public:
  // For a model of `layers` layers whose algorithm selects blocks of `block_tokens` tokens. The backend outlives it.
  // kInvalidArgument, kNotFound, kCorrupt: the trace can't be replayed.
  static Result<std::unique_ptr<const DeviceSelectionModel>> create(const SelectionModel& model, std::int32_t layers,
                                                                    std::int32_t block_tokens,
                                                                    kernels::DenseBackend& backend);

  // Queues the replacement.
  void replace(const kernels::cuda::ReplacedRows& rows, kernels::cuda::Stream stream) const;

 private:
  DeviceSelectionModel() = default;

  std::uint64_t churn_ = 0;  // in units of 2^-32; without recorded selections
  std::int32_t layers_ = 0, recorded_layers_ = 0;
  kernels::Array<kernels::cuda::RecordedSequence> sequences_;  // empty: churn
  kernels::Array<kernels::cuda::RecordedRow> rows_;
  kernels::Array<std::int32_t> blocks_;
  std::int32_t block_tokens_ = 1;
};

}  // namespace hotset::sparse
