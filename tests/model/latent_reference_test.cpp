// The forward pass of the DeepSeek-like family against the reference library's numbers (tests/fixtures/*/expected.json)
// and, without an indexer, against the slow double reference (tools/make_dense_latent_expected.py).
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/concat.h"
#include "tests/model/forward_driver.h"
#include "tests/model/temporary_folder.h"

namespace hotset::model {
namespace {

using nlohmann::json;

constexpr float kTolerance = 2e-3F;  // bf16 weights, float32 compute (tests/fixtures/README.md)

std::filesystem::path unpacked(const std::string& name) {
  return std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / name;
}

json cases_of(const std::filesystem::path& folder) {
  return json::parse(read_bytes(folder / "expected.json")).at("cases");
}

std::vector<ForwardRequest> requests_of(const json& cases) {
  std::vector<ForwardRequest> out;
  for (const auto& one : cases) out.push_back({.prompt = one.at("input_ids"), .new_tokens = 24});
  return out;
}

void expect_reference(const ForwardAnswer& answer, const json& expected, double& worst) {
  const auto& logprobs = expected.at("prompt_logprobs");
  ASSERT_EQ(answer.prompt_logprobs.size() + 1, logprobs.size());
  for (std::size_t t = 1; t < logprobs.size(); ++t) {
    EXPECT_NEAR(answer.prompt_logprobs[t - 1], logprobs[t].get<float>(), kTolerance) << "token " << t;
    worst = std::max(worst, std::abs(double{answer.prompt_logprobs[t - 1]} - logprobs[t].get<double>()));
  }
  EXPECT_EQ(answer.tokens, expected.at("greedy").get<std::vector<std::int32_t>>());
  if (!expected.contains("selected_last")) return;
  for (const auto& [layer, selected] : expected.at("selected_last").items()) {
    EXPECT_EQ(answer.selected_last.at(std::stoi(layer)), selected.get<std::vector<std::int32_t>>())
        << "layer " << layer;
  }
}

void expect_same_bits(const ForwardAnswer& one, const ForwardAnswer& other) {
  EXPECT_EQ(one.prompt_logprobs, other.prompt_logprobs);
  EXPECT_EQ(one.tokens, other.tokens);
  EXPECT_EQ(one.logprobs, other.logprobs);
  EXPECT_EQ(one.selected_last, other.selected_last);
}

class LatentReference : public ::testing::TestWithParam<std::string> {
 protected:
  // All cases in one batch.
  static std::vector<ForwardAnswer> run(ForwardOptions options, StepStats* stats = nullptr) {
    options.checkpoint = unpacked(GetParam());
    ForwardDriver driver(options);
    auto answers = driver.run(requests_of(cases_of(options.checkpoint)));
    if (stats != nullptr) *stats = driver.stats();
    return answers;
  }
};

TEST_P(LatentReference, LogprobsTokensAndSelections) {
  const json cases = cases_of(unpacked(GetParam()));
  double worst = 0;
  const auto answers = run({});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(concat(cases[i].at("input_ids").size(), " tokens"));
    expect_reference(answers[i], cases[i], worst);
  }
  RecordProperty("worst_logprob_difference", std::to_string(worst));
  std::cout << "worst log-probability difference " << worst << '\n';
}

// Chunks, the batch, threads and the place of the rows change no bit.
TEST_P(LatentReference, ChunksBatchesAndThreadsGiveTheSameBits) {
  const auto base = run({});
  for (const std::int64_t chunk : {1, 7, 64}) {
    SCOPED_TRACE(concat("chunk ", chunk));
    const auto answers = run({.prefill_chunk = chunk, .threads = chunk == 7 ? 3 : 1});
    for (std::size_t i = 0; i < base.size(); ++i) expect_same_bits(answers[i], base[i]);
  }
  const auto requests = requests_of(cases_of(unpacked(GetParam())));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ForwardDriver alone({.checkpoint = unpacked(GetParam()), .prefill_chunk = 300});
    expect_same_bits(alone.run({requests[i]}).front(), base[i]);
  }
}

TEST_P(LatentReference, HotGivesTheSameBits) {
  const auto base = run({});
  for (const std::int64_t hot_tokens : {16, 17, 32}) {
    for (const std::int64_t chunk : {7, 64}) {
      SCOPED_TRACE(concat("hot buffer of ", hot_tokens, " tokens, chunk ", chunk));
      StepStats stats;
      const auto answers = run({.hot = true, .hot_tokens = hot_tokens, .hot_ring = 1, .prefill_chunk = chunk}, &stats);
      for (std::size_t i = 0; i < base.size(); ++i) expect_same_bits(answers[i], base[i]);
      EXPECT_GT(stats.hot_sequences, 0);
      EXPECT_GT(stats.misses, 0);
      EXPECT_GT(stats.hits, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, LatentReference, ::testing::Values("tiny-deepseek-v32", "tiny-glm-dsa"),
                         [](const auto& info) {
                           return info.param == "tiny-glm-dsa" ? std::string("GlmDsa") : std::string("DeepseekV32");
                         });

// tiny-deepseek-v32 read as a model without an indexer: prompts go over expanded rows, generated tokens over latent
// ones.
TEST(DenseLatentReference, LogprobsTokensAndBits) {
  const TemporaryFolder folder;
  const auto source = unpacked("tiny-deepseek-v32");
  json config = json::parse(read_bytes(source / "config.json"));
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  config["model_type"] = "deepseek_v3";
  for (const auto* key : {"index_head_dim", "index_n_heads", "index_topk", "layer_types"}) config.erase(key);
  folder.write("config.json", config.dump());
  std::filesystem::copy_file(source / "model.safetensors", folder.path() / "model.safetensors");
  const json cases = cases_of(fixture("tiny-deepseek-v3"));
  double worst = 0;
  std::vector<ForwardAnswer> base;
  for (const std::int64_t chunk : {64, 1, 7, 300}) {
    SCOPED_TRACE(concat("chunk ", chunk));
    ForwardDriver driver({.checkpoint = folder.path(), .prefill_chunk = chunk, .threads = chunk == 7 ? 3 : 1});
    const auto answers = driver.run(requests_of(cases));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(concat(cases[i].at("input_ids").size(), " tokens"));
      expect_reference(answers[i], cases[i], worst);
      if (!base.empty()) expect_same_bits(answers[i], base[i]);
    }
    if (base.empty()) base = answers;
  }
  std::cout << "worst log-probability difference " << worst << '\n';
}

}  // namespace
}  // namespace hotset::model
