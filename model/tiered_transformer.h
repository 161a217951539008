// The forward pass over the tiered cache of a backend whose memory the host sees: Transformer and TieredAttention.
// Thread: the stream that owns the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "model/latent_expander.h"
#include "model/tiered_attention.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

class TieredTransformer {
 public:
  // Allocates the workspace for steps of up to `max_rows` rows, of which one slice has up to `max_prefill_rows`.
  // Everything passed outlives it. `keeper`: see TieredAttention.
  TieredTransformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
                    const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_prefill_rows);

  void observe(sparse::SelectionObserver* observer) { attention_.observe(observer); }
  void verify(double rate) { attention_.verify(rate); }
  [[nodiscard]] VerifyOutcome take_verified() { return attention_.take_verified(); }

  // One step: `tokens` [rows], slices in batch order, generated tokens first. Writes the rows of every layer
  // (commit_rows is the caller's).
  void forward(std::uint64_t step, std::span<const std::int32_t> tokens, std::span<const SequenceSlice> slices);

  static constexpr std::int64_t kLogitsRows = 16;  // the most rows of one logits() call

  // Logits of `count` consecutive rows of the last forward(), [count, vocabulary]; valid until the next call, and the
  // caller may overwrite them.
  [[nodiscard]] std::span<float> logits(std::int64_t first_row, std::int64_t count);

 private:
  std::unique_ptr<LatentExpander> expander_;  // latent models
  Transformer transformer_;
  TieredAttention attention_;
  std::int64_t vocabulary_;
  std::vector<std::int64_t> positions_;  // [max_rows]
};

}  // namespace hotset::model
