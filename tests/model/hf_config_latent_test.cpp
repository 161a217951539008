// Configurations with latent attention. The published ones: config.json of the repositories named beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "model/checkpoint.h"
#include "model/hf_config.h"
#include "model/rope.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

using nlohmann::json;

// deepseek-ai/DeepSeek-V3.2-Exp.
const char* const kDeepseekV32 = R"({
  "architectures": ["DeepseekV32ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
  "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v32",
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                          "weight_block_size": [128, 128]},
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
  "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.44.2",
  "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})";

// deepseek-ai/DeepSeek-V2-Lite.
const char* const kDeepseekV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"}, "aux_loss_alpha": 0.001,
  "bos_token_id": 100000, "eos_token_id": 100001, "first_k_dense_replace": 1, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "moe_layer_freq": 1,
  "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 16,
  "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
                   "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy", "torch_dtype": "bfloat16",
  "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})";

// zai-org/GLM-5.2 without its list of indexer types.
const char* const kGlm = R"({
  "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "dtype": "bfloat16",
  "eos_token_id": [154820, 154827, 154829], "ep_size": 1, "first_k_dense_replace": 3, "head_dim": 192,
  "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32,
  "index_share_for_mtp_iteration": true, "index_skip_topk_offset": 3, "index_topk": 2048, "index_topk_freq": 4,
  "index_topk_pattern": null, "indexer_rope_interleave": true, "initializer_range": 0.02, "intermediate_size": 12288,
  "kv_lora_rank": 512, "max_position_embeddings": 1048576, "model_type": "glm_moe_dsa",
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "moe_router_dtype": "float32", "n_group": 1,
  "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64, "num_nextn_predict_layers": 1,
  "pad_token_id": 154820, "pretraining_tp": 1, "q_lora_rank": 2048, "qk_head_dim": 256, "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_interleave": true,
  "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
  "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
  "transformers_version": "5.0.2.dev0", "use_cache": true, "v_head_dim": 256, "vocab_size": 154880})";

json with(json object, const json& change) {
  object.update(change);
  return object;
}
json v32() { return json::parse(kDeepseekV32); }
json v2() { return json::parse(kDeepseekV2Lite); }
json glm() { return json::parse(kGlm); }
// deepseek-ai/DeepSeek-V3: the same numbers, no indexer.
json v3() {
  auto out = with(v32(), {{"architectures", {"DeepseekV3ForCausalLM"}}, {"model_type", "deepseek_v3"}});
  for (const auto* key : {"index_head_dim", "index_n_heads", "index_topk"}) out.erase(key);
  return out;
}

ModelConfig parsed(const json& object) {
  auto config = parse_hf_config(object.dump());
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? config.value() : ModelConfig{};
}
ModelConfig parsed_fixture(const std::string& name) {
  return parsed(json::parse(read_bytes(fixture(name) / "config.json")));
}

std::vector<std::int32_t> set_layers(const std::vector<bool>& flags) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) out.push_back(static_cast<std::int32_t>(i));
  }
  return out;
}
using Layers = std::vector<std::int32_t>;

double parameters(const ModelConfig& config) {
  double out = 0;
  for (const auto& tensor : expected_tensors(config)) {
    double size = 1;
    for (const auto dimension : tensor.shape) size *= static_cast<double>(dimension);
    out += size;
  }
  return out;
}

