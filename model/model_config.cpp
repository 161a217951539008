#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::model {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocabulary = 4 << 20;
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxHeadDim = 512;
constexpr std::int64_t kMaxRank = 1 << 14;
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxExpertsOfAllLayers = 1 << 17;  // each is three tensors with a name
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 30;
constexpr double kMaxFactor = 1e6;

Result<void> in_range(std::string_view option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(concat(option, " is ", value, ", outside ", low, " to ", high), std::string(option));
}

// Negated comparisons, so that a NaN is refused.
Result<void> real_in_range(std::string_view option, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return invalid_argument(concat(option, " is ", value, ", outside ", low, " to ", high), std::string(option));
}

struct Range {
  std::string_view option;
  std::int64_t value;
  std::int64_t high;
  std::int64_t low = 1;
};
Result<void> all_in_range(std::initializer_list<Range> ranges) {
  for (const auto& range : ranges) {
    if (auto ok = in_range(range.option, range.value, range.low, range.high); !ok) return ok;
  }
  return {};
}

Result<void> check_sizes(const ModelConfig& config) {
  auto ok = all_in_range({
      {"vocab_size", config.vocabulary, kMaxVocabulary},
      {"hidden_size", config.hidden, kMaxWidth},
      {"intermediate_size", config.intermediate, kMaxWidth},
      {"num_hidden_layers", config.layers, kMaxLayers},
      {"num_attention_heads", config.heads, kMaxHeads},
      {"num_key_value_heads", config.kv_heads, kMaxHeads},
      {"head_dim", config.head_dim, kMaxHeadDim},
      {"rotary_dim", config.rotary_dim, config.head_dim},
      {"max_position_embeddings", config.max_positions, kMaxPositions},
      {"num_nextn_predict_layers", config.mtp_layers, kMaxLayers, 0},
  });
  if (!ok) return ok;
  if (config.heads % config.kv_heads != 0) {
    return invalid_argument("num_attention_heads is not a multiple of num_key_value_heads", "num_key_value_heads");
  }
  if (config.head_dim % 2 != 0) return invalid_argument("head_dim is odd", "head_dim");
  if (config.rotary_dim % 2 != 0) return invalid_argument("rotary_dim is odd", "rotary_dim");
  return {};
}

Result<void> check_rope(const ModelConfig& config) {
  const auto& rope = config.rope_scaling;
  struct RealRange {
    std::string_view option;
    double value;
    double low;
    double high;
  };
  std::vector<RealRange> ranges = {{"rope_theta", config.rope_theta, 1.0 + 1e-6, 1e15}};
  if (rope.type != RopeType::kDefault) ranges.push_back({"rope_scaling.factor", rope.factor, 1.0, kMaxFactor});
  if (rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn) {
    ranges.push_back({"rope_scaling.original_max_position_embeddings", rope.original_max_positions, 1.0,
                      static_cast<double>(kMaxPositions)});
  }
  if (rope.type == RopeType::kLlama3) {
    ranges.push_back({"rope_scaling.low_freq_factor", rope.low_freq_factor, 1e-6, kMaxFactor});
    ranges.push_back(
        {"rope_scaling.high_freq_factor", rope.high_freq_factor, rope.low_freq_factor + 1e-6, 2 * kMaxFactor});
  }
  if (rope.type == RopeType::kYarn) {
    ranges.push_back({"rope_scaling.beta_slow", rope.beta_slow, 1e-6, kMaxFactor});
    ranges.push_back({"rope_scaling.beta_fast", rope.beta_fast, rope.beta_slow, kMaxFactor});
    ranges.push_back({"rope_scaling.attention_factor", rope.attention_factor.value_or(1.0), 1e-6, kMaxFactor});
    ranges.push_back({"rope_scaling.mscale", rope.mscale.value_or(0.0), 0.0, kMaxFactor});
    ranges.push_back({"rope_scaling.mscale_all_dim", rope.mscale_all_dim.value_or(0.0), 0.0, kMaxFactor});
  }
  for (const auto& range : ranges) {
    if (auto ok = real_in_range(range.option, range.value, range.low, range.high); !ok) return ok;
  }
  if (!rope.frequency_divisors.empty() &&
      rope.frequency_divisors.size() != static_cast<std::size_t>(config.rotary_dim / 2)) {
    return invalid_argument("rope_freqs.weight does not hold one factor for each rotated pair of channels",
                            "rope_freqs");
  }
  for (const float divisor : rope.frequency_divisors) {
    if (auto ok = real_in_range("rope_freqs.weight", divisor, 1e-6, kMaxFactor); !ok) return ok;
  }
  return {};
}

