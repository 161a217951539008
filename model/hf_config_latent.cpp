#include "model/hf_config_latent.h"

#include <algorithm>

#include "core/concat.h"
#include "model/printable.h"

namespace hotset::model {
namespace {

using Layers = std::vector<bool>;

// Training, placement and the draft layers: nothing that the forward pass needs. auto_map names DeepSeek's own code.
constexpr std::string_view kIgnored[] = {
    "auto_map", "aux_loss_alpha", "ep_size", "index_share_for_mtp_iteration", "router_aux_loss_coef", "seq_aux"};

// They mean nothing where n_routed_experts is null.
constexpr std::string_view kOfExperts[] = {
    "moe_intermediate_size", "n_group",      "n_shared_experts", "norm_topk_prob", "num_experts_per_tok",
    "routed_scaling_factor", "scoring_func", "topk_group",       "topk_method"};

void refuse_value(JsonOptions& options, std::string_view key, std::string_view value) {
  options.unsupported(key, concat("is ", printable(value), ", which is not supported for this architecture"));
}

bool has_indexer(Architecture architecture) {
  return architecture == Architecture::kDeepseekV32 || architecture == Architecture::kGlmMoeDsa;
}

// One name for each layer, of which `yes` means true and `no` false.
Layers flags_of(JsonOptions& options, std::string_view key, const std::vector<std::string>& names,
                const ModelConfig& config, std::string_view yes, std::string_view no) {
  if (names.size() != static_cast<std::size_t>(config.layers)) {
    options.unsupported(key, concat("names ", names.size(), " layers of ", config.layers));
  }
  Layers out;
  for (const auto& name : names) {
    if (name != yes && name != no) refuse_value(options, key, name);
    out.push_back(name == yes);
  }
  return out;
}

void parse_layer_types(JsonOptions& options, const ModelConfig& config) {
  const auto types = options.texts("layer_types");
  if (!types) return;
  const std::string_view wanted = has_indexer(config.architecture) ? "deepseek_sparse_attention" : "full_attention";
  for (const auto& type : *types) {
    if (type != wanted) refuse_value(options, "layer_types", type);
  }
}

LatentConfig parse_latent(JsonOptions& options) {
  LatentConfig latent;
  latent.q_rank = options.small_integer("q_lora_rank").value_or(0);
  latent.kv_rank = options.required_small_integer("kv_lora_rank");
  latent.nope_dim = options.required_small_integer("qk_nope_head_dim");
  latent.rope_dim = options.required_small_integer("qk_rope_head_dim");
  latent.value_dim = options.required_small_integer("v_head_dim");
  latent.interleaved_rope = options.boolean("rope_interleave").value_or(true);
  return latent;
}

Layers sparse_layers(JsonOptions& options, const ModelConfig& config) {
  const bool v2 = config.architecture == Architecture::kDeepseekV2;
  const auto first = options.integer("first_k_dense_replace").value_or(v2 ? 0 : 3);
  const auto frequency = options.integer("moe_layer_freq").value_or(1);
  if (frequency < 1) options.unsupported("moe_layer_freq", "is less than 1");
  const auto types = options.texts("mlp_layer_types");
  if (types) return flags_of(options, "mlp_layer_types", *types, config, "sparse", "dense");
  Layers out;
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    out.push_back(layer >= first && layer % std::max<std::int64_t>(frequency, 1) == 0);
  }
  return out;
}

// DeepSeek-V2 (arXiv 2405.04434, section 2.2.1): softmax over all experts, groups ranked by their best one, the chosen
// scores times the factor. Its code disagrees with transformers' about normalised scores, and no published model has
// them.
void parse_softmax_router(JsonOptions& options, ExpertsConfig& experts) {
  const auto scoring = options.text("scoring_func").value_or("softmax");
  if (scoring != "softmax") refuse_value(options, "scoring_func", scoring);
  const auto method = options.text("topk_method").value_or("greedy");
  if (method != "greedy" && method != "group_limited_greedy") refuse_value(options, "topk_method", method);
  const auto groups = options.small_integer("n_group");
  const auto top_groups = options.small_integer("topk_group");
  if (method == "group_limited_greedy") {
    experts.groups = groups.value_or(0);
    experts.top_groups = top_groups.value_or(0);
  }
  experts.router = ExpertsConfig::Router::kSoftmax;
  experts.group_score = ExpertsConfig::GroupScore::kBest;
  experts.normalised = options.boolean("norm_topk_prob").value_or(false);
  if (experts.normalised)
    options.unsupported("norm_topk_prob", "is true, which is not supported for this architecture");
  experts.scaling_factor = options.number("routed_scaling_factor").value_or(1.0);
}

// DeepSeek-V3 (arXiv 2412.19437, section 2.1.2).
void parse_sigmoid_router(JsonOptions& options, ExpertsConfig& experts) {
  const auto scoring = options.text("scoring_func").value_or("sigmoid");
  if (scoring != "sigmoid") refuse_value(options, "scoring_func", scoring);
  const auto method = options.text("topk_method").value_or("noaux_tc");
  if (method != "noaux_tc") refuse_value(options, "topk_method", method);
  experts.router = ExpertsConfig::Router::kSigmoid;
  experts.group_score = ExpertsConfig::GroupScore::kTopTwoSum;
  experts.correction_bias = true;
  experts.groups = options.required_small_integer("n_group");
  experts.top_groups = options.required_small_integer("topk_group");
  experts.normalised = options.boolean("norm_topk_prob").value_or(true);
  const auto factor = options.number("routed_scaling_factor");
  if (!factor) options.fail(corrupt("option routed_scaling_factor is missing"));
  experts.scaling_factor = factor.value_or(1.0);
}

std::optional<ExpertsConfig> parse_experts(JsonOptions& options, const ModelConfig& config) {
  const auto count = options.small_integer("n_routed_experts");
  auto layers = sparse_layers(options, config);
  if (!count) {
    for (const auto key : kOfExperts) static_cast<void>(options.find(key));
    if (options.find("mlp_layer_types") != nullptr && std::ranges::count(layers, true) > 0) {
      options.fail(corrupt("option n_routed_experts is missing"));
    }
    return std::nullopt;
  }
  ExpertsConfig experts;
  experts.count = *count;
  experts.sparse_layer = std::move(layers);
  experts.per_token = options.required_small_integer("num_experts_per_tok");
  experts.intermediate = options.required_integer("moe_intermediate_size");
  experts.shared = options.small_integer("n_shared_experts").value_or(0);
  if (config.architecture == Architecture::kDeepseekV2) {
    parse_softmax_router(options, experts);
  } else {
    parse_sigmoid_router(options, experts);
  }
  if (std::ranges::count(experts.sparse_layer, true) == 0) return std::nullopt;
  return experts;
}

// Layers with an indexer of their own. In order of precedence: a list of names, a pattern of the letters F and S (or a
// list of names again), all layers before `offset` and from the last of them on every frequency-th.
Layers full_layers(JsonOptions& options, const ModelConfig& config) {
  const auto types = options.texts("indexer_types");
  const auto* pattern = options.find("index_topk_pattern");
  const auto frequency = std::max<std::int64_t>(options.integer("index_topk_freq").value_or(1), 1);
  const std::int64_t offset = options.small_integer("index_skip_topk_offset").value_or(2);
  if (types) return flags_of(options, "indexer_types", *types, config, "full", "shared");
  if (pattern != nullptr && pattern->is_string()) {
    std::vector<std::string> letters;
    for (const char letter : pattern->get_ref<const std::string&>()) letters.emplace_back(1, letter);
    return flags_of(options, "index_topk_pattern", letters, config, "F", "S");
  }
  if (pattern != nullptr) {
    return flags_of(options, "index_topk_pattern",
                    options.texts("index_topk_pattern").value_or(std::vector<std::string>()), config, "full", "shared");
  }
  Layers out;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    out.push_back(std::max<std::int64_t>(layer - offset + 1, 0) % frequency == 0);
  }
  return out;
}

