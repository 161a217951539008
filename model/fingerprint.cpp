#include "model/fingerprint.h"

#include <algorithm>
#include <span>

namespace hotset::model {
namespace {

constexpr std::size_t kWholeBytes = std::size_t{1} << 30;
constexpr std::size_t kLeastShare = std::size_t{256} << 10;
constexpr std::size_t kPieces = 16;

void add_rope(ContentHash& hash, const RopeScaling& rope) {
  hash.add_number(static_cast<std::int64_t>(rope.type));
  for (const double number : {rope.factor, rope.original_max_positions, rope.low_freq_factor, rope.high_freq_factor,
                              rope.beta_fast, rope.beta_slow}) {
    hash.add_real(number);
  }
  hash.add_number(rope.truncate ? 1 : 0);
  for (const auto& optional : {rope.attention_factor, rope.mscale, rope.mscale_all_dim}) {
    hash.add_number(optional ? 1 : 0);
    hash.add_real(optional.value_or(0));
  }
  hash.add_number(static_cast<std::int64_t>(rope.frequency_divisors.size()));
  hash.add(std::as_bytes(std::span(rope.frequency_divisors)));
}

void add_experts(ContentHash& hash, const ExpertsConfig& experts) {
  for (const std::int64_t number :
       {std::int64_t{experts.count}, std::int64_t{experts.per_token}, std::int64_t{experts.groups},
        std::int64_t{experts.top_groups}, static_cast<std::int64_t>(experts.group_score),
        static_cast<std::int64_t>(experts.router), std::int64_t{experts.correction_bias},
        std::int64_t{experts.normalised}, std::int64_t{experts.shared}}) {
    hash.add_number(number);
  }
  hash.add_real(experts.scaling_factor);
  for (const bool sparse : experts.sparse_layer) hash.add_number(sparse ? 1 : 0);
}

void add_indexer(ContentHash& hash, const IndexerConfig& indexer) {
  for (const std::int64_t number : {std::int64_t{indexer.heads}, std::int64_t{indexer.dim}, std::int64_t{indexer.top_k},
                                    std::int64_t{indexer.interleaved_rope}}) {
    hash.add_number(number);
  }
  for (const bool full : indexer.full_layer) hash.add_number(full ? 1 : 0);
}

// Sizes that show in the tensors' shapes are left out.
void add_config(ContentHash& hash, const ModelConfig& config) {
  hash.add_text(architecture_name(config.architecture));
  for (const std::int64_t number : {config.layers, config.heads, config.kv_heads, config.head_dim, config.rotary_dim}) {
    hash.add_number(number);
  }
  hash.add_real(config.rms_epsilon);
  hash.add_real(config.rope_theta);
  add_rope(hash, config.rope_scaling);
  if (config.latent) {
    hash.add_number(config.latent->nope_dim);
    hash.add_number(config.latent->rope_dim);
    hash.add_number(config.latent->interleaved_rope ? 1 : 0);
  }
  if (config.experts) add_experts(hash, *config.experts);
  if (config.indexer) add_indexer(hash, *config.indexer);
}

// All of `data`, or pieces that add up to `share`.
void add_content(ContentHash& hash, std::span<const std::byte> data, std::size_t share) {
  hash.add_number(static_cast<std::int64_t>(data.size()));
  if (data.size() <= share) {
    hash.add(data);
    return;
  }
  const std::size_t piece = share / kPieces;
  for (std::size_t i = 0; i + 1 < kPieces; ++i) {
    hash.add(data.subspan((data.size() - piece) / (kPieces - 1) * i, piece));
  }
  hash.add(data.last(piece));
}

}  // namespace

Hash128 fingerprint(const Checkpoint& checkpoint) {
  ContentHash hash;
  add_config(hash, checkpoint.config());
  const auto tensors = expected_tensors(checkpoint.config());
  std::size_t bytes = 0;
  for (const auto& expected : tensors) {
    if (const auto* tensor = checkpoint.find(expected.name)) bytes += tensor->data.size();
  }
  const std::size_t share = bytes <= kWholeBytes ? bytes : std::max(kLeastShare, kWholeBytes / tensors.size());
  for (const auto& expected : tensors) {
    const auto* tensor = checkpoint.find(expected.name);
    if (tensor == nullptr) continue;
    hash.add_text(expected.name);
    hash.add_text(tensor->info.type);
    for (const std::int64_t dimension : tensor->info.shape) hash.add_number(dimension);
    add_content(hash, tensor->data, share);
    if (tensor->scales) add_content(hash, tensor->scales->data, share);
  }
  return hash.finish();
}

}  // namespace hotset::model
