// The launches of decode steps, captured once for a DecodeShape and replayed. The least recently used go when there are
// too many, and all of them when memory that they address has moved (kernels::cuda::GrowingMemory) or the device has
// none left for another. Thread: the stream's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>

#include "kernels/cuda/device.h"
#include "model/decode_batch.h"

namespace hotset::model {

class DecodeGraphs {
 public:
  explicit DecodeGraphs(std::size_t most) : most_(most) {}

  // Queues what `launch` queues on `stream`. The first time that a shape comes it is launched as it is: that loads
  // kernels and reserves memory, which a capture can't. `launch` depends on the shape alone. `starts` is called right
  // before something is queued, behind any capture.
  void run(
      const DecodeShape& shape, const kernels::cuda::DeviceStream& stream, const std::function<void()>& launch,
      const std::function<void()>& starts = [] {});
  // Nothing of them may be under way.
  void clear();

  [[nodiscard]] std::size_t shapes() const { return entries_.size(); }  // at most `most`
  [[nodiscard]] std::size_t captured() const;
  [[nodiscard]] std::uint64_t replays() const { return replays_; }

 private:
  struct Entry {
    kernels::cuda::CapturedGraph graph;  // empty: the shape came once
    std::list<DecodeShape>::iterator age;
  };
  std::size_t most_;
  std::uint64_t moves_ = 0;  // of memory, when the graphs were captured
  std::uint64_t replays_ = 0;
  bool warned_ = false;  // that there was no memory for one
  std::map<DecodeShape, Entry> entries_;
  std::list<DecodeShape> ages_;  // least recently used first
};

}  // namespace hotset::model
