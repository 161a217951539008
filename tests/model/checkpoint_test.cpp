// Safetensors folders as checkpoints: single, sharded, tied, cut, altered. GGUF files: gguf_checkpoint_test.cpp.
#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/model/safetensors_builder.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

using nlohmann::json;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() { copy_fixture("tiny-llama", folder_); }

  std::unique_ptr<Checkpoint> opened() {
    auto checkpoint = open_checkpoint(folder_.path());
    EXPECT_TRUE(checkpoint.ok()) << (checkpoint.ok() ? "" : checkpoint.error().message);
    return checkpoint.ok() ? std::move(checkpoint).value() : nullptr;
  }
  void expect_refused(const std::string& part) {
    auto checkpoint = open_checkpoint(folder_.path());
    ASSERT_FALSE(checkpoint.ok()) << part;
    EXPECT_NE(checkpoint.error().message.find(part), std::string::npos) << part << ": " << checkpoint.error().message;
  }
  void change_config(const json& change) {
    auto config = json::parse(read_bytes(folder_.path() / "config.json"));
    config.update(change);
    folder_.write("config.json", config.dump());
  }
  void write_model(const Tensors& tensors, std::size_t padding = 0) {
    folder_.write("model.safetensors", file_of(tensors, padding));
  }
  // Two shards, tensors alternating, and their index.
  void shard() {
    const auto tensors = tensors_of(folder_.path() / "model.safetensors");
    Tensors parts[2];
    index_ = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
    int next = 0;
    for (const auto& [name, tensor] : tensors) {
      parts[next % 2][name] = tensor;
      index_["weight_map"][name] = kShards[next % 2];
      ++next;
    }
    for (int i = 0; i < 2; ++i) folder_.write(kShards[i], file_of(parts[i]));
    std::filesystem::remove(folder_.path() / "model.safetensors");
    write_index();
  }
  void write_index() { folder_.write("model.safetensors.index.json", index_.dump()); }

  const std::string kShards[2] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  TemporaryFolder folder_;
  json index_;
};

std::string bytes_of(const kernels::MatrixView& view) {
  return {reinterpret_cast<const char*>(view.data.data()), view.data.size()};
}

void expect_same_weights(Checkpoint& a, Checkpoint& b) {
  for (const auto& expected : expected_tensors(a.config())) {
    if (expected.shape.size() == 2) {
      EXPECT_EQ(bytes_of(a.matrix(expected.name).value()), bytes_of(b.matrix(expected.name).value())) << expected.name;
    } else {
      EXPECT_EQ(a.vector(expected.name).value(), b.vector(expected.name).value()) << expected.name;
    }
  }
}

TEST_F(CheckpointTest, FixtureFolderAndFile) {
  for (const auto& path :
       {fixture("tiny-llama"), fixture("tiny-llama") / "", fixture("tiny-llama") / "model.safetensors"}) {
    auto checkpoint = open_checkpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint.value()->config().name, "tiny-llama");
    const auto q = checkpoint.value()->matrix("layers.2.self_attn.q_proj").value();
    EXPECT_EQ(q.type, kernels::WeightType::kBF16);
    EXPECT_EQ(q.rows, 96);
    EXPECT_EQ(q.cols, 96);
    EXPECT_EQ(q.data.size(), 96U * 96 * 2);
    EXPECT_TRUE(std::holds_alternative<std::monostate>(checkpoint.value()->tokenizer_source().vocabulary));
    EXPECT_TRUE(checkpoint.value()->unused_tensors().empty());
  }
  auto qwen = open_checkpoint(fixture("tiny-qwen3"));
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  EXPECT_EQ(qwen.value()->vector("layers.0.self_attn.q_norm").value().size(), 32U);
  EXPECT_EQ(qwen.value()->matrix("lm_head").value().rows, 512);
}

TEST_F(CheckpointTest, VectorsBecomeFloat32FromEveryFloatFormat) {
  auto tensors = tensors_of(folder_.path() / "model.safetensors");
  auto& norm = tensors["model.norm.weight"];
  const auto first = [&] { return opened()->vector("norm").value().at(0); };
  const auto fill = [&](const std::string& dtype, const std::string& value) {
    norm.dtype = dtype;
    norm.data.clear();
    for (int i = 0; i < 96; ++i) norm.data += value;
    write_model(tensors);
  };
  using namespace std::string_literals;
  fill("F32", "\x00\x00\xc0\x3f"s);
  EXPECT_EQ(first(), 1.5F);
  fill("BF16", "\xc0\xbf"s);
  EXPECT_EQ(first(), -1.5F);
  fill("F16", "\x00\x3e"s);
  EXPECT_EQ(first(), 1.5F);
  fill("F16", "\x01\x80"s);
  EXPECT_EQ(first(), -0x1p-24F);  // the smallest subnormal
  fill("F16", "\xff\x7b"s);
  EXPECT_EQ(first(), 65504.0F);
}