Result<void> check_latent(const ModelConfig& config) {
  const auto& latent = *config.latent;
  auto ok = all_in_range({
      {"q_lora_rank", latent.q_rank, kMaxRank, 0},
      {"kv_lora_rank", latent.kv_rank, kMaxRank},
      {"qk_nope_head_dim", latent.nope_dim, kMaxHeadDim},
      {"qk_rope_head_dim", latent.rope_dim, kMaxHeadDim},
      {"v_head_dim", latent.value_dim, kMaxHeadDim},
  });
  if (!ok) return ok;
  if (latent.kv_rank % 16 != 0) return invalid_argument("kv_lora_rank is not a multiple of 16", "kv_lora_rank");
  if (latent.rope_dim % 2 != 0) return invalid_argument("qk_rope_head_dim is odd", "qk_rope_head_dim");
  if (config.head_dim != latent.nope_dim + latent.rope_dim || config.rotary_dim != latent.rope_dim) {
    return invalid_argument("the head's size is not the sum of qk_nope_head_dim and qk_rope_head_dim", "head_dim");
  }
  if (config.kv_heads != config.heads) {
    return invalid_argument("num_key_value_heads differs from num_attention_heads", "num_key_value_heads");
  }
  return {};
}

Result<void> check_experts(const ModelConfig& config) {
  const auto& experts = *config.experts;
  auto ok = all_in_range({
      {"n_routed_experts", experts.count, std::min(kMaxExperts, kMaxExpertsOfAllLayers / config.layers)},
      {"num_experts_per_tok", experts.per_token, experts.count},
      {"n_group", experts.groups, experts.count},
      {"topk_group", experts.top_groups, experts.groups},
      {"moe_intermediate_size", experts.intermediate, kMaxWidth},
      {"n_shared_experts", experts.shared, kMaxExperts, 0},
  });
  if (!ok) return ok;
  if (auto shared =
          in_range("n_shared_experts times moe_intermediate_size", experts.shared * experts.intermediate, 0, kMaxWidth);
      !shared) {
    return shared;
  }
  if (experts.count % experts.groups != 0)
    return invalid_argument("n_group does not divide n_routed_experts", "n_group");
  const auto group = experts.count / experts.groups;
  if (experts.groups > 1 && group < 2 && experts.group_score == ExpertsConfig::GroupScore::kTopTwoSum) {
    return invalid_argument("n_group leaves less than two experts for each group", "n_group");
  }
  if (std::int64_t{group} * experts.top_groups < experts.per_token) {
    return invalid_argument("topk_group groups hold fewer experts than num_experts_per_tok", "topk_group");
  }
  if (auto real = real_in_range("routed_scaling_factor", experts.scaling_factor, 1e-6, kMaxFactor); !real) return real;
  if (experts.sparse_layer.size() != static_cast<std::size_t>(config.layers)) {
    return invalid_argument("mlp_layer_types does not name every layer", "mlp_layer_types");
  }
  return {};
}

Result<void> check_indexer(const ModelConfig& config) {
  const auto& indexer = *config.indexer;
  auto ok = all_in_range({
      {"index_n_heads", indexer.heads, kMaxHeads},
      {"index_head_dim", indexer.dim, kMaxHeadDim},
      {"index_topk", indexer.top_k, kMaxPositions},
  });
  if (!ok) return ok;
  if (!config.latent || config.latent->q_rank < 1) {
    return invalid_argument("an indexer needs q_lora_rank", "q_lora_rank");
  }
  if (indexer.dim % 16 != 0) return invalid_argument("index_head_dim is not a multiple of 16", "index_head_dim");
  if (indexer.dim < config.latent->rope_dim) {
    return invalid_argument("index_head_dim is less than qk_rope_head_dim", "index_head_dim");
  }
  if (indexer.full_layer.size() != static_cast<std::size_t>(config.layers)) {
    return invalid_argument("indexer_types does not name every layer", "indexer_types");
  }
  if (!indexer.full_layer[0]) {
    return invalid_argument("indexer_types: the first layer has no earlier one to share a selection with",
                            "indexer_types");
  }
  return {};
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama: return "llama";
    case Architecture::kMistral: return "mistral";
    case Architecture::kQwen2: return "qwen2";
    case Architecture::kQwen3: return "qwen3";
    case Architecture::kDeepseekV2: return "deepseek_v2";
    case Architecture::kDeepseekV3: return "deepseek_v3";
    case Architecture::kDeepseekV32: return "deepseek_v32";
    case Architecture::kGlmMoeDsa: return "glm_moe_dsa";
  }
  check_failed(__FILE__, __LINE__, "architecture", "not a value of the enum");
}

Result<void> check_model_config(const ModelConfig& config) {
  if (auto ok = check_sizes(config); !ok) return ok;
  if (auto ok = real_in_range("rms_norm_eps", config.rms_epsilon, 0.0, 1.0); !ok) return ok;
  if (auto ok = check_rope(config); !ok) return ok;
  if (config.latent) {
    if (auto ok = check_latent(config); !ok) return ok;
  }
  if (config.experts) {
    if (auto ok = check_experts(config); !ok) return ok;
  }
  if (config.indexer) {
    if (auto ok = check_indexer(config); !ok) return ok;
  }
  if (config.bos_token) {
    if (auto ok = in_range("bos_token_id", *config.bos_token, 0, config.vocabulary - 1); !ok) return ok;
  }
  for (const auto eos : config.eos_tokens) {
    if (auto ok = in_range("eos_token_id", eos, 0, config.vocabulary - 1); !ok) return ok;
  }
  return {};
}

}  // namespace hotset::model
