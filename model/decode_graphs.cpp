#include "model/decode_graphs.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/log.h"

namespace hotset::model {

namespace cuda = kernels::cuda;

void DecodeGraphs::run(const DecodeShape& shape, const cuda::DeviceStream& stream, const std::function<void()>& launch,
                       const std::function<void()>& starts) {
  const std::uint64_t moves = cuda::GrowingMemory::moves();
  if (std::exchange(moves_, moves) != moves) {
    stream.synchronize();
    for (auto& [other, entry] : entries_) entry.graph = {};
  }
  const auto found = entries_.find(shape);
  if (found == entries_.end()) {
    if (entries_.size() >= most_) {
      stream.synchronize();  // the oldest may be under way
      entries_.erase(ages_.front());
      ages_.pop_front();
    }
    entries_.emplace(shape, Entry{.graph = {}, .age = ages_.insert(ages_.end(), shape)});
    starts();
    return launch();
  }
  Entry& entry = found->second;
  ages_.splice(ages_.end(), ages_, entry.age);
  if (entry.graph.empty()) {
    try {
      entry.graph = cuda::CapturedGraph(stream, launch);
    } catch (const std::bad_alloc&) {  // the others make room for when the shape comes again
      if (!std::exchange(warned_, true)) {
        log_warn(
            "the GPU has no memory left for captured steps, which are launched one by one then: lower --gpu-memory");
      }
      stream.synchronize();
      for (auto& [other, one] : entries_) one.graph = {};
      starts();
      return launch();
    }
  }
  starts();
  entry.graph.launch(stream);
  ++replays_;
}

void DecodeGraphs::clear() {
  entries_.clear();
  ages_.clear();
}

std::size_t DecodeGraphs::captured() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [](const auto& entry) { return !entry.second.graph.empty(); }));
}

}  // namespace hotset::model
