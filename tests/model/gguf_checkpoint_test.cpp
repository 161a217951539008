#include "model/gguf_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/cpu/cpu_backend.h"
#include "model/rope.h"
#include "tests/model/block_reference.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

class GgufCheckpointTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Checkpoint>> open(GgufBuilder builder) {
    return open_checkpoint(folder_.write("model.gguf", builder.build()));
  }
  std::unique_ptr<Checkpoint> opened(GgufBuilder builder) {
    auto checkpoint = open(std::move(builder));
    EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
    return checkpoint.ok() ? std::move(checkpoint).value() : nullptr;
  }
  TemporaryFolder folder_;
};

// Half-split row r of a head of 8 channels lies in this row of the file.
std::size_t adjacent_row(std::size_t row) {
  const std::size_t channel = row % 8;
  return row - channel + (channel < 4 ? 2 * channel : 2 * (channel - 4) + 1);
}

// Every element of `name` as the CPU backend unpacks it.
std::vector<float> unpacked(Checkpoint& checkpoint, const std::string& name) {
  const auto view = checkpoint.matrix(name).value();
  auto backend = kernels::make_cpu_backend(1);
  const auto packed = backend->pack(view);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(view.rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> out(rows.size() * static_cast<std::size_t>(view.cols));
  backend->embed({packed.get(), rows.data(), view.rows, out.data()});
  return out;
}

constexpr std::pair<const char*, const char*> kMatrices[] = {{"embed_tokens", "token_embd"},
                                                             {"lm_head", "output"},
                                                             {"layers.0.self_attn.q_proj", "blk.0.attn_q"},
                                                             {"layers.0.self_attn.k_proj", "blk.0.attn_k"},
                                                             {"layers.0.self_attn.v_proj", "blk.0.attn_v"},
                                                             {"layers.0.self_attn.o_proj", "blk.0.attn_output"},
                                                             {"layers.0.mlp.gate_proj", "blk.0.ffn_gate"},
                                                             {"layers.0.mlp.up_proj", "blk.0.ffn_up"},
                                                             {"layers.0.mlp.down_proj", "blk.0.ffn_down"}};

TEST_F(GgufCheckpointTest, EveryFormatDecodesToItsDefinitionInHalfSplitOrder) {
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    auto builder = small_model(architecture);
    auto checkpoint = opened(builder);
    ASSERT_NE(checkpoint, nullptr);
    for (const auto& [name, gguf] : kMatrices) {
      const auto& written = builder.find_tensor(std::string(gguf) + ".weight");
      const auto expected = decode_reference(written.type, written.data);
      const auto got = unpacked(*checkpoint, name);
      ASSERT_EQ(got.size(), expected.size()) << name;
      const std::string_view text = name;
      const bool reordered = architecture == "llama" && (text.ends_with("q_proj") || text.ends_with("k_proj"));
      const std::size_t cols = written.shape[1];
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t row = i / cols;
        const float want = expected[(reordered ? adjacent_row(row) : row) * cols + i % cols];
        ASSERT_NEAR(got[i], want, 1e-5 * (1.0 + std::abs(want))) << architecture << " " << name << " element " << i;
      }
    }
  }
}

TEST_F(GgufCheckpointTest, RepeatedReadsShareOneCopy) {
  auto checkpoint = opened(small_model("llama"));
  const auto first = checkpoint->matrix("layers.0.self_attn.q_proj").value();
  EXPECT_EQ(checkpoint->matrix("layers.0.self_attn.q_proj").value().data.data(), first.data.data());
}

TEST_F(GgufCheckpointTest, BiasesFollowTheirRows) {
  for (const std::string architecture : {"llama", "qwen2"}) {
    auto builder = small_model(architecture);
    std::string data;
    for (int i = 0; i < 32; ++i) data += as_bytes(static_cast<float>(i));
    for (const auto* name : {"q", "k", "v"}) {
      const std::uint64_t rows = name == std::string("q") ? 32 : 16;
      const auto tensor = std::string("blk.0.attn_") + name + ".bias";
      builder.erase_tensor(tensor);
      builder.tensor({tensor, {rows}, 0, data.substr(0, rows * 4), {}, {}});
    }
    auto checkpoint = opened(builder);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_TRUE(checkpoint->config().qkv_bias);
    const auto bias = checkpoint->vector("layers.0.self_attn.q_proj.bias").value();
    const auto plain = checkpoint->vector("layers.0.self_attn.v_proj.bias").value();
    for (std::size_t row = 0; row < bias.size(); ++row) {
      EXPECT_EQ(bias[row], static_cast<float>(architecture == "llama" ? adjacent_row(row) : row));
    }
    EXPECT_EQ(plain[5], 5.0F);
  }
}

