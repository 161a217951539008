#include "model/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/concat.h"
#include "model/float_conversion.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

struct Family {
  std::string_view name;
  Architecture architecture;
};
constexpr std::array kFamilies = {
    Family{"llama", Architecture::kLlama},
    Family{"qwen2", Architecture::kQwen2},
    Family{"qwen3", Architecture::kQwen3},
};

// Reads "<architecture>.<option>", keeps the first error, and remembers what was read.
class FamilyOptions {
 public:
  FamilyOptions(const GgufMetadata& metadata, std::string prefix) : metadata_(metadata), prefix_(std::move(prefix)) {}

  std::optional<std::int64_t> integer(std::string_view option) { return take(metadata_.integer(key(option))); }
  std::optional<double> number(std::string_view option) { return take(metadata_.number(key(option))); }
  std::optional<bool> boolean(std::string_view option) { return take(metadata_.boolean(key(option))); }
  std::optional<std::string_view> text(std::string_view option) { return take(metadata_.string(key(option))); }
  std::int64_t required(std::string_view option) {
    const auto value = integer(option);
    if (!value) fail(corrupt(concat("GGUF metadata ", key(option), " is missing")));
    return value.value_or(0);
  }
  std::int32_t small(std::string_view option, std::int64_t value) {
    if (value >= 0 && value <= std::numeric_limits<std::int32_t>::max()) return static_cast<std::int32_t>(value);
    unsupported(option, "is out of range");
    return 0;
  }
  void unsupported(std::string_view option, std::string_view why) {
    const auto name = concat(prefix_, option);
    fail(invalid_argument(concat("option ", name, " ", why), name));
  }
  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }
  // Options of this family that nobody asked for.
  void refuse_unread() {
    for (const auto name : metadata_.keys()) {
      if (name.starts_with(prefix_) && !read_.contains(name)) {
        unsupported(printable(name.substr(prefix_.size())), "is not known");
      }
    }
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  const std::string& key(std::string_view option) { return *read_.insert(concat(prefix_, option)).first; }
  template <class T>
  std::optional<T> take(Result<std::optional<T>> value) {
    if (value) return std::move(value).value();
    fail(value.error());
    return std::nullopt;
  }

  const GgufMetadata& metadata_;
  std::string prefix_;
  std::set<std::string, std::less<>> read_;
  std::optional<Error> error_;
};

void parse_sizes(FamilyOptions& options, const GgufFile& file, ModelConfig& config) {
  config.hidden = options.required("embedding_length");
  config.intermediate = options.required("feed_forward_length");
  config.max_positions = options.required("context_length");
  config.layers = options.small("block_count", options.required("block_count"));
  config.heads = options.small("attention.head_count", options.required("attention.head_count"));
  config.kv_heads =
      options.small("attention.head_count_kv", options.integer("attention.head_count_kv").value_or(config.heads));
  const auto epsilon = options.number("attention.layer_norm_rms_epsilon");
  if (!epsilon) options.fail(corrupt("GGUF metadata attention.layer_norm_rms_epsilon is missing"));
  config.rms_epsilon = epsilon.value_or(0.0);

  const auto key_length = options.integer("attention.key_length");
  if (!key_length && (config.heads < 1 || config.hidden % config.heads != 0)) {
    options.unsupported("attention.head_count", "does not divide embedding_length and attention.key_length is missing");
  }
  config.head_dim =
      options.small("attention.key_length", key_length.value_or(config.hidden / std::max(config.heads, 1)));
  if (options.integer("attention.value_length").value_or(config.head_dim) != config.head_dim) {
    options.unsupported("attention.value_length", "differs from attention.key_length, which is not supported");
  }
  config.rotary_dim = config.head_dim;
  if (options.integer("rope.dimension_count").value_or(config.head_dim) != config.head_dim) {
    options.unsupported("rope.dimension_count", "differs from the head's size, which is not supported");
  }

  const auto embedding = file.tensors.find("token_embd.weight");
  if (embedding == file.tensors.end() || embedding->second.shape.size() != 2) {
    options.fail(corrupt("tensor token_embd.weight is missing or no matrix"));
    return;
  }
  config.vocabulary = embedding->second.shape[0];
  if (options.integer("vocab_size").value_or(config.vocabulary) != config.vocabulary) {
    options.fail(corrupt("GGUF metadata vocab_size differs from the rows of token_embd.weight"));
  }
}

