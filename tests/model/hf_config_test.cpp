#include "model/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

using nlohmann::json;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 512},
          {"hidden_size", 96},
          {"intermediate_size", 192},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},
          {"bos_token_id", 0},
          {"eos_token_id", 1}};
}
json family(const std::string& type, const std::string& name) {
  auto out = llama();
  out["model_type"] = type;
  out["architectures"] = {name};
  return out;
}
json with(json object, const json& change) {
  object.update(change);
  return object;
}

ModelConfig parsed(const json& object, const std::string& generation = {}) {
  auto config = parse_hf_config(object.dump(), generation);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  return config.ok() ? config.value() : ModelConfig{};
}

TEST(HfConfigTest, FixturesInTheNewSpelling) {
  const auto config = parsed(json::parse(read_bytes(fixture("tiny-llama") / "config.json")));
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.vocabulary, 512);
  EXPECT_EQ(config.hidden, 96);
  EXPECT_EQ(config.intermediate, 192);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 6);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rotary_dim, 16);
  EXPECT_EQ(config.rms_epsilon, 1e-6);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kLlama3);
  EXPECT_EQ(config.rope_scaling.factor, 8.0);
  EXPECT_EQ(config.rope_scaling.original_max_positions, 128.0);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm);
  EXPECT_EQ(config.bos_token, 0);
  EXPECT_EQ(config.eos_tokens, std::vector<std::int32_t>{1});

  const auto qwen = parsed(json::parse(read_bytes(fixture("tiny-qwen3") / "config.json")));
  EXPECT_EQ(qwen.architecture, Architecture::kQwen3);
  EXPECT_EQ(qwen.head_dim, 32);
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_FALSE(qwen.tied_embeddings);
  EXPECT_EQ(qwen.rope_scaling.type, RopeType::kDefault);
}

TEST(HfConfigTest, OldSpelling) {
  const auto config = parsed(with(llama(), {{"rope_theta", 500000.0},
                                            {"torch_dtype", "bfloat16"},
                                            {"rope_scaling",
                                             {{"type", "llama3"},
                                              {"factor", 8.0},
                                              {"low_freq_factor", 1.0},
                                              {"high_freq_factor", 4.0},
                                              {"original_max_position_embeddings", 128}}}}));
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kLlama3);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.head_dim, 16);
}

TEST(HfConfigTest, DefaultsWhereTheFileIsSilent) {
  auto object = llama();
  object.erase("num_key_value_heads");
  object["rope_scaling"] = nullptr;
  object["head_dim"] = nullptr;
  const auto config = parsed(object);
  EXPECT_EQ(config.kv_heads, 6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_FALSE(config.tied_embeddings);
}

TEST(HfConfigTest, StretchedPositions) {
  EXPECT_EQ(parsed(with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}})).max_positions, 8192);
  EXPECT_EQ(
      parsed(with(llama(), {{"rope_scaling",
                             {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}}}}))
          .max_positions,
      8192);
  // The stretched length is there already.
  EXPECT_EQ(
      parsed(with(llama(), {{"rope_scaling",
                             {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}}}))
          .max_positions,
      2048);
  const auto derived =
      parsed(with(llama(), {{"rope_parameters", {{"rope_type", "yarn"}, {"original_max_position_embeddings", 512}}}}));
  EXPECT_EQ(derived.rope_scaling.factor, 4.0);
}

TEST(HfConfigTest, Families) {
  const auto mistral = parsed(with(family("mistral", "MistralForCausalLM"), {{"sliding_window", nullptr}}));
  EXPECT_EQ(mistral.architecture, Architecture::kMistral);
  EXPECT_FALSE(mistral.qkv_bias);
  const auto qwen2 = parsed(with(family("qwen2", "Qwen2ForCausalLM"),
                                 {{"sliding_window", 1024}, {"use_sliding_window", false}, {"max_window_layers", 2}}));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm);
  const auto biased = parsed(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  const auto qwen3 = parsed(with(family("qwen3", "Qwen3ForCausalLM"), {{"attention_bias", true}}));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias && qwen3.qk_norm);
}

