// The forward pass against the reference library's numbers (tests/fixtures/*/expected.json and expected_sparse.json).
#include <gtest/gtest.h>

#include <map>

#include "sparse/dsa.h"
#include "sparse/selection.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/model/temporary_folder.h"

namespace hotset::testing {
namespace {

constexpr float kTolerance = 2e-3F;  // bf16 weights, float32 compute (tests/fixtures/README.md)

class Reference : public ::testing::TestWithParam<std::string> {};

std::vector<std::int32_t> tokens_of(const DriverAnswer& answer) {
  std::vector<std::int32_t> tokens;
  for (const auto& sampled : answer.tokens) tokens.push_back(sampled.token);
  return tokens;
}

constexpr std::int32_t kNewTokens = 24;

std::vector<DriverRequest> requests_of(const nlohmann::json& cases) {
  std::vector<DriverRequest> requests;
  for (const auto& one : cases) {
    requests.push_back({.prompt = one.at("input_ids"), .new_tokens = kNewTokens, .prompt_logprobs = 0});
  }
  return requests;
}

// Appends the log-probabilities of the prompt and the answer to `all`.
void expect_reference(const DriverAnswer& answer, const nlohmann::json& expected, std::vector<float>& all) {
  const auto& logprobs = expected.at("prompt_logprobs");
  ASSERT_EQ(answer.prompt_logprobs.size() + 1, logprobs.size());
  for (std::size_t t = 1; t < logprobs.size(); ++t) {
    all.push_back(answer.prompt_logprobs[t - 1].logprob);
    EXPECT_NEAR(all.back(), logprobs[t].get<float>(), kTolerance) << "token " << t;
  }
  EXPECT_EQ(tokens_of(answer), expected.at("greedy").get<std::vector<std::int32_t>>());
  for (const auto& sampled : answer.tokens) all.push_back(sampled.logprob);
}

TEST_P(Reference, PromptLogprobsAndGreedyTokens) {
  const auto cases = read_json(fixture(GetParam()) / "expected.json").at("cases");
  const std::vector<DriverRequest> requests = requests_of(cases);
  for (const std::int64_t chunk : {7, 64, 256}) {
    EngineDriver driver({.checkpoint = fixture(GetParam()), .prefill_chunk = chunk});
    const auto answers = driver.run(requests);  // all lengths in one batch
    std::vector<float> logprobs;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(concat("chunk ", chunk, ", ", requests[i].prompt.size(), " tokens"));
      expect_reference(answers[i], cases[i], logprobs);
    }
    EXPECT_EQ(driver.counters().device_pages_free, driver.counters().device_pages_total);
    EXPECT_EQ(driver.counters().host_pages_free, driver.counters().host_pages_total);
  }
}

TEST_P(Reference, StreamingAgreesResidentAndHot) {
  int compared = 0;
  const auto cases = read_json(fixture(GetParam()) / "expected_sparse.json").at("cases");
  for (const auto& one : cases) {
    const auto& options = one.at("options");
    if (options.at("algorithm") != "streaming") continue;
    const std::int64_t window = options.at("window");
    auto algorithm = sparse::make_streaming(options.at("block"), window);
    ASSERT_TRUE(algorithm.ok());
    for (const KvModeChoice mode : {KvModeChoice::kResident, KvModeChoice::kHot}) {
      EngineDriver driver({.checkpoint = fixture(GetParam()),
                           .policy = {.algorithm = algorithm.value(), .threshold = 0},
                           .mode = mode,
                           .hot_ring = window});
      const auto answer = driver.run({{.prompt = one.at("input_ids"), .new_tokens = kNewTokens}}).front();
      EXPECT_EQ(answer.was_hot, mode == KvModeChoice::kHot);
      if (mode == KvModeChoice::kHot && one.at("input_ids").size() > 200) {
        EXPECT_GT(driver.stats().misses, 0);
      }
      const std::vector<std::int32_t> greedy = one.at("greedy");
      const std::vector<float> logprobs = one.at("greedy_logprobs");
      for (std::size_t step = 0; step < greedy.size(); ++step) {
        ASSERT_EQ(answer.tokens[step].token, greedy[step]) << "step " << step;
        EXPECT_NEAR(answer.tokens[step].logprob, logprobs[step], kTolerance) << "step " << step;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 3 * 2 * kNewTokens);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Reference, ::testing::Values("tiny-llama", "tiny-qwen3"),
                         [](const auto& info) { return info.param == "tiny-llama" ? "Llama" : "Qwen3"; });

// What the rows of prompts select: [sequence][layer] of the newest row.
class PromptSelections final : public sparse::SelectionObserver {
 public:
  void observe(const sparse::SelectionRecord& record) override {
    if (!record.prefill) return;
    auto& out = newest_[record.sequence.value()][record.layer.value()];
    out.assign(record.blocks.begin(), record.blocks.end());
    for (std::int64_t i = 0; record.everything && i <= record.position; ++i) {
      out.push_back(static_cast<std::int32_t>(i));
    }
  }
  [[nodiscard]] const std::vector<std::int32_t>& newest(std::uint64_t sequence, std::int32_t layer) const {
    return newest_.at(sequence).at(layer);
  }

 private:
  std::map<std::uint64_t, std::map<std::int32_t, std::vector<std::int32_t>>> newest_;
};

class DsaReference : public ::testing::TestWithParam<std::string> {
 protected:
  // In one batch, planned like a server's, or one after the other. Returns the log-probabilities of all prompts and
  // answers.
  static std::vector<float> run(DriverOptions options, bool batch = true) {
    options.checkpoint = unpacked_fixture(GetParam());
    const auto config = read_json(options.checkpoint / "config.json");
    const auto cases = read_json(options.checkpoint / "expected.json").at("cases");
    const std::int64_t top_k = config.at("index_topk");
    options.policy = {.algorithm = require(sparse::make_dsa({.top_k = top_k, .dim = config.at("index_head_dim")})),
                      .threshold = top_k};
    EngineDriver driver(options);
    const auto selections = std::make_shared<PromptSelections>();
    driver.observe(selections);
    const std::vector<DriverRequest> requests = requests_of(cases);
    std::vector<DriverAnswer> answers;
    if (batch) answers = driver.run(requests);
    for (std::size_t i = 0; !batch && i < requests.size(); ++i) {
      answers.push_back(driver.run({requests[i]}, i + 1).front());
    }
    std::vector<float> all;
    for (std::size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(concat(requests[i].prompt.size(), " tokens"));
      expect_reference(answers[i], cases[i], all);
      for (const auto& [layer, selected] : cases[i].at("selected_last").items()) {
        // A prompt no longer than top_k selects nothing: it attends to everything.
        if (static_cast<std::int64_t>(requests[i].prompt.size()) <= top_k) continue;
        EXPECT_EQ(selections->newest(i + 1, std::stoi(layer)), selected.get<std::vector<std::int32_t>>());
      }
      EXPECT_EQ(answers[i].was_hot, options.mode == KvModeChoice::kHot);
    }
    if (options.mode == KvModeChoice::kHot) {
      EXPECT_GT(driver.stats().misses, 0);
      EXPECT_GT(driver.stats().hits, 0);
    }
    EXPECT_EQ(driver.counters().device_pages_free, driver.counters().device_pages_total);
    EXPECT_EQ(driver.counters().metadata_pages_free, driver.counters().metadata_pages_total);
    return all;
  }
};

// Chunks, threads, the batch and the place of the rows change no bit.
TEST_P(DsaReference, EveryWayOfRunningGivesTheSameBits) {
  const auto base = run({});
  for (const std::int64_t chunk : {1, 7}) {
    SCOPED_TRACE(concat("chunk ", chunk));
    EXPECT_EQ(run({.prefill_chunk = chunk, .threads = chunk == 7 ? 3 : 1}), base);
  }
  EXPECT_EQ(run({.prefill_chunk = 300}, false), base);
  for (const std::int64_t blocks : {16, 17, 32}) {
    SCOPED_TRACE(concat("hot buffer of ", blocks, " tokens"));
    const std::int64_t chunk = blocks == 17 ? 7 : 64;
    EXPECT_EQ(run({.mode = KvModeChoice::kHot, .prefill_chunk = chunk, .hot_ring = 1, .hot_blocks = blocks}), base);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, DsaReference, ::testing::Values("tiny-deepseek-v32", "tiny-glm-dsa"),
                         [](const auto& info) { return info.param == "tiny-glm-dsa" ? "GlmDsa" : "DeepseekV32"; });

// tiny-deepseek-v32 read as a model without an indexer, against numbers in double
// (tools/make_dense_latent_expected.py): prompts go over expanded rows, generated tokens over latent ones.
TEST(DenseLatentReference, LogprobsTokensAndBits) {
  const model::TemporaryFolder folder;
  const auto source = unpacked_fixture("tiny-deepseek-v32");
  nlohmann::json config = read_json(source / "config.json");
  config["architectures"] = {"DeepseekV3ForCausalLM"};
  config["model_type"] = "deepseek_v3";
  for (const auto* key : {"index_head_dim", "index_n_heads", "index_topk", "layer_types"}) config.erase(key);
  folder.write("config.json", config.dump());
  std::filesystem::copy_file(source / "model.safetensors", folder.path() / "model.safetensors");
  const auto cases = read_json(fixture("tiny-deepseek-v3") / "expected.json").at("cases");
  std::vector<float> base;
  for (const std::int64_t chunk : {64, 1, 7, 300}) {
    SCOPED_TRACE(concat("chunk ", chunk));
    EngineDriver driver({.checkpoint = folder.path(), .prefill_chunk = chunk, .threads = chunk == 7 ? 3 : 1});
    const auto answers = driver.run(requests_of(cases));
    std::vector<float> all;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(concat(cases[i].at("input_ids").size(), " tokens"));
      expect_reference(answers[i], cases[i], all);
    }
    if (base.empty()) base = all;
    EXPECT_EQ(all, base);
  }
}

}  // namespace
}  // namespace hotset::testing
