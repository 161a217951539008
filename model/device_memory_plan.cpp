#include "model/device_memory_plan.h"

#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/fp8_matmul.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/sampling.h"
#include "kernels/cuda/selection/block_scores.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/sparse_attention.h"
#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/weight_matrix.h"
#include "kernels/tensor.h"
#include "model/decode_batch.h"
#include "model/device_attention_rows.h"
#include "model/weights.h"
#include "sparse/hot_buffer.h"

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

using Kind = MetadataGeometry::Kind;

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kArenaBytes = std::int64_t{96} << 20;  // of pieces for small arrays: what is not handed out

struct Sizes {
  const ModelConfig& config;
  const KvLayout& layout;
  const DeviceRunnerLimits& limits;
  std::int64_t element = 0;  // bytes, of the compute type
  bool fp8 = false;          // weights are FP8, all or some
  std::int64_t batch = 0;    // rows of a decode step
  std::int64_t chunk = 0;    // rows of a prompt's step
  std::int64_t tokens = 0;   // of a sequence
  std::int64_t longest = 0;  // list of rows that a query of a decode step attends to

  [[nodiscard]] bool index_keys() const { return layout.metadata.kind == Kind::kIndexKeys; }
  [[nodiscard]] std::int64_t rows() const { return std::max(batch, chunk); }
};

Sizes sizes_of(const ModelConfig& config, const KvLayout& layout, const DeviceWeightFormat& format,
               const DeviceRunnerLimits& limits) {
  Sizes sizes{.config = config,
              .layout = layout,
              .limits = limits,
              .element = element_bytes(format.compute),
              .fp8 = format.fp8 && config.fp8_weights,
              .batch = DecodeBatch::bucket(std::max(limits.max_batch, limits.least_rows)),
              .chunk = round_up(limits.prefill_chunk, kPageTokens),
              .tokens = limits.max_tokens};
  sizes.longest = sizes.tokens;  // a request may ask for dense attention, whatever the model's own
  return sizes;
}

std::int64_t growing(std::int64_t bytes) { return bytes == 0 ? 0 : cuda::GrowingMemory::size_for(bytes); }

// Of one row of a step: residual stream, projections, feed-forward part.
std::int64_t row_bytes(const ModelConfig& config, std::int64_t element) {
  const std::int64_t heads = config.heads;
  std::int64_t bytes = config.hidden * (kFloat + element);
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    const std::int64_t key_dim = latent.kv_rank + latent.rope_dim;
    bytes += latent.q_rank * (kFloat + element) + key_dim * kFloat;
    bytes += heads * (config.head_dim + key_dim) * kFloat;
    bytes += heads * (latent.kv_rank + latent.value_dim) * element;
    if (config.indexer) bytes += (std::int64_t{config.indexer->heads} + 1) * (config.indexer->dim + 1) * kFloat;
  } else {
    bytes += (heads + 2 * std::int64_t{config.kv_heads}) * config.head_dim * kFloat;
    bytes += heads * config.head_dim * element;
  }
  std::int64_t widest = config.intermediate;
  if (config.experts) {
    const ExpertsConfig& experts = *config.experts;
    widest = std::max(widest, experts.shared * experts.intermediate);
    bytes += experts.count * kFloat + std::int64_t{experts.per_token} * 8;
  }
  return bytes + widest * (2 * kFloat + element);
}

// The most inputs that a projection has.
std::int64_t widest_input(const ModelConfig& config) {
  std::int64_t widest = std::max({config.hidden, config.intermediate, std::int64_t{config.heads} * config.head_dim});
  if (config.latent)
    widest =
        std::max({widest, std::int64_t{config.latent->q_rank}, std::int64_t{config.heads} * config.latent->value_dim});
  if (config.experts) widest = std::max(widest, config.experts->shared * config.experts->intermediate);
  return widest;
}

