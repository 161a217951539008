// What the engine tells of each selection that a query's attention used: to a recorder (sparse/selection_trace.h), or
// to a test. Thread: the one that runs the steps; an observer is called there and must neither block nor throw.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"

namespace hotset::sparse {

// One query row's selection in one layer.
struct SelectionRecord {
  std::uint64_t step = 0;  // of the engine: never shrinks from call to call
  SequenceId sequence;
  LayerId layer;
  std::int64_t position = 0;      // of the query's own token; ascends within one (sequence, layer)
  std::int32_t block_tokens = 1;  // B: block b holds positions b * B ... b * B + B - 1
  bool prefill = false;           // the row belongs to the prompt; false: to a generated token
  bool everything = false;        // attended to positions 0 ... position; `blocks` is empty
  // Strictly ascending, the first at least 0, the last with its first position <= `position`. Valid during the call.
  std::span<const std::int32_t> blocks;
};

class SelectionObserver {
 public:
  virtual ~SelectionObserver() = default;
  virtual void observe(const SelectionRecord& record) = 0;
};

}  // namespace hotset::sparse