TEST(HfConfigTest, EndOfSequenceTokens) {
  EXPECT_EQ(parsed(with(llama(), {{"eos_token_id", {5, 7, 5}}})).eos_tokens, (std::vector<std::int32_t>{5, 7}));
  EXPECT_TRUE(parsed(with(llama(), {{"eos_token_id", nullptr}})).eos_tokens.empty());
  const auto config = parsed(llama(), R"({"eos_token_id": [3, 4], "bos_token_id": 2, "temperature": 0.6})");
  EXPECT_EQ(config.eos_tokens, (std::vector<std::int32_t>{3, 4}));
  EXPECT_EQ(config.bos_token, 2);
}

TEST(HfConfigTest, HarmlessOptionsAreIgnored) {
  parsed(with(llama(), {{"unsloth_version", "2024.9"},
                        {"_name_or_path", "x"},
                        {"pretraining_tp", 1},
                        {"some_new_flag", false},
                        {"some_new_text", "x"},
                        {"some_new_null", nullptr}}));
}

struct Refused {
  const char* message;  // part of it
  json config;
};

TEST(HfConfigTest, UnsupportedOptionsAreRefusedByName) {
  const auto rope = [](json object) { return with(llama(), {{"rope_scaling", std::move(object)}}); };
  const Refused cases[] = {
      {"architecture deepseek_v4 is not supported", family("deepseek_v4", "DeepseekV4ForCausalLM")},
      {"architecture gemma2 is not supported", family("gemma2", "Gemma2ForCausalLM")},
      {"architecture LlamaForSequenceClassification is not supported",
       family("llama", "LlamaForSequenceClassification")},
      {"hidden_act", with(llama(), {{"hidden_act", "gelu"}})},
      {"sliding_window", with(family("mistral", "MistralForCausalLM"), {{"sliding_window", 1024}})},
      {"sliding_window",
       with(family("qwen2", "Qwen2ForCausalLM"), {{"sliding_window", 64}, {"use_sliding_window", true}})},
      {"layer_types",
       with(family("qwen3", "Qwen3ForCausalLM"), {{"layer_types", {"full_attention", "sliding_attention"}}})},
      {"attention_bias", with(family("mistral", "MistralForCausalLM"), {{"attention_bias", true}})},
      {"mlp_bias", with(family("qwen3", "Qwen3ForCausalLM"), {{"mlp_bias", true}})},
      {"partial_rotary_factor", with(llama(), {{"partial_rotary_factor", 0.5}})},
      {"quantization_config.quant_method is awq", with(llama(), {{"quantization_config", {{"quant_method", "awq"}}}})},
      {"final_logit_softcapping", with(llama(), {{"final_logit_softcapping", 30.0}})},
      {"logits_scaling", with(llama(), {{"logits_scaling", 8}})},
      {"num_local_experts", with(llama(), {{"num_local_experts", 8}})},
      {"use_qk_norm", with(llama(), {{"use_qk_norm", true}})},
      {"rope_scaling.rope_type is dynamic", rope({{"type", "dynamic"}, {"factor", 2.0}})},
      {"rope_scaling.rope_type is longrope", rope({{"rope_type", "longrope"}, {"factor", 2.0}})},
      {"rope_scaling.mrope_section", rope({{"type", "default"}, {"mrope_section", {1, 2}}})},
      {"rope_scaling.factor", rope({{"type", "linear"}})},
      {"rope_scaling.factor", rope({{"type", "linear"}, {"factor", 0.0}})},
      {"low_freq_factor", rope({{"rope_type", "llama3"}, {"factor", 2.0}})},
      {"rope_parameters.full_attention",
       with(llama(), {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})},
  };
  for (const auto& refused : cases) {
    auto config = parse_hf_config(refused.config.dump());
    ASSERT_FALSE(config.ok()) << refused.message;
    EXPECT_NE(config.error().message.find(refused.message), std::string::npos)
        << refused.message << ": " << config.error().message;
  }
}

