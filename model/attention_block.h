// What surrounds the attention of a layer: the projections before and after it. Two kinds: grouped_block.h and
// latent_block.h. Owner: the Transformer. Thread: the stream that owns the backend.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "model/attention.h"

namespace hotset::model {

// The rows of a step.
struct StepRows {
  std::int64_t count = 0;
  const std::int64_t* positions = nullptr;  // [count], the device's
  std::span<const SequenceSlice> slices;
  bool left_unfinished = false;  // for a KvAttention that finishes them
};

class AttentionBlock {
 public:
  virtual ~AttentionBlock() = default;
  [[nodiscard]] virtual AttentionShape shape() const = 0;

  // Queries and keys of `normed` [count, hidden], after RoPE or unfinished. What the result points to is the block's
  // workspace, valid until the next project().
  virtual LayerAttention project(LayerId layer, const StepRows& rows, kernels::Activations normed) = 0;

  // Adds the output projection of what attention has written to the last project()'s contexts to `residual`
  // [count, hidden].
  virtual void add_output(LayerId layer, const StepRows& rows, float* residual) = 0;
};

}  // namespace hotset::model