// What the backend needs for products: inputs in the compute type or quantised to FP8, rows of experts.
std::int64_t product_bytes(const Sizes& sizes) {
  const ModelConfig& config = sizes.config;
  std::int64_t bytes = growing(sizes.rows() * config.heads * config.head_dim * sizes.element);
  if (sizes.fp8) {
    bytes += growing(static_cast<std::int64_t>(
        cuda::fp8_matmul_workspace_bytes(sizes.rows(), round_up(widest_input(config), kernels::kFp8Block))));
  }
  if (config.experts) {
    const auto of_format = [&](cuda::ExpertFormat format) {
      const cuda::ExpertWeights experts{.format = format,
                                        .experts = config.experts->count,
                                        .hidden = config.hidden,
                                        .intermediate = config.experts->intermediate};
      return growing(
          static_cast<std::int64_t>(cuda::experts_workspace_bytes(experts, sizes.rows(), config.experts->per_token)));
    };
    const std::int64_t own = of_format(sizes.element == kFloat ? cuda::ExpertFormat::kF32 : cuda::ExpertFormat::kBF16);
    // Layers may differ.
    bytes += sizes.fp8 ? std::max(own, of_format(cuda::ExpertFormat::kFp8Block)) : own;
  }
  return bytes;
}

// Logits, the counts of tokens, results.
std::int64_t sampling_bytes(const Sizes& sizes) {
  const std::int64_t vocabulary = sizes.config.vocabulary;
  const std::int64_t results = 4 * sizes.limits.max_batch + 64;
  std::int64_t bytes = (sizes.batch + 2 * sizes.limits.max_batch + 8) * vocabulary * kFloat;
  bytes += growing(static_cast<std::int64_t>(cuda::sampling_workspace_bytes(sizes.batch, vocabulary)));
  return bytes + results * (static_cast<std::int64_t>(sizeof(cuda::SamplingRow)) + 16 + cuda::kMostAlternatives * 8);
}

// Page tables, selections, hot buffers: sparse::DeviceKv.
std::int64_t table_bytes(const Sizes& sizes) {
  const std::int64_t layers = sizes.layout.rows.layers;
  const sparse::HotBufferShape& hot = sizes.limits.largest_hot;
  const std::int64_t pages = std::max(pages_for_tokens(sizes.tokens), sparse::hot_pages_of(hot).total());
  std::int64_t bytes = (sizes.batch + 1) * (layers + sizes.layout.metadata_layers + 1) * pages * kFloat;
  bytes += (sizes.batch + 1) * layers * static_cast<std::int64_t>(sizeof(cuda::HotRow));
  bytes += layers * sizes.batch * (sizes.limits.max_selected + 1) * kFloat;
  if (hot.hot_blocks > 0)
    bytes += (sizes.batch + std::max<std::int64_t>(8, sizes.batch / 2)) * round_up(layers * hot.hot_blocks * 6, 256);
  return bytes;
}

// Scores of rows that select and what they are made of.
std::int64_t scoring_bytes(const Sizes& sizes) {
  const MetadataGeometry& metadata = sizes.layout.metadata;
  const std::int64_t scored = std::max(sizes.batch, sizes.index_keys() ? kSelectedRows : std::int64_t{0});
  std::int64_t bytes = metadata.kind == Kind::kNone ? 0 : growing(scored * sizes.tokens * kFloat);
  if (metadata.kind == Kind::kLowRankKeys) {
    bytes += growing(static_cast<std::int64_t>(
        cuda::low_rank_workspace_bytes(sizes.batch, sizes.tokens, sizes.config.heads, metadata.rank)));
    bytes += std::int64_t{sizes.layout.rows.layers} * metadata.kv_heads * metadata.dim * metadata.rank * kFloat;
  } else if (metadata.kind == Kind::kBlockBounds) {
    bytes += growing(static_cast<std::int64_t>(
        cuda::block_workspace_bytes(sizes.batch, sizes.tokens, metadata.block_tokens, sizes.config.heads)));
  }
  return bytes;
}

