// What a benchmark sees of decode steps: for measurements only.
#pragma once

#include <cstdint>

#include "core/ids.h"

namespace hotset::model {

class DecodeProbe {
 public:
  enum class Part : std::uint8_t {
    kBegin,      // of a step: nothing of its decode rows has been queued
    kInputs,     // their tables and numbers are on their way
    kProjected,  // queries and keys of a layer, and what lies before its first one
    kStored,     // its new rows, and their metadata
    kScored,     // every token
    kSelected,   // top-k
    kReplaced,   // selections, by a model of them
    kSwapped,    // diff and I/O; where rows go in groups: diff, and the wait for I/O
    kListed,     // slots
    kAttended,
    kOutput,   // the projection behind attention
    kFed,      // MLP, or router and experts
    kLogits,   // behind the last layer
    kSampled,  // behind all launches of the step
  };

  virtual ~DecodeProbe() = default;
  // The launches up to the end of that part have been queued; those from kProjected to kLogits perhaps in a capture. Of
  // a layer; of others 0.
  virtual void after(Part part, LayerId layer) = 0;
};

}  // namespace hotset::model