TEST(HfConfigLatentTest, DeepseekFixture) {
  const auto config = parsed_fixture("tiny-deepseek-v32");
  EXPECT_EQ(config.architecture, Architecture::kDeepseekV32);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 48);  // not the 16 of the file
  EXPECT_EQ(config.rotary_dim, 16);
  EXPECT_EQ(config.intermediate, 160);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kYarn);
  EXPECT_EQ(config.rope_scaling.factor, 40.0);
  EXPECT_EQ(config.rope_scaling.original_max_positions, 128.0);
  EXPECT_EQ(config.rope_scaling.mscale_all_dim, 1.0);
  EXPECT_EQ(config.mtp_layers, 0);

  const auto latent = config.latent.value();
  EXPECT_EQ(latent.q_rank, 64);
  EXPECT_EQ(latent.kv_rank, 64);
  EXPECT_EQ(latent.nope_dim, 32);
  EXPECT_EQ(latent.rope_dim, 16);
  EXPECT_EQ(latent.value_dim, 32);
  EXPECT_TRUE(latent.interleaved_rope);

  const auto experts = config.experts.value();
  EXPECT_EQ(experts.count, 8);
  EXPECT_EQ(experts.per_token, 2);
  EXPECT_EQ(experts.groups, 4);
  EXPECT_EQ(experts.top_groups, 2);
  EXPECT_EQ(experts.group_score, ExpertsConfig::GroupScore::kTopTwoSum);
  EXPECT_EQ(experts.router, ExpertsConfig::Router::kSigmoid);
  EXPECT_TRUE(experts.correction_bias && experts.normalised);
  EXPECT_EQ(experts.scaling_factor, 2.5);
  EXPECT_EQ(experts.intermediate, 48);
  EXPECT_EQ(experts.shared, 1);
  EXPECT_EQ(set_layers(experts.sparse_layer), (Layers{1, 2, 3}));

  const auto indexer = config.indexer.value();
  EXPECT_EQ(indexer.heads, 16);
  EXPECT_EQ(indexer.dim, 32);
  EXPECT_EQ(indexer.top_k, 16);
  EXPECT_FALSE(indexer.interleaved_rope);
  EXPECT_EQ(set_layers(indexer.full_layer), (Layers{0, 1, 2, 3}));
}

TEST(HfConfigLatentTest, GlmFixture) {
  const auto config = parsed_fixture("tiny-glm-dsa");
  EXPECT_EQ(config.architecture, Architecture::kGlmMoeDsa);
  EXPECT_EQ(config.head_dim, 48);
  EXPECT_EQ(config.latent.value().value_dim, 48);
  EXPECT_EQ(config.experts.value().groups, 1);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kDefault);
  EXPECT_TRUE(config.indexer.value().interleaved_rope);
  EXPECT_EQ(set_layers(config.indexer.value().full_layer), (Layers{0, 1, 3}));
  // The same without the list: from frequency 2 and offset 2.
  auto object = json::parse(read_bytes(fixture("tiny-glm-dsa") / "config.json"));
  object.erase("indexer_types");
  EXPECT_EQ(set_layers(parsed(object).indexer.value().full_layer), (Layers{0, 1, 3}));
}

TEST(HfConfigLatentTest, DeepseekV32) {
  const auto config = parsed(v32());
  EXPECT_EQ(config.layers, 61);
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.max_positions, 163840);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_TRUE(config.fp8_weights);
  EXPECT_FALSE(parsed(with(v32(), {{"quantization_config", nullptr}})).fp8_weights);
  EXPECT_EQ(config.latent.value().kv_rank, 512);
  EXPECT_EQ(config.experts.value().count, 256);
  EXPECT_EQ(config.experts.value().groups, 8);
  EXPECT_EQ(config.experts.value().top_groups, 4);
  EXPECT_EQ(set_layers(config.experts.value().sparse_layer).front(), 3);
  EXPECT_EQ(config.indexer.value().top_k, 2048);
  EXPECT_EQ(set_layers(config.indexer.value().full_layer).size(), 61U);
  EXPECT_NEAR(attention_scale(config), 0.13523377886088, 1e-12);
  EXPECT_EQ(parameters(config), 671'877'944'064.0);
}

