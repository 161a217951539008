// How one sequence attends to its tokens: the server's choice, or what its request asked for.
#pragma once

#include <memory>

#include "sparse/hot_buffer.h"
#include "sparse/selection.h"

namespace hotset::actors {

// Immutable once made; shared by the sequences of a request and by every stage of the control plane.
struct SequencePolicy {
  sparse::SelectionPolicy selection;
  sparse::HotBufferShape hot_shape;  // when it selects
  bool keeps_metadata = false;       // its algorithm reads the metadata that the server's pools have room for
};

using SharedPolicy = std::shared_ptr<const SequencePolicy>;  // null: dense

}  // namespace hotset::actors
