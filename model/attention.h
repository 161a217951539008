// What attention of one layer over a sequence's cache is asked: the contract between the forward pass (transformer.h)
// and who keeps the cache (tiered_attention.h where the host sees the device's memory).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/activations.h"
#include "sparse/selection.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

// The rows of one sequence in a step. Slices of generated tokens have one row and come first in the batch.
struct SequenceSlice {
  sparse::SequenceKv* kv = nullptr;
  std::int64_t first_row = 0;  // in the batch
  std::int64_t rows = 0;
  std::int64_t first_position = 0;  // == kv->length
  bool prefill = false;
  const sparse::SelectionAlgorithm* selection = nullptr;  // null: attends to everything
  std::int64_t budget = 0;                                // with `selection`: blocks
  std::int64_t dense_until = 0;                           // with `selection`: lengths up to it attend to everything
  sparse::TierTraffic* traffic = nullptr;                 // of this sequence in this step

  // Leading rows of a prompt that attend to everything; the others select.
  [[nodiscard]] std::int64_t dense_prompt_rows() const;
  // Whether the row at `position` of this slice selects.
  [[nodiscard]] bool selects(std::int64_t position) const;
};

struct AttentionShape {
  std::int32_t heads = 0;
  float scale = 1.0F;  // multiplies q.k
};

// What q and k of a layer still lack when who keeps the rows does it while it writes them (KvAttention::finishes_rows):
// the RMSNorm of each head where there is a weight (latent: of the first value_dim channels of k), then RoPE of its
// first channels (latent: of those behind them, of k alone). Formulas of kernels/dense_backend.h.
struct UnfinishedRows {
  float* q = nullptr;  // those of LayerAttention, to be finished in place; latent: null, the queries are done
  float* k = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float epsilon = 1e-6F;
  const float* inv_freq = nullptr;
  std::int32_t rotary_dim = 0;
  float attention_factor = 1.0F;
  // Where there is an index_k: its LayerNorm, then RoPE of its first channels.
  const float* index_norm = nullptr;
  const float* index_bias = nullptr;
  float index_epsilon = 1e-6F;
};

// One layer's inputs and output, row-major, rows in batch order; everything after RoPE but what is unfinished.
struct LayerAttention {
  LayerId layer;
  const float* q = nullptr;  // [rows, heads * key_dim]; latent: absorbed; rows of dense prompts are not read
  const float* k = nullptr;  // [rows, kv_heads * key_dim]
  const float* v = nullptr;  // [rows, kv_heads * value_dim]; latent: null
  // Of rows, in elements, where they are parts of one product; 0: each its width.
  std::int64_t q_stride = 0;
  std::int64_t k_stride = 0;        // and of v and index_k
  kernels::ActivationsOut context;  // [rows, heads * value_dim]; latent: rows of dense prompts are not written

  // Latent models: dense prompts.
  const float* expanded_q = nullptr;         // [rows, heads * expander key_dim]; other rows are not read
  kernels::ActivationsOut expanded_context;  // [rows, heads * expander value_dim]; other rows are not written

  // Models with an indexer; null where the layer has none of its own.
  const float* index_q = nullptr;        // [rows, index_heads * index_dim]
  const float* index_k = nullptr;        // [rows, index_dim]
  const float* index_weights = nullptr;  // [rows, index_heads], every constant factor in them
  std::int32_t index_heads = 0;
  bool shares_selection = false;  // uses the selections of the layer before instead of making its own
  std::optional<UnfinishedRows> unfinished;
};

class KvAttention {
 public:
  virtual ~KvAttention() = default;
  // Whether run() is given unfinished rows, and finishes them, or finished ones.
  [[nodiscard]] virtual bool finishes_rows() const { return false; }
  // Keeps the layer's new rows and attends. `slices`: of the step, in batch order, generated tokens first.
  virtual void run(std::uint64_t step, const LayerAttention& layer, std::span<const SequenceSlice> slices) = 0;
};

}  // namespace hotset::model
