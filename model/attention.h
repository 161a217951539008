// The heart: attention of one layer over the tiered cache. New rows are written where their sequence keeps them, then
// every row attends: decode rows over a list of physical slots (everything, or a selection whose missing rows are
// loaded first), prefill rows over tiles of 64 positions (device pages, or pages brought from the host one by one).
// Thread: the stream that runs the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "sparse/selection.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

// The rows of one sequence in a step. Decode slices have one row and come first in the batch.
struct SequenceSlice {
  sparse::SequenceKv* kv = nullptr;
  std::int64_t first_row = 0;  // in the batch
  std::int64_t rows = 0;
  std::int64_t first_position = 0;  // == kv->length
  bool prefill = false;
  const sparse::SelectionAlgorithm* selection = nullptr;  // decode only; null: attends to everything
};

struct AttentionShape {
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
};

// One layer's inputs and output, row-major, rows in batch order; q and k after RoPE.
struct LayerAttention {
  LayerId layer;
  const float* q = nullptr;  // [rows, heads * head_dim]
  const float* k = nullptr;  // [rows, kv_heads * head_dim]
  const float* v = nullptr;  // [rows, kv_heads * head_dim]
  float* context = nullptr;  // [rows, heads * head_dim]
};

class TieredAttention {
 public:
  // `max_prefill_rows`: the largest prefill slice. The backend and the cache outlive it.
  TieredAttention(const AttentionShape& shape, kernels::Backend& backend, sparse::TieredKv& kv,
                  std::int64_t max_prefill_rows);

  void run(const LayerAttention& layer, std::span<const SequenceSlice> slices, sparse::TierTraffic& traffic);

 private:
  void store(const LayerAttention& layer, std::span<const SequenceSlice> slices);
  void decode(const LayerAttention& layer, std::span<const SequenceSlice> slices, sparse::TierTraffic& traffic);
  void prefill(const LayerAttention& layer, const SequenceSlice& slice, sparse::TierTraffic& traffic);

  AttentionShape shape_;
  float scale_;
  kernels::Backend& backend_;
  sparse::TieredKv& kv_;
  // Workspace, sized once.
  std::vector<float> acc_, max_, sum_;  // carried softmax of a prefill slice
  std::vector<std::byte> staged_tile_;
  // Scratch, reused.
  std::vector<std::byte*> row_targets_;
  std::vector<std::int32_t> blocks_;
  std::vector<std::int64_t> slots_, slot_offsets_;
  std::vector<const std::byte*> tiles_;
};

}  // namespace hotset::model