// YaRN as llama.cpp computes it: attn_factor times the paper's magnitude.
void parse_yarn(FamilyOptions& options, RopeScaling& rope) {
  rope.type = RopeType::kYarn;
  rope.beta_fast = options.number("rope.scaling.yarn_beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = options.number("rope.scaling.yarn_beta_slow").value_or(rope.beta_slow);
  const double attention = options.number("rope.scaling.attn_factor").value_or(1.0);
  rope.attention_factor = attention * (1.0 + 0.1 * std::log(std::max(rope.factor, 1.0)));
  if (options.number("rope.scaling.yarn_ext_factor").value_or(1.0) != 1.0) {
    options.unsupported("rope.scaling.yarn_ext_factor", "other than 1 is not supported");
  }
  if (options.number("rope.scaling.yarn_attn_factor").value_or(1.0) != 1.0) {
    options.unsupported("rope.scaling.yarn_attn_factor", "other than 1 is not supported");
  }
}

void parse_rope(FamilyOptions& options, const GgufFile& file, ModelConfig& config) {
  auto& rope = config.rope_scaling;
  config.rope_theta = options.number("rope.freq_base").value_or(10000.0);
  const auto type = options.text("rope.scaling.type");
  // Files from before rope.scaling.* held linear scaling alone, under this key.
  const auto old_factor = options.number("rope.scale_linear");
  rope.factor = options.number("rope.scaling.factor").value_or(old_factor.value_or(1.0));
  const auto original = options.integer("rope.scaling.original_context_length");
  rope.original_max_positions = static_cast<double>(original.value_or(config.max_positions));
  static_cast<void>(
      options.boolean("rope.scaling.finetuned"));  // says how the weights were made, not how they are used
  if (!type ? rope.factor != 1.0 : *type == "linear") {
    rope.type = RopeType::kLinear;
  } else if (type && *type == "yarn") {
    parse_yarn(options, rope);
  } else if (type && *type != "none") {
    options.unsupported("rope.scaling.type", concat("is ", printable(*type), ", which is not supported"));
  }
  if (rope.type == RopeType::kDefault) rope.factor = 1.0;

  const auto divisors = file.tensors.find("rope_freqs.weight");
  if (divisors == file.tensors.end()) return;
  auto values = to_float32(divisors->second.type, divisors->second.data);
  if (!values) {
    options.fail(corrupt("tensor rope_freqs.weight has a type that is not supported for it"));
    return;
  }
  rope.frequency_divisors = std::move(*values);
}

bool layer_tensor(const GgufFile& file, std::string_view name) { return file.tensors.contains(concat("blk.0.", name)); }

void parse_flags(FamilyOptions& options, const GgufFile& file, ModelConfig& config) {
  config.qkv_bias = config.architecture == Architecture::kQwen2 || layer_tensor(file, "attn_q.bias");
  config.o_bias = layer_tensor(file, "attn_output.bias");
  config.mlp_bias = layer_tensor(file, "ffn_gate.bias");
  config.qk_norm = config.architecture == Architecture::kQwen3;
  config.tied_embeddings = !file.tensors.contains("output.weight");
  for (const std::string_view count : {"expert_count", "expert_used_count"}) {
    if (options.integer(count).value_or(0) != 0) options.unsupported(count, "is not supported");
  }
  const auto window = options.integer("attention.sliding_window");
  if (window && *window > 0 && *window < config.max_positions) {
    options.unsupported("attention.sliding_window", "is in use, which is not supported");
  }
  static_cast<void>(
      options.text("tensor_data_layout"));  // "Meta AI original pth": the adjacent-pair order of all files
}

Result<void> parse_special_tokens(const GgufMetadata& metadata, ModelConfig& config) {
  const auto token = [&](std::string_view key) -> Result<std::optional<std::int32_t>> {
    auto id = metadata.integer(key);
    if (!id) return id.error();
    if (!id.value()) return std::optional<std::int32_t>();
    if (*id.value() < 0 || *id.value() >= config.vocabulary) {
      return corrupt(concat("GGUF metadata ", key, " is no token of the vocabulary"));
    }
    return std::optional(static_cast<std::int32_t>(*id.value()));
  };
  auto bos = token("tokenizer.ggml.bos_token_id");
  if (!bos) return bos.error();
  config.bos_token = bos.value();
  for (const std::string_view name : {"eos", "eot", "eom"}) {
    auto end = token(concat("tokenizer.ggml.", name, "_token_id"));
    if (!end) return end.error();
    if (end.value() &&
        std::find(config.eos_tokens.begin(), config.eos_tokens.end(), *end.value()) == config.eos_tokens.end()) {
      config.eos_tokens.push_back(*end.value());
    }
  }
  return {};
}

Result<void> check_single_file(const GgufMetadata& metadata) {
  auto count = metadata.integer("split.count");
  if (!count) return count.error();
  if (count.value().value_or(0) > 1) {
    return invalid_argument("GGUF files split into parts (split.count) are not supported; merge them first",
                            "split.count");
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_gguf_config(const GgufFile& file) {
  const auto& metadata = *file.metadata;
  auto name = metadata.string("general.architecture");
  if (!name) return name.error();
  if (!name.value()) return corrupt("GGUF metadata general.architecture is missing");
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& entry) { return entry.name == *name.value(); });
  if (family == kFamilies.end()) {
    return invalid_argument(concat("architecture ", printable(*name.value()), " is not supported"),
                            "general.architecture");
  }
  if (auto single = check_single_file(metadata); !single) return single.error();
  auto title = metadata.string("general.name");
  if (!title) return title.error();

  ModelConfig config;
  config.architecture = family->architecture;
  config.name = title.value().value_or("");
  FamilyOptions options(metadata, concat(family->name, "."));
  parse_sizes(options, file, config);
  parse_rope(options, file, config);
  parse_flags(options, file, config);
  options.refuse_unread();
  if (options.error()) return *options.error();
  if (auto tokens = parse_special_tokens(metadata, config); !tokens) return tokens.error();
  if (auto ok = check_model_config(config); !ok) return ok.error();
  return config;
}

}  // namespace hotset::model
