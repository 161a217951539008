// The time of each part of decode steps. Events lie inside the captured graph, so a replay is measured; each costs
// about a microsecond, which is why whole steps are timed without them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/cuda/stream.h"
#include "model/decode_probe.h"

namespace hotset {

class StepProbe final : public model::DecodeProbe {
 public:
  explicit StepProbe(kernels::cuda::Stream stream) : stream_(stream) {}

  // Whether times of parts are taken.
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

  // Of the last step, which is done. Milliseconds. From the launch of its forward pass on: what the host does before,
  // while the device waits, is not in it.
  [[nodiscard]] double on_device() { return between(ends_[Part::kInputs], ends_[Part::kSampled]); }
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
  bool parts_ = false;
  std::map<Part, TimingEvent> ends_;
  std::vector<Mark> marks_;
};

}  // namespace hotset
