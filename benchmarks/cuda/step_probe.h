// The time of each part of decode steps, and the selections of a churn model in them. Events lie inside the captured
// graph, so a replay is measured; each costs about a microsecond, which is why whole steps are timed without them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "benchmarks/cuda/churn_selection.h"
#include "kernels/cuda/runtime.h"
#include "model/decode_probe.h"

namespace hotset {

class StepProbe final : public model::DecodeProbe {
 public:
  struct Churn {
    std::int32_t sink = 0, window = 0;  // of the algorithm
    std::int64_t length = 0;            // of the sequences at their first step
    float share = 0.0F;
  };

  StepProbe(kernels::cuda::Stream stream, std::int32_t layers, std::int32_t max_batch, std::int64_t max_selected)
      : stream_(stream),
        max_batch_(max_batch),
        max_selected_(max_selected),
        chosen_(static_cast<std::size_t>(layers * max_batch * max_selected)),
        steps_(static_cast<std::size_t>(layers * max_batch)) {}

  // Selections are forgotten. `parts`: times of parts are taken.
  void begin(const Churn& churn) {
    churn_ = churn;
    chosen_.fill_bytes(0xff);
    steps_.fill_bytes(0);
  }
  void take_parts(bool parts) { parts_ = parts; }

  void after(Part part, LayerId layer) override {
    using enum Part;
    if (part == kBegin || part == kInputs || part == kSampled) {
      ends_[part].record(stream_);
      return;
    }
    if (!parts_) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    HOTSET_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
    if (status != cudaStreamCaptureStatusActive) return;
    if (part == kProjected && layer.value() == 0) marks_.clear();
    marks_.push_back({part, std::make_unique<kernels::cuda::Event>(true)});
    HOTSET_CUDA_CHECK(cudaEventRecordWithFlags(marks_.back().event->get(), stream_, cudaEventRecordExternal));
  }

  void replace_selections(LayerId layer, const sparse::DeviceTables& tables, std::int32_t rows) override {
    const std::int64_t first = std::int64_t{layer.value()} * max_batch_;
    kernels::cuda::launch_churn({.selections = tables.selection_of(layer, 0),
                                 .counts = tables.selection_counts_of(layer),
                                 .stride = tables.max_selected,
                                 .chosen = chosen_.data() + first * max_selected_,
                                 .steps = steps_.data() + first,
                                 .rows = rows,
                                 .sink = churn_.sink,
                                 .window = churn_.window,
                                 .length = churn_.length,
                                 .seed = static_cast<std::uint64_t>(layer.value() + 1) << 32,
                                 .churn = churn_.share},
                                stream_);
  }

  // Of the last step, which is done. Milliseconds.
  [[nodiscard]] double on_device() { return between(ends_[Part::kBegin], ends_[Part::kSampled]); }
  [[nodiscard]] std::map<Part, double> parts() {
    std::map<Part, double> out;
    const kernels::cuda::Event* last = &ends_[Part::kInputs];
    out[Part::kInputs] = between(ends_[Part::kBegin], *last);
    for (const Mark& mark : marks_) {
      out[mark.part] += between(*last, *mark.event);
      last = mark.event.get();
    }
    out[Part::kSampled] = between(*last, ends_[Part::kSampled]);
    return out;
  }

 private:
  struct Mark {
    Part part;
    std::unique_ptr<kernels::cuda::Event> event;
  };
  struct TimingEvent : kernels::cuda::Event {
    TimingEvent() : Event(true) {}
  };
  static double between(const kernels::cuda::Event& from, const kernels::cuda::Event& to) {
    float milliseconds = 0;
    HOTSET_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from.get(), to.get()));
    return milliseconds;
  }

  kernels::cuda::Stream stream_;
  std::int32_t max_batch_;
  std::int64_t max_selected_;
  Churn churn_;
  bool parts_ = false;
  std::map<Part, TimingEvent> ends_;
  std::vector<Mark> marks_;
  kernels::cuda::DeviceBuffer<std::int32_t> chosen_, steps_;
};

}  // namespace hotset