TEST_F(CheckpointTest, UnalignedDataIsReadTheSame) {
  auto aligned = opened();
  const auto tensors = tensors_of(folder_.path() / "model.safetensors");
  for (const std::size_t padding : {1U, 2U, 3U}) {
    write_model(tensors, padding);
    auto moved = opened();
    expect_same_weights(*aligned, *moved);
    const auto address = reinterpret_cast<std::uintptr_t>(moved->matrix("embed_tokens").value().data.data());
    EXPECT_EQ(address % 4, 0U);
  }
}

TEST_F(CheckpointTest, ShardsEqualTheSingleFile) {
  auto single = open_checkpoint(fixture("tiny-llama"));
  shard();
  folder_.write("model-00003-of-00003.safetensors", "stale and broken");
  auto sharded = opened();
  ASSERT_NE(sharded, nullptr);
  expect_same_weights(*single.value(), *sharded);
}

TEST_F(CheckpointTest, MissingShardsAreListed) {
  shard();
  std::filesystem::remove(folder_.path() / kShards[1]);
  expect_refused(kShards[1]);
  std::filesystem::remove(folder_.path() / kShards[0]);
  expect_refused(kShards[0] + ", " + kShards[1]);
}

TEST_F(CheckpointTest, IndexThatLeavesTheFolderIsRefused) {
  shard();
  for (const std::string path : {"../model-00001-of-00002.safetensors", "/etc/passwd", "sub/model.safetensors", "..",
                                 "a\\b.safetensors", "", "model.bin", "/x.safetensors"}) {
    index_["weight_map"]["model.norm.weight"] = path;
    write_index();
    expect_refused("no safetensors file of this folder");
  }
  index_["weight_map"]["model.norm.weight"] = 3;
  write_index();
  expect_refused("no safetensors file of this folder");
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  shard();
  const auto good = index_;
  index_["weight_map"]["model.extra.weight"] = kShards[0];
  write_index();
  expect_refused("model.extra.weight");

  index_ = good;
  const auto wrong = index_["weight_map"]["model.norm.weight"] == kShards[0] ? kShards[1] : kShards[0];
  index_["weight_map"]["model.norm.weight"] = wrong;
  write_index();
  expect_refused("model.norm.weight is in");

  index_ = good;
  auto first = tensors_of(folder_.path() / kShards[0]);
  auto second = tensors_of(folder_.path() / kShards[1]);
  second.insert(*first.begin());
  folder_.write(kShards[1], file_of(second));
  write_index();
  expect_refused(first.begin()->first);

  // In both shards, and the index does not know it.
  first["model.unknown"] = second["model.unknown"] = {"U8", {1}, "x"};
  second.erase(first.begin()->first);
  folder_.write(kShards[0], file_of(first));
  folder_.write(kShards[1], file_of(second));
  expect_refused("model.unknown is in two shards");

  for (const std::string text : {"", "{", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})"}) {
    folder_.write("model.safetensors.index.json", text);
    expect_refused("model.safetensors.index.json");
  }
}

TEST_F(CheckpointTest, CutShardIsRefused) {
  shard();
  const auto bytes = read_bytes(folder_.path() / kShards[0]);
  folder_.write(kShards[0], bytes.substr(0, bytes.size() - 100));
  expect_refused(kShards[0]);
}

