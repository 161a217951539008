#include "model/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/concat.h"
#include "kernels/tensor.h"
#include "model/hf_config_latent.h"
#include "model/json_options.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

using nlohmann::json;

struct Family {
  std::string_view model_type;
  std::string_view class_name;
  Architecture architecture;
};
constexpr std::array kFamilies = {
    Family{"llama", "LlamaForCausalLM", Architecture::kLlama},
    Family{"mistral", "MistralForCausalLM", Architecture::kMistral},
    Family{"qwen2", "Qwen2ForCausalLM", Architecture::kQwen2},
    Family{"qwen3", "Qwen3ForCausalLM", Architecture::kQwen3},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", Architecture::kDeepseekV2},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", Architecture::kDeepseekV3},
    Family{"deepseek_v32", "DeepseekV32ForCausalLM", Architecture::kDeepseekV32},
    Family{"glm_moe_dsa", "GlmMoeDsaForCausalLM", Architecture::kGlmMoeDsa},
};

// Options that say nothing about the forward pass of these families: training, generation defaults, bookkeeping.
// clang-format off: one name a line would hide the code below.
constexpr std::string_view kIgnored[] = {
    "_attn_implementation_autoset", "_from_model_config", "_name_or_path", "add_cross_attention", "attention_dropout",
    "attention_probs_dropout_prob", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "chunk_size_feed_forward", "classifier_dropout", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "id2label", "initializer_factor", "initializer_range", "is_decoder",
    "is_encoder_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "length_penalty",
    "max_length", "max_sequence_length", "max_window_layers", "min_length", "model_max_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_logits_to_keep", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache"};
// clang-format on

Result<Architecture> parse_architecture(JsonOptions& options) {
  const auto model_type = options.text("model_type");
  const auto* classes = options.find("architectures");
  if (options.error()) return *options.error();
  if (!model_type) return corrupt("option model_type is missing");
  const auto* family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                    [&](const Family& entry) { return entry.model_type == *model_type; });
  if (family == kFamilies.end()) {
    return invalid_argument(concat("architecture ", printable(*model_type), " is not supported"), "model_type");
  }
  // A model of the same family with another head (a classifier, a reward model) has other tensors and another meaning.
  if (classes != nullptr) {
    if (!classes->is_array() || classes->empty() || !(*classes)[0].is_string()) {
      return corrupt("option architectures is not a list of names");
    }
    const auto name = (*classes)[0].get<std::string>();
    if (name != family->class_name) {
      return invalid_argument(concat("architecture ", printable(name), " is not supported"), "architectures");
    }
  }
  return family->architecture;
}

std::optional<RopeType> rope_type_of(std::string_view name) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  return std::nullopt;
}

void refuse_unread(JsonOptions& options) {
  for (const auto& key : options.unread()) {
    if (options.find(key) != nullptr) options.unsupported(key, "is not known");
  }
}

// Reads one rope object (rope_scaling or rope_parameters) into `config`; max_positions is the plain number so far.
Result<void> parse_rope_object(const json& object, std::string_view name, ModelConfig& config) {
  if (!object.is_object()) return corrupt(concat("option ", name, " is not an object"));
  JsonOptions options(object, concat(name, "."));
  auto& rope = config.rope_scaling;
  const auto old_spelling = options.text("type");
  const auto type = options.text("rope_type").value_or(old_spelling.value_or("default"));
  if (const auto known = rope_type_of(type)) {
    rope.type = *known;
  } else {
    options.unsupported("rope_type", concat("is ", printable(type), ", which is not supported"));
  }
  config.rope_theta = options.number("rope_theta").value_or(config.rope_theta);
  if (options.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    options.unsupported("partial_rotary_factor", "other than 1 is not supported");
  }
  const auto factor = options.number("factor");
  const auto original = options.number("original_max_position_embeddings");
  rope.original_max_positions = original.value_or(static_cast<double>(config.max_positions));
  rope.factor = factor.value_or(1.0);
  if (rope.type == RopeType::kYarn && !factor) {
    rope.factor = static_cast<double>(config.max_positions) / rope.original_max_positions;
  } else if (rope.type != RopeType::kDefault && !factor) {
    options.fail(corrupt(concat("option ", name, ".factor is missing")));
  }
  if (rope.type == RopeType::kLlama3) {
    const auto low = options.number("low_freq_factor");
    const auto high = options.number("high_freq_factor");
    if (!low || !high)
      options.fail(corrupt(concat("option ", name, ".low_freq_factor or high_freq_factor is missing")));
    rope.low_freq_factor = low.value_or(rope.low_freq_factor);
    rope.high_freq_factor = high.value_or(rope.high_freq_factor);
  }
  if (rope.type == RopeType::kYarn) {
    rope.beta_fast = options.number("beta_fast").value_or(rope.beta_fast);
    rope.beta_slow = options.number("beta_slow").value_or(rope.beta_slow);
    rope.truncate = options.boolean("truncate").value_or(rope.truncate);
    rope.attention_factor = options.number("attention_factor");
    rope.mscale = options.number("mscale");
    rope.mscale_all_dim = options.number("mscale_all_dim");
    static_cast<void>(options.find("finetuned"));
  }
  refuse_unread(options);
  if (options.error()) return *options.error();
  return {};
}