// Lists of rows and partial results of attention over them; diffs of hot rows.
std::int64_t list_bytes(const Sizes& sizes) {
  const KvGeometry& rows = sizes.layout.rows;
  const std::int64_t selected = sizes.limits.max_selected;
  const std::int64_t of_prompt = sizes.index_keys() ? kSelectedRows : 0;
  const std::int32_t heads = sizes.config.heads;
  const cuda::AttentionForm form = cuda::sparse_attention_form(rows, heads, sizes.limits.capability_major);
  const auto partial = [&](std::int64_t count, std::int64_t longest) {
    return cuda::sparse_attention_workspace_bytes(rows, heads, count, longest, form);
  };
  std::int64_t bytes = growing(std::max(sizes.batch * sizes.longest, of_prompt * selected) * kFloat);
  bytes += growing(std::max(partial(sizes.batch, sizes.longest), partial(of_prompt, selected)));
  bytes += std::max(kSelectedRows, sizes.batch) * (sizes.config.heads + 1) * kFloat;
  return bytes + sizes.batch * selected * (kFloat + static_cast<std::int64_t>(sizeof(cuda::SparseMiss)));
}

// State of the softmax, queries in the compute type, pieces of rows, selections of a chunk.
std::int64_t prompt_bytes(const Sizes& sizes) {
  const ModelConfig& config = sizes.config;
  const std::int64_t row = sizes.layout.rows.row_bytes();
  KvGeometry geometry = sizes.layout.rows;
  std::int64_t bytes = growing(sizes.chunk * config.heads * config.head_dim * sizes.element);
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    geometry = {.layers = geometry.layers,
                .kv_heads = config.heads,
                .key_dim = latent.nope_dim + latent.rope_dim,
                .value_dim = latent.value_dim,
                .dtype = sizes.element == kFloat ? KvDType::kF32 : KvDType::kBF16};
    bytes += growing(kPieceTokens * (latent.kv_rank + latent.rope_dim) * sizes.element);
    bytes += growing(kPieceTokens * config.heads * latent.nope_dim * sizes.element);
    bytes += growing(kPieceTokens * config.heads * latent.value_dim * sizes.element);
  }
  bytes += growing(cuda::prefill_attention_workspace_bytes(geometry, config.heads, sizes.chunk));
  if (sizes.index_keys()) {  // a prompt from the host brings whole layers
    bytes += growing(round_up(sizes.tokens, kPageTokens) * row);
    bytes += growing(sizes.chunk * sizes.limits.max_selected * kFloat) + growing(sizes.chunk * (4 * 8 + 3 * kFloat));
  } else {
    bytes += growing(sizes.chunk * row) + 2 * growing(kPieceTokens * row);
  }
  return bytes + growing(pages_for_tokens(sizes.tokens) * sizes.layout.metadata.page_bytes());
}

}  // namespace

std::int64_t device_weight_bytes(const Checkpoint& checkpoint, const DeviceWeightFormat& format) {
  const auto takes = [&](std::int64_t rows, std::int64_t cols) {
    return format.fp8 && cuda::fp8_weight_fits(rows, cols);
  };
  const auto fp8 = fp8_matrices(checkpoint, takes);
  const std::int64_t element = element_bytes(format.compute);
  std::int64_t bytes = weight_count(checkpoint.config()) * element;
  if (fp8.empty()) return bytes;
  for (const ExpectedTensor& tensor : expected_tensors(checkpoint.config())) {
    if (!fp8.contains(tensor.name)) continue;
    const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    bytes += cuda::fp8_weight_bytes(rows, cols) - rows * cols * element;
  }
  return bytes;
}

std::int64_t device_workspace_bytes(const ModelConfig& config, const KvLayout& layout, const DeviceWeightFormat& format,
                                    const DeviceRunnerLimits& limits) {
  const Sizes sizes = sizes_of(config, layout, format, limits);
  return kDriverBytes + kArenaBytes + sizes.rows() * row_bytes(config, sizes.element) + product_bytes(sizes) +
         sampling_bytes(sizes) + table_bytes(sizes) + scoring_bytes(sizes) + list_bytes(sizes) + prompt_bytes(sizes);
}

}  // namespace hotset::model
