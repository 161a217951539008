#include "model/device_memory_plan.h"

#include <algorithm>

#include "model/checkpoint.h"
#include "model/decode_batch.h"

namespace hotset::model {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kGraphsAndLibraries = std::int64_t{768} << 20;  // captured graphs, kernels, cuBLASLt's workspace
constexpr std::int64_t kPieceTokens = 4096;                            // of expanded or staged rows
constexpr std::int64_t kSelectedRows = 256;                            // of a prompt that select together

// Of one row of a step, without attention.
std::int64_t row_bytes(const ModelConfig& config, std::int64_t element) {
  const std::int64_t heads = config.heads;
  std::int64_t bytes = config.hidden * (kFloat + element);
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    const std::int64_t key_dim = latent.kv_rank + latent.rope_dim;
    bytes += latent.q_rank * (kFloat + element) + key_dim * kFloat;
    bytes += heads * (2 * config.head_dim + key_dim) * kFloat;  // queries twice: for conversion
    bytes += heads * (latent.kv_rank + latent.value_dim) * element;
    if (config.indexer) bytes += (std::int64_t{config.indexer->heads} + 1) * (config.indexer->dim + 1) * kFloat;
  } else {
    bytes += (2 * heads + 2 * std::int64_t{config.kv_heads}) * config.head_dim * kFloat;
    bytes += heads * config.head_dim * element;
  }
  std::int64_t widest = config.intermediate;
  if (config.experts) {
    const ExpertsConfig& experts = *config.experts;
    widest = std::max(widest, experts.shared * experts.intermediate);
    bytes += experts.count * kFloat + experts.per_token * (8 + 4 * (config.hidden + experts.intermediate));
  }
  return bytes + widest * (2 * kFloat + element);
}

}  // namespace

std::int64_t device_weight_bytes(const ModelConfig& config, kernels::ElementType compute) {
  std::int64_t elements = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    std::int64_t size = 1;
    for (const std::int64_t extent : tensor.shape) size *= extent;
    // Taken apart in two forms.
    elements += tensor.name.ends_with("kv_b_proj") ? 2 * size : size;
  }
  return elements * element_bytes(compute);
}

std::int64_t device_workspace_bytes(const ModelConfig& config, const KvLayout& layout, kernels::ElementType compute,
                                    const DeviceRunnerLimits& limits) {
  const std::int64_t element = element_bytes(compute);
  const std::int64_t batch = DecodeBatch::bucket(limits.max_batch);
  const std::int64_t chunk = round_up(limits.prefill_chunk, kPageTokens);
  const std::int64_t rows = std::max(batch, chunk);
  const std::int64_t tokens = limits.max_tokens;
  const std::int64_t layers = layout.rows.layers;
  const std::int64_t heads = config.heads;
  const std::int64_t value_dim = layout.rows.value_dim;

  std::int64_t bytes = kGraphsAndLibraries;
  bytes += rows * row_bytes(config, element);
  bytes += 4 * batch * config.vocabulary * kFloat;  // logits, sampling, its counts
  // Decode attention: lists, partial results of runs of 256; those of a full batch share the pool's rows, so half of
  // the longest possible is ample.
  bytes += batch * tokens * kFloat;
  bytes += batch * heads * (ceil_div(tokens, 256) + 1) * (value_dim + 4) * kFloat / 2;
  if (limits.max_selected > 0) {  // scores and what they are made of
    const std::int64_t scored =
        std::max(batch, layout.metadata.kind == MetadataGeometry::Kind::kIndexKeys ? kSelectedRows : std::int64_t{0});
    bytes += scored * tokens * kFloat + batch * heads * (ceil_div(tokens, 256) * 8 + layout.metadata.rank * kFloat);
    bytes += layers * batch * limits.max_selected * kFloat;
    bytes += (batch + 8 + batch / 2) * layers * limits.largest_hot.hot_blocks * 6;
  }
  bytes += (batch + 1) * (layers + layout.metadata_layers + 1) * pages_for_tokens(tokens) * kFloat;
  // Prompts: state of the softmax, queries in the compute type, pieces of rows.
  const std::int64_t prompt_dim = config.latent ? config.latent->value_dim : value_dim;
  bytes += chunk * heads * ((prompt_dim + 5) * kFloat + config.head_dim * element);
  bytes += 2 * kPieceTokens * layout.rows.row_bytes();
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    bytes += kPieceTokens * element * (latent.kv_rank + latent.rope_dim + heads * (latent.nope_dim + latent.value_dim));
    bytes += tokens * layout.rows.row_bytes();  // a prompt from the host brings whole layers
  }
  bytes += pages_for_tokens(tokens) * layout.metadata.page_bytes();
  return bytes;
}

}  // namespace hotset::model
