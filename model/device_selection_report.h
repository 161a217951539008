// Tells an observer (sparse/selection_observer.h) what was selected on a GPU: waits until the device has come to it,
// brings it to the host, a layer at a time, and tells. So with an observer a step that selects is done when it has
// begun: none runs beside another. Captured launches stay as they are. Thread: the stream's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/ids.h"
#include "kernels/cuda/device.h"
#include "model/attention.h"
#include "sparse/device_kv.h"
#include "sparse/selection_observer.h"

namespace hotset::model {

class DeviceSelectionReport {
 public:
  // The stream outlives it.
  DeviceSelectionReport(std::shared_ptr<sparse::SelectionObserver> observer, const kernels::cuda::DeviceStream& stream)
      : observer_(std::move(observer)), stream_(stream) {}

  // A generated token that selects.
  struct Row {
    SequenceId sequence;
    std::int64_t position = 0;
    std::int32_t block_tokens = 1;
    std::int32_t row = 0;  // of the decode batch
  };
  // Of a step whose layers are queued; the rows lie among the first `batch` of the batch.
  void tell(std::uint64_t step, std::span<const Row> rows, std::int32_t batch, const sparse::DeviceKv& kv);

  // A chunk's selections in one layer, queued on the stream. Device pointers, of rows from the first that selects on:
  // `selected` [rows, slice.budget], `counts` [rows]; not read where every row attends to everything.
  void tell(std::uint64_t step, LayerId layer, const SequenceSlice& slice, const std::int32_t* selected,
            const std::int32_t* counts);

 private:
  // The selections of `rows` rows, valid until the next call.
  struct Layer {
    const std::int32_t* selected = nullptr;  // [rows, stride]
    const std::int32_t* counts = nullptr;    // [rows]
    std::int64_t stride = 0;
    [[nodiscard]] std::span<const std::int32_t> blocks(std::int64_t row) const {
      return {selected + row * stride, static_cast<std::size_t>(counts[row])};
    }
  };
  [[nodiscard]] Layer bring(const std::int32_t* selected, const std::int32_t* counts, std::int64_t rows,
                            std::int64_t stride);

  std::shared_ptr<sparse::SelectionObserver> observer_;
  const kernels::cuda::DeviceStream& stream_;
  std::unique_ptr<kernels::Memory> host_;  // pinned
  std::int64_t host_bytes_ = 0;
};

}  // namespace hotset::model
