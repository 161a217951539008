// The forward pass, written once for all models and backends: a decoder of layers with RMSNorm before attention
// (attention_block.h, attention.h) and before the feed-forward part (feed_forward.h), residual stream in float32.
// Thread: the stream that owns the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "model/attention.h"
#include "model/attention_block.h"
#include "model/feed_forward.h"
#include "model/kv_layout.h"
#include "model/weights.h"
#include "sparse/tiered_kv.h"

namespace hotset::model {

class Transformer {
 public:
  // Allocates the workspace for steps of up to `max_rows` rows, of which one slice has up to `max_prefill_rows`.
  // Everything passed outlives it.
  // `keeper`: see TieredAttention.
  Transformer(const ModelWeights& weights, kernels::Backend& backend, sparse::TieredKv& kv,
              const sparse::SelectionAlgorithm* keeper, std::int64_t max_rows, std::int64_t max_prefill_rows);

  void observe(sparse::SelectionObserver* observer) { attention_.observe(observer); }
  void verify(double rate) { attention_.verify(rate); }
  [[nodiscard]] VerifyOutcome take_verified() { return attention_.take_verified(); }

  // One step: `tokens` [rows], slices in batch order, decode slices first. Writes the rows of every layer (commit_rows
  // is the caller's) and keeps the residual stream of all rows for logits().
  void forward(std::uint64_t step, std::span<const std::int32_t> tokens, std::span<const SequenceSlice> slices);

  static constexpr std::int64_t kLogitsRows = 16;  // the most rows of one logits() call

  // Logits of rows of the last forward(), [rows.size(), vocabulary]; valid until the next call.
  [[nodiscard]] std::span<float> logits(std::span<const std::int64_t> rows);

 private:
  void norm(const float* in, const std::vector<float>& weight, float* out, std::int64_t rows);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  kernels::Backend& backend_;
  std::unique_ptr<AttentionBlock> block_;
  TieredAttention attention_;
  FeedForward feed_forward_;
  // Workspace [max_rows, ...].
  std::vector<float> residual_, normed_, logits_;
  std::vector<std::int64_t> positions_;
};

}  // namespace hotset::model