// linear and yarn stretch the positions; llama3's max_position_embeddings already counts the stretched ones.
void extend_positions(ModelConfig& config, bool original_given) {
  const auto& rope = config.rope_scaling;
  if (rope.type != RopeType::kLinear && rope.type != RopeType::kYarn) return;
  const double base = original_given ? rope.original_max_positions : static_cast<double>(config.max_positions);
  const double stretched = base * rope.factor;
  if (stretched > static_cast<double>(config.max_positions) && stretched < 1e9) {
    config.max_positions = static_cast<std::int64_t>(std::llround(stretched));
  }
}

Result<void> parse_rope(JsonOptions& options, ModelConfig& config) {
  config.rope_theta = options.number("rope_theta").value_or(config.rope_theta);
  if (options.number("partial_rotary_factor").value_or(1.0) != 1.0) {
    options.unsupported("partial_rotary_factor", "other than 1 is not supported");
  }
  // Where both spellings stand, the new one holds the whole truth.
  const auto* scaling = options.find("rope_scaling");
  const auto* parameters = options.find("rope_parameters");
  if (options.error()) return *options.error();
  const auto* rope = parameters != nullptr ? parameters : scaling;
  if (rope == nullptr) return {};
  const std::string_view name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (auto parsed = parse_rope_object(*rope, name, config); !parsed) return parsed;
  extend_positions(config, rope->contains("original_max_position_embeddings"));
  return {};
}

void parse_sizes(JsonOptions& options, ModelConfig& config) {
  config.vocabulary = options.required_integer("vocab_size");
  config.hidden = options.required_integer("hidden_size");
  config.intermediate = options.required_integer("intermediate_size");
  config.max_positions = options.required_integer("max_position_embeddings");
  config.layers = options.required_small_integer("num_hidden_layers");
  config.heads = options.required_small_integer("num_attention_heads");
  config.kv_heads = options.small_integer("num_key_value_heads").value_or(config.heads);
  config.rms_epsilon = options.number("rms_norm_eps").value_or(1e-6);
}

void parse_head_dim(JsonOptions& options, ModelConfig& config) {
  const auto head_dim = options.integer("head_dim");
  if (!head_dim && (config.heads < 1 || config.hidden % config.heads != 0)) {
    options.unsupported("num_attention_heads", "does not divide hidden_size and head_dim is missing");
    return;
  }
  config.head_dim = options.narrow("head_dim", head_dim.value_or(config.hidden / std::max(config.heads, 1)));
  config.rotary_dim = config.head_dim;
}

void parse_attention_window(JsonOptions& options, const ModelConfig& config) {
  const auto window = options.integer("sliding_window");
  const bool qwen = config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kQwen3;
  const bool wanted = options.boolean("use_sliding_window").value_or(!qwen);
  if (wanted && window && *window < config.max_positions) {
    options.unsupported("sliding_window", "is in use, which is not supported");
  }
  const auto* types = options.find("layer_types");
  if (types == nullptr) return;
  const bool full = types->is_array() && std::all_of(types->begin(), types->end(), [](const json& type) {
                      return type.is_string() && type.get_ref<const std::string&>() == "full_attention";
                    });
  if (!full) options.unsupported("layer_types", "other than full_attention are not supported");
}

