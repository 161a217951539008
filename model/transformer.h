// The forward pass, written once for all models and backends: a decoder of layers with RMSNorm before attention
// (attention_block.h, attention.h) and before the feed-forward part (feed_forward.h), residual stream in float32.
// Thread: the stream that owns the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/dense_backend.h"
#include "model/attention.h"
#include "model/attention_block.h"
#include "model/decode_probe.h"
#include "model/feed_forward.h"
#include "model/weights.h"
#include "sparse/selection.h"

namespace hotset::model {

// What a step's rows are; device pointers.
struct StepInputs {
  const std::int32_t* tokens = nullptr;     // [count]
  const std::int64_t* positions = nullptr;  // [count]
  std::int64_t count = 0;
};

class Transformer {
 public:
  // Allocates the workspace for steps of up to `max_rows` rows and for logits of up to `max_logits_rows`. Everything
  // passed outlives it. `keeper`: the algorithm whose metadata the cache keeps; null: none.
  Transformer(const ModelWeights& weights, kernels::DenseBackend& backend, const sparse::SelectionAlgorithm* keeper,
              std::int64_t max_rows, std::int64_t max_logits_rows);

  [[nodiscard]] AttentionShape attention_shape() const { return block_->shape(); }

  // One step: rows in batch order, generated tokens first. `attention` keeps the rows of every layer (committing them
  // is the caller's); the residual stream of all rows stays for logits(). `probe`: told of each layer's kOutput and
  // kFed; null: nobody is.
  void forward(std::uint64_t step, const StepInputs& inputs, std::span<const SequenceSlice> slices,
               KvAttention& attention, DecodeProbe* probe = nullptr);

  // Logits of `count` consecutive rows of the last forward(): [count, vocabulary] in the device's memory, valid until
  // the next call.
  [[nodiscard]] float* logits(std::int64_t first_row, std::int64_t count);
  [[nodiscard]] const float* logits_data() const { return logits_.data(); }  // what logits() returns
  [[nodiscard]] std::int64_t max_logits_rows() const { return max_logits_rows_; }

 private:
  void norm(const float* in, const Vector& weight, std::int64_t rows);

  const ModelWeights& weights_;
  const ModelConfig& config_;
  kernels::DenseBackend& backend_;
  std::int64_t max_rows_, max_logits_rows_;
  std::unique_ptr<AttentionBlock> block_;
  FeedForward feed_forward_;
  kernels::Array<float> residual_, logits_;  // [max_rows, hidden], [max_logits_rows, vocabulary]
  kernels::ActivationArray normed_;          // [max_rows, hidden]
};

}  // namespace hotset::model