IndexerConfig parse_indexer(JsonOptions& options, const ModelConfig& config) {
  const bool glm = config.architecture == Architecture::kGlmMoeDsa;
  IndexerConfig indexer;
  indexer.heads = options.required_small_integer("index_n_heads");
  indexer.dim = options.required_small_integer("index_head_dim");
  indexer.top_k = options.required_small_integer("index_topk");
  indexer.interleaved_rope = options.boolean("indexer_rope_interleave").value_or(glm);
  indexer.full_layer = glm ? full_layers(options, config) : Layers(static_cast<std::size_t>(config.layers), true);
  return indexer;
}

}  // namespace

bool is_latent_family(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kQwen2:
    case Architecture::kQwen3: return false;
    case Architecture::kDeepseekV2:
    case Architecture::kDeepseekV3:
    case Architecture::kDeepseekV32:
    case Architecture::kGlmMoeDsa: break;
  }
  return true;
}

void parse_latent_family(JsonOptions& options, ModelConfig& config) {
  // Here, because lists of one entry a layer are built below.
  if (config.layers < 1 || config.layers > kMaxLayers) {
    options.unsupported("num_hidden_layers", concat("is outside 1 to ", kMaxLayers));
    return;
  }
  for (const auto key : kIgnored) static_cast<void>(options.find(key));
  // Files put the rope part's width, or nothing that is used, into head_dim.
  static_cast<void>(options.integer("head_dim"));
  const auto latent = parse_latent(options);
  const auto head_dim = std::int64_t{latent.nope_dim} + latent.rope_dim;
  if (options.integer("qk_head_dim").value_or(head_dim) != head_dim) {
    options.unsupported("qk_head_dim", "is not the sum of qk_nope_head_dim and qk_rope_head_dim");
  }
  config.head_dim = options.narrow("qk_nope_head_dim", head_dim);
  config.rotary_dim = latent.rope_dim;
  config.latent = latent;
  config.mtp_layers = options.small_integer("num_nextn_predict_layers").value_or(0);
  parse_layer_types(options, config);
  config.experts = parse_experts(options, config);
  if (has_indexer(config.architecture)) config.indexer = parse_indexer(options, config);
}

}  // namespace hotset::model