TEST(HfConfigTest, BadValuesAreRefused) {
  const Refused cases[] = {
      {"vocab_size", with(llama(), {{"vocab_size", 0}})},
      {"vocab_size", with(llama(), {{"vocab_size", 5'000'000}})},
      {"vocab_size", with(llama(), {{"vocab_size", "512"}})},
      {"vocab_size", with(llama(), {{"vocab_size", 512.5}})},
      {"vocab_size", with(llama(), {{"vocab_size", ~0ULL}})},
      {"vocab_size", with(llama(), {{"vocab_size", 1e300}})},
      {"hidden_size", with(llama(), {{"hidden_size", -96}, {"head_dim", 16}})},
      {"num_hidden_layers", with(llama(), {{"num_hidden_layers", 1025}})},
      {"num_hidden_layers", with(llama(), {{"num_hidden_layers", 1LL << 40}})},
      {"num_attention_heads", with(llama(), {{"num_attention_heads", 0}})},
      {"num_attention_heads", with(llama(), {{"num_attention_heads", 7}})},
      {"num_key_value_heads", with(llama(), {{"num_key_value_heads", 4}})},
      {"num_key_value_heads", with(llama(), {{"num_key_value_heads", 0}})},
      {"head_dim", with(llama(), {{"head_dim", 15}})},
      {"head_dim", with(llama(), {{"head_dim", 1024}})},
      {"max_position_embeddings", with(llama(), {{"max_position_embeddings", 0}})},
      {"rms_norm_eps", with(llama(), {{"rms_norm_eps", -1.0}})},
      {"rope_theta", with(llama(), {{"rope_theta", 0.0}})},
      {"rope_theta", with(llama(), {{"rope_theta", {10000.0}}})},
      {"eos_token_id", with(llama(), {{"eos_token_id", 512}})},
      {"eos_token_id", with(llama(), {{"eos_token_id", {1, "2"}}})},
      {"bos_token_id", with(llama(), {{"bos_token_id", -1}})},
      {"tie_word_embeddings", with(llama(), {{"tie_word_embeddings", "yes"}})},
      {"architectures", with(llama(), {{"architectures", "LlamaForCausalLM"}})},
      {"rope_scaling", with(llama(), {{"rope_scaling", 4}})},
  };
  for (const auto& refused : cases) {
    auto config = parse_hf_config(refused.config.dump());
    ASSERT_FALSE(config.ok()) << refused.message;
    EXPECT_NE(config.error().message.find(refused.message), std::string::npos)
        << refused.message << ": " << config.error().message;
  }
  for (const auto* option : {"model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                             "num_attention_heads", "max_position_embeddings"}) {
    auto object = llama();
    object.erase(option);
    auto config = parse_hf_config(object.dump());
    ASSERT_FALSE(config.ok()) << option;
    EXPECT_NE(config.error().message.find(option), std::string::npos) << config.error().message;
  }
}

TEST(HfConfigTest, BrokenTextIsRefused) {
  for (const std::string text : {"", "{", "[]", "null", "{\"model_type\": \"llama\xff\"}", "\x01\x02"}) {
    EXPECT_FALSE(parse_hf_config(text).ok()) << text;
  }
  EXPECT_FALSE(parse_hf_config(std::string(100'000, '[')).ok());
  EXPECT_FALSE(parse_hf_config(llama().dump(), "{").ok());
  // An option that is ignored otherwise.
  auto text = with(llama(), {{"id2label", 0}}).dump();
  EXPECT_TRUE(parse_hf_config(text).ok());
  const std::string key = "\"id2label\":";
  text.replace(text.find(key) + key.size(), 1, std::string(100'000, '[') + std::string(100'000, ']'));
  EXPECT_FALSE(parse_hf_config(text).ok());
  EXPECT_FALSE(parse_hf_config(llama().dump(), R"({"eos_token_id": 512})").ok());
}

}  // namespace
}  // namespace hotset::model