TEST_F(GgufCheckpointTest, Config) {
  auto checkpoint = opened(small_model("qwen3"));
  const auto& config = checkpoint->config();
  EXPECT_EQ(config.architecture, Architecture::kQwen3);
  EXPECT_EQ(config.name, "small");
  EXPECT_EQ(config.vocabulary, 8);
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.intermediate, 32);
  EXPECT_EQ(config.layers, 1);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.rope_theta, 20000.0);
  EXPECT_NEAR(config.rms_epsilon, 1e-5, 1e-11);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.bos_token, 6);
  EXPECT_EQ(config.eos_tokens, std::vector<std::int32_t>{7});
}

TEST_F(GgufCheckpointTest, TiedWhereNoOutputMatrixIsStored) {
  auto builder = small_model("llama");
  builder.erase_tensor("output.weight");
  auto checkpoint = opened(builder);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().tied_embeddings);
  EXPECT_EQ(checkpoint->matrix("lm_head").value().data.data(), checkpoint->matrix("embed_tokens").value().data.data());
}

TEST_F(GgufCheckpointTest, RopeScaling) {
  auto builder = small_model("llama");
  builder.text("llama.rope.scaling.type", "linear");
  builder.f32("llama.rope.scaling.factor", 4.0F);
  EXPECT_EQ(opened(builder)->config().rope_scaling.type, RopeType::kLinear);

  builder.text("llama.rope.scaling.type", "yarn");
  builder.u32("llama.rope.scaling.original_context_length", 128);
  builder.boolean("llama.rope.scaling.finetuned", true);
  const auto yarn = opened(builder)->config();
  EXPECT_EQ(yarn.rope_scaling.type, RopeType::kYarn);
  EXPECT_EQ(yarn.rope_scaling.original_max_positions, 128.0);
  EXPECT_NEAR(make_rope(yarn).attention_factor, 1.0 + 0.1 * std::log(4.0), 1e-6);

  auto divided = small_model("llama");
  divided.tensor(
      {"rope_freqs.weight", {4}, 0, as_bytes(1.0F) + as_bytes(2.0F) + as_bytes(4.0F) + as_bytes(8.0F), {}, {}});
  const auto plain = make_rope(opened(small_model("llama"))->config());
  const auto checkpoint = opened(divided);
  EXPECT_TRUE(checkpoint->unused_tensors().empty());
  const auto table = make_rope(checkpoint->config());
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(table.inv_freq[i], plain.inv_freq[i] / static_cast<float>(1 << i));
}

TEST_F(GgufCheckpointTest, TokenizerSource) {
  auto builder = small_model("llama");
  builder.text("tokenizer.chat_template", "{{ messages }}");
  builder.boolean("tokenizer.ggml.add_bos_token", true);
  builder.u32("tokenizer.ggml.eot_token_id", 5);
  std::shared_ptr<const GgufMetadata> metadata;
  {
    auto checkpoint = opened(builder);
    const auto& source = checkpoint->tokenizer_source();
    EXPECT_EQ(source.chat_template, "{{ messages }}");
    EXPECT_EQ(source.bos_token, "<s>");
    EXPECT_EQ(source.eos_token, "</s>");
    EXPECT_EQ(source.unk_token, "");
    EXPECT_EQ(source.add_bos, true);
    EXPECT_EQ(source.add_eos, std::nullopt);
    EXPECT_EQ(checkpoint->config().eos_tokens, (std::vector<std::int32_t>{7, 5}));
    metadata = std::get<std::shared_ptr<const GgufMetadata>>(source.vocabulary);
  }
  // The metadata outlives the checkpoint.
  EXPECT_EQ(metadata->strings("tokenizer.ggml.tokens").value()->at(7), "</s>");

  builder.text("tokenizer.ggml.model", "none");
  EXPECT_TRUE(std::holds_alternative<std::monostate>(opened(builder)->tokenizer_source().vocabulary));
}

struct Refused {
  const char* message;  // part of it
  std::function<void(GgufBuilder&)> change;
};