TEST(HfConfigLatentTest, DeepseekV3) {
  const auto config = parsed(v3());
  EXPECT_EQ(config.architecture, Architecture::kDeepseekV3);
  EXPECT_FALSE(config.indexer);
  EXPECT_EQ(parameters(config), 671'026'419'200.0);  // "671B"
}

TEST(HfConfigLatentTest, DeepseekV2) {
  const auto config = parsed(v2());
  EXPECT_EQ(config.latent.value().q_rank, 0);
  EXPECT_FALSE(config.indexer);
  auto experts = config.experts.value();
  EXPECT_EQ(experts.router, ExpertsConfig::Router::kSoftmax);
  EXPECT_FALSE(experts.correction_bias || experts.normalised);
  EXPECT_EQ(experts.groups, 1);
  EXPECT_EQ(experts.top_groups, 1);
  EXPECT_EQ(experts.shared, 2);
  EXPECT_EQ(set_layers(experts.sparse_layer).size(), 26U);
  EXPECT_NEAR(attention_scale(config), 0.114721386792926, 1e-12);
  EXPECT_NEAR(make_rope(config).attention_factor, 1.0, 1e-6);
  EXPECT_EQ(parameters(config), 15'706'484'224.0);  // "15.7B"

  // As transformers 5 leaves out what is null.
  EXPECT_EQ(parsed(with(v2(), {{"n_group", nullptr}, {"topk_group", nullptr}})).experts.value().groups, 1);
  // deepseek-ai/DeepSeek-V2.
  experts = parsed(with(v2(), {{"topk_method", "group_limited_greedy"},
                               {"n_group", 8},
                               {"topk_group", 3},
                               {"n_routed_experts", 160},
                               {"routed_scaling_factor", 16.0},
                               {"q_lora_rank", 1536}}))
                .experts.value();
  EXPECT_EQ(experts.groups, 8);
  EXPECT_EQ(experts.top_groups, 3);
  EXPECT_EQ(experts.group_score, ExpertsConfig::GroupScore::kBest);
  EXPECT_EQ(experts.scaling_factor, 16.0);
}

TEST(HfConfigLatentTest, Glm) {
  const auto config = parsed(glm());
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 8e6);
  EXPECT_EQ(config.eos_tokens.size(), 3U);
  Layers full = {0, 1};
  for (std::int32_t layer = 2; layer < 78; layer += 4) full.push_back(layer);
  EXPECT_EQ(set_layers(config.indexer.value().full_layer), full);
  EXPECT_NEAR(attention_scale(config), 1.0 / 16, 1e-15);
}

TEST(HfConfigLatentTest, LayersWithAnIndexer) {
  const auto full = [](const json& change) {
    return set_layers(
        parsed(with(with(glm(),
                         {{"num_hidden_layers", 6}, {"index_topk_freq", nullptr}, {"index_skip_topk_offset", nullptr}}),
                    change))
            .indexer.value()
            .full_layer);
  };
  EXPECT_EQ(full(json::object()), (Layers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(full({{"index_topk_freq", 2}}), (Layers{0, 1, 3, 5}));
  EXPECT_EQ(full({{"index_topk_freq", 3}, {"index_skip_topk_offset", 1}}), (Layers{0, 3}));
  EXPECT_EQ(full({{"index_topk_freq", 0}}), (Layers{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(full({{"index_topk_pattern", "FFSSFS"}, {"index_topk_freq", 2}}), (Layers{0, 1, 4}));
  EXPECT_EQ(full({{"index_topk_pattern", {"full", "shared", "shared", "shared", "shared", "full"}}}), (Layers{0, 5}));
  EXPECT_EQ(full({{"indexer_types", {"full", "shared", "shared", "full", "shared", "shared"}},
                  {"index_topk_pattern", "FFFFFF"}}),
            (Layers{0, 3}));
}

TEST(HfConfigLatentTest, LayersWithExperts) {
  const auto sparse = [](const json& change) {
    const auto experts = parsed(with(with(v3(), {{"num_hidden_layers", 6}}), change)).experts;
    return experts ? set_layers(experts->sparse_layer) : Layers{};
  };
  EXPECT_EQ(sparse(json::object()), (Layers{3, 4, 5}));
  EXPECT_EQ(sparse({{"first_k_dense_replace", 1}, {"moe_layer_freq", 2}}), (Layers{2, 4}));
  EXPECT_EQ(sparse({{"mlp_layer_types", {"sparse", "dense", "dense", "dense", "sparse", "dense"}}}), (Layers{0, 4}));
  EXPECT_EQ(sparse({{"first_k_dense_replace", 6}}), Layers{});
  EXPECT_EQ(sparse({{"n_routed_experts", nullptr}}), Layers{});
}

TEST(HfConfigLatentTest, RopeOrderOfTheFile) {
  EXPECT_FALSE(parsed(with(v3(), {{"rope_interleave", false}})).latent.value().interleaved_rope);
  EXPECT_FALSE(parsed(with(glm(), {{"indexer_rope_interleave", false}})).indexer.value().interleaved_rope);
  EXPECT_TRUE(parsed(with(v32(), {{"indexer_rope_interleave", true}})).indexer.value().interleaved_rope);
}

struct Refused {
  const char* message;  // part of it
  json config;
};
void expect_refused(const Refused& refused) {
  auto config = parse_hf_config(refused.config.dump());
  ASSERT_FALSE(config.ok()) << refused.message;
  EXPECT_NE(config.error().message.find(refused.message), std::string::npos)
      << refused.message << ": " << config.error().message;
}

TEST(HfConfigLatentTest, UnsupportedOptionsAreRefusedByName) {
  const auto rope = [](const json& change) {
    auto out = v32();
    out["rope_scaling"].update(change);
    return out;
  };
  const auto quantization = [](const json& change) {
    auto out = v32();
    out["quantization_config"].update(change);
    return out;
  };
  const Refused cases[] = {
      {"rope_scaling.rope_type is dynamic", rope({{"type", "dynamic"}})},
      {"rope_scaling.rope_type is deepseek_yarn", rope({{"rope_type", "deepseek_yarn"}})},
      {"rope_scaling.apply_yarn_scaling", rope({{"apply_yarn_scaling", false}})},
      {"rope_parameters.rope_type is longrope", with(glm(), {{"rope_parameters", {{"rope_type", "longrope"}}}})},
      {"partial_rotary_factor", with(glm(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})},
      {"scoring_func is softmax", with(v32(), {{"scoring_func", "softmax"}})},
      {"scoring_func is sqrtsoftplus", with(v32(), {{"scoring_func", "sqrtsoftplus"}})},
      {"scoring_func is sigmoid", with(v2(), {{"scoring_func", "sigmoid"}})},
      {"topk_method is greedy", with(v3(), {{"topk_method", "greedy"}})},
      {"topk_method is noaux_tc", with(v2(), {{"topk_method", "noaux_tc"}})},
      {"topk_method is random", with(glm(), {{"topk_method", "random"}})},
      {"norm_topk_prob is true", with(v2(), {{"norm_topk_prob", true}})},
      {"hidden_act is gelu", with(v32(), {{"hidden_act", "gelu"}})},
      {"attention_bias", with(v32(), {{"attention_bias", true}})},
      {"mlp_bias", with(glm(), {{"mlp_bias", true}})},
      {"layer_types is sliding_attention", with(v3(), {{"layer_types", {"sliding_attention"}}})},
      {"layer_types is full_attention", with(v32(), {{"layer_types", {"full_attention"}}})},
      {"mlp_layer_types is hash", with(v3(), {{"num_hidden_layers", 1}, {"mlp_layer_types", {"hash"}}})},
      {"indexer_types is compressed", with(glm(), {{"num_hidden_layers", 1}, {"indexer_types", {"compressed"}}})},
      {"index_topk_pattern is X", with(glm(), {{"num_hidden_layers", 2}, {"index_topk_pattern", "FX"}})},
      {"index_kpool", with(glm(), {{"index_kpool", 4}})},
      {"index_topk_freq", with(v32(), {{"index_topk_freq", 2}})},
      {"index_topk", with(v3(), {{"index_topk", 2048}})},
      {"num_experts", with(v3(), {{"num_experts", 8}})},
      {"swiglu_limit", with(glm(), {{"swiglu_limit", 7.5}})},
      {"sliding_window", with(v3(), {{"sliding_window", 4096}})},
      {"quantization_config.quant_method is awq", quantization({{"quant_method", "awq"}})},
      {"quantization_config.quant_method is missing", quantization({{"quant_method", nullptr}})},
      {"quantization_config.fmt is e5m2", quantization({{"fmt", "e5m2"}})},
      {"quantization_config.activation_scheme is static", quantization({{"activation_scheme", "static"}})},
      {"quantization_config.weight_block_size", quantization({{"weight_block_size", {64, 128}}})},
      {"quantization_config.weight_block_size", quantization({{"weight_block_size", nullptr}})},
      {"quantization_config.config_groups", quantization({{"config_groups", json::object()}})},
      {"quantization_config is not an object", with(v32(), {{"quantization_config", "fp8"}})},
      {"architecture DeepseekV3ForCausalLM is not supported",
       with(v32(), {{"architectures", {"DeepseekV3ForCausalLM"}}})},
  };
  for (const auto& refused : cases) expect_refused(refused);
  parsed(quantization({{"modules_to_not_convert", {"lm_head"}}}));
}

TEST(HfConfigLatentTest, BadValuesAreRefused) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const auto tiny = [](const json& change) {
    return with(json::parse(read_bytes(fixture("tiny-glm-dsa") / "config.json")), change);
  };
  const Refused cases[] = {
      {"q_lora_rank", with(v3(), {{"q_lora_rank", -1}})},
      {"q_lora_rank", with(v3(), {{"q_lora_rank", kHuge}})},
      {"an indexer needs q_lora_rank", with(v32(), {{"q_lora_rank", nullptr}})},
      {"kv_lora_rank", with(v3(), {{"kv_lora_rank", 0}})},
      {"kv_lora_rank is not a multiple of 16", with(v3(), {{"kv_lora_rank", 520}})},
      {"kv_lora_rank", with(v3(), {{"kv_lora_rank", 1 << 20}})},
      {"qk_nope_head_dim is out of range", with(v3(), {{"qk_nope_head_dim", 2147483647}})},
      {"qk_nope_head_dim", with(v3(), {{"qk_nope_head_dim", 0}})},
      {"head_dim", with(v3(), {{"qk_nope_head_dim", 512}})},
      {"rotary_dim", with(v3(), {{"qk_rope_head_dim", 0}})},
      {"odd", with(v3(), {{"qk_rope_head_dim", 63}})},
      {"v_head_dim", with(v3(), {{"v_head_dim", 513}})},
      {"qk_head_dim", with(glm(), {{"qk_head_dim", 192}})},
      {"num_key_value_heads", with(v3(), {{"num_key_value_heads", 64}})},
      {"n_routed_experts", with(v3(), {{"n_routed_experts", 0}})},
      {"n_routed_experts is 4096, outside 1 to 2148", with(v3(), {{"n_routed_experts", 4096}})},
      {"n_routed_experts is missing", tiny({{"n_routed_experts", nullptr}})},
      {"num_experts_per_tok", with(v3(), {{"num_experts_per_tok", 257}})},
      {"num_experts_per_tok", with(v3(), {{"num_experts_per_tok", nullptr}})},
      {"n_group is missing", with(v3(), {{"n_group", nullptr}})},
      {"n_group does not divide", with(v3(), {{"n_group", 7}, {"topk_group", 4}})},
      {"less than two experts", with(v3(), {{"n_group", 256}, {"topk_group", 8}})},
      {"n_group is 0", with(v2(), {{"topk_method", "group_limited_greedy"}, {"n_group", nullptr}})},
      {"topk_group is 9", with(v3(), {{"topk_group", 9}})},
      {"topk_group groups hold fewer", with(v3(), {{"topk_group", 1}, {"num_experts_per_tok", 33}})},
      {"moe_intermediate_size", with(v3(), {{"moe_intermediate_size", kHuge}})},
      {"n_shared_experts", with(v3(), {{"n_shared_experts", -1}})},
      {"n_shared_experts times", with(v3(), {{"n_shared_experts", 4096}})},
      {"routed_scaling_factor", with(v3(), {{"routed_scaling_factor", 0.0}})},
      {"routed_scaling_factor", with(v3(), {{"routed_scaling_factor", nullptr}})},
      {"moe_layer_freq", with(v3(), {{"moe_layer_freq", 0}})},
      {"mlp_layer_types names 1 layers of 61", with(v3(), {{"mlp_layer_types", {"dense"}}})},
      {"mlp_layer_types is not a list of strings", with(v3(), {{"mlp_layer_types", {1, 2}}})},
      {"mlp_layer_types is not a list of strings", with(v3(), {{"mlp_layer_types", "dense"}})},
      {"index_n_heads", with(v32(), {{"index_n_heads", 0}})},
      {"index_head_dim is not a multiple of 16", with(v32(), {{"index_head_dim", 72}})},
      {"index_head_dim is less than", with(v32(), {{"index_head_dim", 48}})},
      {"index_topk", with(v32(), {{"index_topk", 0}})},
      {"index_topk", with(v32(), {{"index_topk", nullptr}})},
      {"indexer_types: the first layer", tiny({{"indexer_types", {"shared", "full", "full", "full", "full"}}})},
      {"indexer_types names 2 layers of 5", tiny({{"indexer_types", {"full", "full"}}})},
      {"index_topk_pattern names 3 layers of 5", tiny({{"indexer_types", nullptr}, {"index_topk_pattern", "FSS"}})},
      {"index_topk_pattern", tiny({{"indexer_types", nullptr}, {"index_topk_pattern", 3}})},
      {"index_skip_topk_offset", tiny({{"indexer_types", nullptr}, {"index_skip_topk_offset", kHuge}})},
      {"num_nextn_predict_layers", with(v3(), {{"num_nextn_predict_layers", -1}})},
      {"num_hidden_layers", with(v3(), {{"num_hidden_layers", 2147483647}})},
      {"num_hidden_layers", with(v3(), {{"num_hidden_layers", -5}})},
  };
  for (const auto& refused : cases) expect_refused(refused);
  for (const auto* option : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    auto object = v32();
    object.erase(option);
    expect_refused({option, object});
  }
}

// Parsed or refused with a message; what was parsed is small enough to be listed.
TEST(HfConfigLatentTest, RandomValuesNeverCrash) {
  constexpr std::uint32_t kSeed = 404;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const json values[] = {nullptr,
                         true,
                         -1,
                         0,
                         1,
                         2,
                         3,
                         16,
                         64,
                         4096,
                         1 << 20,
                         1e300,
                         2147483647,
                         -2147483648LL,
                         ~0ULL,
                         0.5,
                         "full",
                         "F",
                         {1, 2},
                         {"full", "shared"},
                         json::object(),
                         std::int64_t{1} << 62};
  int parsed_count = 0;
  for (int round = 0; round < 3000; ++round) {
    auto object = round % 2 == 0 ? v32() : json::parse(read_bytes(fixture("tiny-glm-dsa") / "config.json"));
    for (std::uint32_t change = 0; change < 1 + random() % 2; ++change) {
      auto key = object.begin();
      std::advance(key, random() % object.size());
      *key = values[random() % std::size(values)];
    }
    auto config = parse_hf_config(object.dump());
    if (!config.ok()) {
      EXPECT_FALSE(config.error().message.empty());
      continue;
    }
    ++parsed_count;
    if (round % 16 == 0) {
      EXPECT_LT(expected_tensors(config.value()).size(), 500'000U);
    }
  }
  EXPECT_GT(parsed_count, 100);
  EXPECT_LT(parsed_count, 2900);
}

}  // namespace
}  // namespace hotset::model
