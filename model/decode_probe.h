// What a benchmark sees of decode steps, and changes in them: for measurements only.
#pragma once

#include <cstdint>

#include "core/ids.h"
#include "sparse/device_kv.h"

namespace hotset::model {

class DecodeProbe {
 public:
  enum class Part : std::uint8_t {
    kBegin,      // of a step: nothing of its decode rows has been queued
    kInputs,     // their tables and numbers are on their way
    kProjected,  // queries and keys of a layer
    kStored,     // its new rows, and their metadata
    kScored,     // every token
    kSelected,   // top-k
    kReplaced,   // what replace_selections() queues
    kSwapped,    // diff and I/O
    kListed,     // slots
    kAttended,
    kLogits,   // behind the last layer
    kSampled,  // behind all launches of the step
  };

  virtual ~DecodeProbe() = default;
  // The launches up to the end of that part have been queued; those from kProjected to kLogits perhaps in a capture. Of
  // a layer; of others 0.
  virtual void after(Part part, LayerId layer) = 0;
  // Called behind the top-k of a layer with selections of its own. What it queues may write other selections: of each
  // row as many as there are, ascending, unique, in range (dummy weights select nearly at random).
  virtual void replace_selections(LayerId layer, const sparse::DeviceTables& tables, std::int32_t rows) = 0;
};

}  // namespace hotset::model