TEST_F(CheckpointTest, IncompleteFolders) {
  std::filesystem::remove(folder_.path() / "model.safetensors");
  expect_refused("neither model.safetensors nor model.safetensors.index.json");
  std::filesystem::remove(folder_.path() / "config.json");
  expect_refused("config.json");
  TemporaryFolder empty;
  EXPECT_EQ(open_checkpoint(empty.path()).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(open_checkpoint(empty.path() / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(open_checkpoint(empty.write("model.bin", "x")).ok());
}

TEST_F(CheckpointTest, MissingTensorsAreListed) {
  auto tensors = tensors_of(folder_.path() / "model.safetensors");
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  tensors.erase("model.norm.weight");
  write_model(tensors);
  expect_refused("lacks tensors: norm, layers.1.mlp.up_proj");
  write_model({});
  expect_refused("and 21 more");
}

TEST_F(CheckpointTest, ShapesMustFitTheConfiguration) {
  change_config({{"intermediate_size", 208}});
  expect_refused("[192, 96] where the model's configuration asks for [208, 96]");
  copy_fixture("tiny-llama", folder_);
  change_config({{"vocab_size", 513}});
  expect_refused("model.embed_tokens.weight has shape [512, 96]");
  copy_fixture("tiny-llama", folder_);
  change_config({{"attention_bias", true}});
  expect_refused("layers.0.self_attn.q_proj.bias");
  copy_fixture("tiny-llama", folder_);
  change_config({{"num_hidden_layers", 4}});
  expect_refused("layers.3.input_layernorm");
}

TEST_F(CheckpointTest, TypesThatCannotBeUsedAreNamed) {
  auto tensors = tensors_of(folder_.path() / "model.safetensors");
  auto& up = tensors["model.layers.0.mlp.up_proj.weight"];
  up.dtype = "F8_E4M3";
  up.data.resize(up.data.size() / 2);
  write_model(tensors);
  expect_refused("model.layers.0.mlp.up_proj.weight has type F8_E4M3");
}

TEST_F(CheckpointTest, TiedEmbeddingsWithAndWithoutAnOutputMatrix) {
  auto tensors = tensors_of(folder_.path() / "model.safetensors");
  ASSERT_FALSE(tensors.contains("lm_head.weight"));
  auto without = opened();
  auto embedding = tensors["model.embed_tokens.weight"];
  embedding.data.assign(embedding.data.size(), '\0');  // a stale copy: the embedding counts
  tensors["lm_head.weight"] = embedding;
  write_model(tensors);
  auto with = opened();
  ASSERT_NE(with, nullptr);
  EXPECT_TRUE(with->unused_tensors().empty());
  EXPECT_EQ(bytes_of(with->matrix("lm_head").value()), bytes_of(without->matrix("embed_tokens").value()));

  change_config({{"tie_word_embeddings", false}});
  EXPECT_EQ(bytes_of(opened()->matrix("lm_head").value()), embedding.data);
  copy_fixture("tiny-llama", folder_);
  change_config({{"tie_word_embeddings", false}});
  expect_refused("lm_head");
}

TEST_F(CheckpointTest, ExtraTensors) {
  auto tensors = tensors_of(folder_.path() / "model.safetensors");
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {8}, std::string(32, '\0')};
  write_model(tensors);
  EXPECT_TRUE(opened()->unused_tensors().empty());
  tensors["model.layers.7.mlp.up_proj.weight"] = {"F32", {1}, std::string(4, '\0')};
  write_model(tensors);
  EXPECT_EQ(opened()->unused_tensors(), std::vector<std::string>{"model.layers.7.mlp.up_proj.weight"});
}

TEST_F(CheckpointTest, UnknownNames) {
  auto checkpoint = opened();
  for (const auto* name : {"", "layers.3.input_layernorm", "model.norm", "norm.weight", "layers.0"}) {
    EXPECT_FALSE(checkpoint->has(name));
    EXPECT_EQ(checkpoint->matrix(name).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(checkpoint->vector(name).error().code, ErrorCode::kNotFound);
  }
  EXPECT_FALSE(checkpoint->matrix("norm").ok());
  EXPECT_FALSE(checkpoint->vector("embed_tokens").ok());
}

TEST_F(CheckpointTest, TokenizerFiles) {
  folder_.write("tokenizer.json", "{}");
  folder_.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
      "pad_token": null, "add_bos_token": true, "chat_template": [{"name": "tool_use", "template": "no"},
      {"name": "default", "template": "{{ messages }}"}]})");
  {
    const auto checkpoint = opened();
    const auto& source = checkpoint->tokenizer_source();
    EXPECT_EQ(std::get<std::filesystem::path>(source.vocabulary), folder_.path() / "tokenizer.json");
    EXPECT_EQ(source.bos_token, "<s>");
    EXPECT_EQ(source.eos_token, "</s>");
    EXPECT_EQ(source.pad_token, "");
    EXPECT_EQ(source.add_bos, true);
    EXPECT_EQ(source.add_eos, std::nullopt);
    EXPECT_EQ(source.chat_template, "{{ messages }}");
  }
  folder_.write("chat_template.jinja", "{{ file }}");
  EXPECT_EQ(opened()->tokenizer_source().chat_template, "{{ file }}");
  for (const std::string text :
       {"{", "[]", R"({"eos_token": 3})", R"({"chat_template": 3})", R"({"add_bos_token": 1})"}) {
    folder_.write("tokenizer_config.json", text);
    expect_refused("tokenizer_config");
  }
}

TEST_F(CheckpointTest, UnsupportedModelsAreRefusedByName) {
  change_config({{"model_type", "deepseek_v4"}});
  expect_refused("architecture deepseek_v4 is not supported");
  change_config({{"model_type", "gemma2"}});
  expect_refused("architecture gemma2 is not supported");
}

// Whatever the bytes: loaded or refused with a message, and what was loaded can be read to its end.
TEST_F(CheckpointTest, RandomChangesNeverCrash) {
  constexpr std::uint32_t kSeed = 771;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::string files[] = {"model.safetensors", "config.json", "generation_config.json"};
  int loaded = 0;
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    const auto& file = files[random() % 3];
    const auto good = read_bytes(fixture("tiny-llama") / file);
    auto bytes = good;
    // The headers matter, not the weights behind them.
    const auto region = std::min<std::size_t>(bytes.size(), 3200);
    for (std::uint32_t i = 0; i < 1 + random() % 3; ++i) {
      bytes[random() % region] = static_cast<char>(random() % 2 == 0 ? '0' + random() % 10 : random() & 0xFF);
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    folder_.write(file, bytes);
    auto checkpoint = open_checkpoint(folder_.path());
    folder_.write(file, good);
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
