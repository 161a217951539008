#include "model/model_config.h"

#include <cmath>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::model {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxVocabulary = 4 << 20;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxHeads = 1024;
constexpr std::int64_t kMaxHeadDim = 512;
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

Result<void> check_sizes(const ModelConfig& config) {
  struct Range {
    std::string_view option;
    std::int64_t value;
    std::int64_t high;
  };
  const Range ranges[] = {
      {"vocab_size", config.vocabulary, kMaxVocabulary},
      {"hidden_size", config.hidden, kMaxWidth},
      {"intermediate_size", config.intermediate, kMaxWidth},
      {"num_hidden_layers", config.layers, kMaxLayers},
      {"num_attention_heads", config.heads, kMaxHeads},
      {"num_key_value_heads", config.kv_heads, kMaxHeads},
      {"head_dim", config.head_dim, kMaxHeadDim},
      {"rotary_dim", config.rotary_dim, config.head_dim},
      {"max_position_embeddings", config.max_positions, kMaxPositions},
  };
  for (const auto& range : ranges) {
    if (auto ok = in_range(range.option, range.value, 1, range.high); !ok) return ok;
  }
  if (config.heads % config.kv_heads != 0) {
    return invalid_argument("num_attention_heads is not a multiple of num_key_value_heads", "num_key_value_heads");
  }
  if (config.head_dim % 2 != 0) return invalid_argument("head_dim is odd", "head_dim");
  if (config.rotary_dim % 2 != 0) return invalid_argument("rotary_dim is odd", "rotary_dim");
  return {};
}

Result<void> check_rope(const ModelConfig& config) {
  const auto& rope = config.rope_scaling;
  struct Range {
    std::string_view option;
    double value;
    double low;
    double high;
  };
  std::vector<Range> ranges = {{"rope_theta", config.rope_theta, 1.0 + 1e-6, 1e15}};
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
  if (config.bos_token) {
    if (auto ok = in_range("bos_token_id", *config.bos_token, 0, config.vocabulary - 1); !ok) return ok;
  }
  for (const auto eos : config.eos_tokens) {
    if (auto ok = in_range("eos_token_id", eos, 0, config.vocabulary - 1); !ok) return ok;
  }
  return {};
}

}  // namespace hotset::model