void parse_flags(JsonOptions& options, ModelConfig& config) {
  const bool bias = options.boolean("attention_bias").value_or(false);
  switch (config.architecture) {
    case Architecture::kLlama:
      config.qkv_bias = config.o_bias = bias;
      config.mlp_bias = options.boolean("mlp_bias").value_or(false);
      break;
    case Architecture::kQwen3:
      config.qkv_bias = config.o_bias = bias;
      config.qk_norm = true;
      break;
    case Architecture::kQwen2: config.qkv_bias = true; break;
    case Architecture::kMistral:
    case Architecture::kDeepseekV2:
    case Architecture::kDeepseekV3:
    case Architecture::kDeepseekV32:
    case Architecture::kGlmMoeDsa:
      if (bias) options.unsupported("attention_bias", "is not supported for this architecture");
      break;
  }
  if (config.architecture != Architecture::kLlama && options.boolean("mlp_bias").value_or(false)) {
    options.unsupported("mlp_bias", "is not supported for this architecture");
  }
  const auto activation = options.text("hidden_act").value_or("silu");
  if (activation != "silu") {
    options.unsupported("hidden_act", concat("is ", printable(activation), ", which is not supported"));
  }
  if (options.boolean("rope_interleaved").value_or(false)) options.unsupported("rope_interleaved", "is not supported");
  config.tied_embeddings = options.boolean("tie_word_embeddings").value_or(false);
}

// DeepSeek's FP8: each matrix's own dtype says whether it is quantised, so the lists of those that are not say nothing
// new; whether activations are quantised is the backend's choice.
Result<void> parse_quantization(JsonOptions& config_options, ModelConfig& config) {
  const auto* object = config_options.find("quantization_config");
  if (object == nullptr) return {};
  if (!object->is_object()) return corrupt("option quantization_config is not an object");
  JsonOptions options(*object, "quantization_config.");
  const auto only = [&](std::string_view key, std::string_view wanted) {
    const auto value = options.text(key).value_or(std::string(wanted));
    if (value != wanted) options.unsupported(key, concat("is ", printable(value), ", which is not supported"));
  };
  if (options.find("quant_method") == nullptr)
    options.fail(corrupt("option quantization_config.quant_method is missing"));
  only("quant_method", "fp8");
  only("fmt", "e4m3");
  only("activation_scheme", "dynamic");
  if (options.integers("weight_block_size") != std::vector<std::int64_t>(2, kernels::kFp8Block)) {
    options.unsupported("weight_block_size", "other than [128, 128] is not supported");
  }
  for (const auto* key : {"ignored_layers", "modules_to_not_convert"}) static_cast<void>(options.texts(key));
  static_cast<void>(options.text("scale_fmt"));
  refuse_unread(options);
  if (options.error()) return *options.error();
  config.fp8_weights = true;
  return {};
}

void parse_special_tokens(JsonOptions& options, ModelConfig& config) {
  if (const auto bos = options.integer("bos_token_id")) config.bos_token = options.narrow("bos_token_id", *bos);
  const auto eos = options.integers("eos_token_id");
  if (!eos) return;
  config.eos_tokens.clear();
  for (const auto id : *eos) {
    const auto token = options.narrow("eos_token_id", id);
    if (std::find(config.eos_tokens.begin(), config.eos_tokens.end(), token) == config.eos_tokens.end()) {
      config.eos_tokens.push_back(token);
    }
  }
}

// An unknown option with a value that switches nothing on (null, false, a string) can't change the computation of a
// supported family; anything else might.
void refuse_unknown(JsonOptions& options) {
  for (const auto& key : options.unread()) {
    if (std::ranges::find(kIgnored, key) != std::end(kIgnored)) continue;
    const auto* value = options.find(key);
    if (value == nullptr || value->is_string() || (value->is_boolean() && !value->get<bool>())) continue;
    options.unsupported(key, "is not known for this architecture");
  }
}

}  // namespace

Result<ModelConfig> parse_hf_config(std::string_view config_json, std::string_view generation_json) {
  auto object = parse_json_object(config_json, "config.json");
  if (!object) return object.error();
  JsonOptions options(object.value(), "");
  ModelConfig config;
  auto architecture = parse_architecture(options);
  if (!architecture) return architecture.error();
  config.architecture = architecture.value();
  parse_sizes(options, config);
  if (is_latent_family(config.architecture)) {
    parse_latent_family(options, config);
  } else {
    parse_head_dim(options, config);
    parse_attention_window(options, config);
  }
  parse_flags(options, config);
  parse_special_tokens(options, config);
  if (options.error()) return *options.error();
  if (auto ok = parse_quantization(options, config); !ok) return ok.error();
  if (auto rope = parse_rope(options, config); !rope) return rope.error();
  refuse_unknown(options);
  if (options.error()) return *options.error();

  if (!generation_json.empty()) {
    auto generation = parse_json_object(generation_json, "generation_config.json");
    if (!generation) return generation.error();
    JsonOptions generation_options(generation.value(), "");
    parse_special_tokens(generation_options, config);
    if (generation_options.error()) return *generation_options.error();
  }
  if (auto ok = check_model_config(config); !ok) return ok.error();
  return config;
}

}  // namespace hotset::model