TEST_F(GgufCheckpointTest, WhatIsNotSupportedIsRefusedByName) {
  const Refused cases[] = {
      {"architecture deepseek2 is not supported", [](auto& b) { b.text("general.architecture", "deepseek2"); }},
      {"architecture gemma3 is not supported", [](auto& b) { b.text("general.architecture", "gemma3"); }},
      {"general.architecture is missing", [](auto& b) { b.erase("general.architecture"); }},
      {"general.architecture", [](auto& b) { b.u32("general.architecture", 1); }},
      {"split.count", [](auto& b) { b.u32("split.count", 3); }},
      {"llama.block_count", [](auto& b) { b.erase("llama.block_count"); }},
      {"llama.block_count", [](auto& b) { b.f32("llama.block_count", 1.0F); }},
      {"num_hidden_layers", [](auto& b) { b.u32("llama.block_count", 0); }},
      {"num_hidden_layers", [](auto& b) { b.u32("llama.block_count", 2'000'000'000); }},
      {"llama.block_count", [](auto& b) { b.u32("llama.block_count", 4'000'000'000); }},
      {"feed_forward_length", [](auto& b) { b.array("llama.feed_forward_length", 4, 1, as_bytes<std::uint32_t>(32)); }},
      {"num_key_value_heads", [](auto& b) { b.u32("llama.attention.head_count_kv", 3); }},
      {"value_length", [](auto& b) { b.u32("llama.attention.value_length", 16); }},
      {"rope.dimension_count", [](auto& b) { b.u32("llama.rope.dimension_count", 4); }},
      {"llama.expert_count", [](auto& b) { b.u32("llama.expert_count", 8); }},
      {"llama.attention.sliding_window", [](auto& b) { b.u32("llama.attention.sliding_window", 128); }},
      {"llama.logit_scale", [](auto& b) { b.f32("llama.logit_scale", 0.5F); }},
      {"llama.attention.scale", [](auto& b) { b.f32("llama.attention.scale", 0.5F); }},
      {"llama.rope.scaling.type is longrope", [](auto& b) { b.text("llama.rope.scaling.type", "longrope"); }},
      {"rope_theta", [](auto& b) { b.f32("llama.rope.freq_base", std::nanf("")); }},
      {"rms_norm_eps", [](auto& b) { b.f32("llama.attention.layer_norm_rms_epsilon", std::nanf("")); }},
      {"eos_token_id", [](auto& b) { b.u32("tokenizer.ggml.eos_token_id", 8); }},
      {"tokenizer.ggml.tokens", [](auto& b) { b.erase("tokenizer.ggml.tokens"); }},
      {"token_embd.weight", [](auto& b) { b.erase_tensor("token_embd.weight"); }},
      {"lacks tensors: layers.0.mlp.up_proj", [](auto& b) { b.erase_tensor("blk.0.ffn_up.weight"); }},
      {"blk.0.ffn_up.weight has shape [16, 512]",
       [](auto& b) { b.find_tensor("blk.0.ffn_up.weight").shape = {16, 512}; }},
      {"output_norm.weight has shape", [](auto& b) { b.find_tensor("output_norm.weight").shape = {1, 256}; }},
      {"output_norm.weight has type Q8_0",
       [](auto& b) {
         auto& norm = b.find_tensor("output_norm.weight");
         norm.type = 8;
         norm.data.resize(8 * 34);
       }},
      {"rope_freqs.weight", [](auto& b) { b.tensor({"rope_freqs.weight", {3}, 0, std::string(12, '\1'), {}, {}}); }},
      {"rope_freqs.weight", [](auto& b) { b.tensor({"rope_freqs.weight", {4}, 0, std::string(16, '\0'), {}, {}}); }},
  };
  for (const auto& refused : cases) {
    auto builder = small_model("llama");
    refused.change(builder);
    auto checkpoint = open(builder);
    ASSERT_FALSE(checkpoint.ok()) << refused.message;
    EXPECT_NE(checkpoint.error().message.find(refused.message), std::string::npos)
        << refused.message << ": " << checkpoint.error().message;
  }
  auto qwen2 = small_model("qwen2");
  qwen2.erase_tensor("blk.0.attn_k.bias");
  EXPECT_NE(open(qwen2).error().message.find("layers.0.self_attn.k_proj.bias"), std::string::npos);
}

TEST_F(GgufCheckpointTest, UnexpectedTensorsAreReported) {
  auto builder = small_model("llama");
  builder.tensor({"blk.0.extra.weight", {8}, 0, std::string(32, '\0'), {}, {}});
  EXPECT_EQ(opened(builder)->unused_tensors(), std::vector<std::string>{"blk.0.extra.weight"});
}

// Whatever the bytes: loaded or refused with a message, and what was loaded can be read to its end.
TEST_F(GgufCheckpointTest, RandomChangesNeverCrash) {
  constexpr std::uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  auto builder = small_model("llama");
  const auto good = builder.build();
  int loaded = 0;
  constexpr int kRounds = 600;
  for (int round = 0; round < kRounds; ++round) {
    auto bytes = good;
    const auto changes = 1 + random() % 4;
    for (std::uint32_t i = 0; i < changes; ++i) {
      const auto at = random() % (random() % 8 == 0 ? bytes.size() : builder.header_bytes());
      bytes[at] = static_cast<char>(random() % 4 == 0 ? 0xFF : random() & 0xFF);
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    auto checkpoint = open_checkpoint(folder_.write("model.gguf", bytes));
    if (!checkpoint.ok()) {
      EXPECT_FALSE(checkpoint.error().message.empty());
      continue;
    }
    ++loaded;
    for (const auto& expected : expected_tensors(checkpoint.value()->config())) {
      EXPECT_TRUE(expected.shape.size() == 2 ? checkpoint.value()->matrix(expected.name).ok()
                                             : checkpoint.value()->vector(expected.name).ok());
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, kRounds);
}

}  // namespace
}  // namespace hotset::model
