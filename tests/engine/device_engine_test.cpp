// The engine on a GPU against the reference library's numbers (tests/fixtures/*/expected*.json), in float32; and that
// hot mode, its buffers, graphs and neighbours change no bit.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/device_driver.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/test_algorithms.h"

namespace hotset::testing {
namespace {

constexpr float kTolerance = 2e-3F;  // bf16 weights, float32 compute (tests/fixtures/README.md)
constexpr std::int32_t kNewTokens = 24;

class DeviceEngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
};
using DeviceGrouped = DeviceEngineTest;
using DeviceLatent = DeviceEngineTest;

std::vector<DriverRequest> requests_of(const nlohmann::json& cases) {
  std::vector<DriverRequest> requests;
  for (const auto& one : cases)
    requests.push_back({.prompt = one.at("input_ids"), .new_tokens = kNewTokens, .prompt_logprobs = 0});
  return requests;
}

std::vector<float> all_logprobs(const std::vector<DriverAnswer>& answers) {
  std::vector<float> all;
  for (const DriverAnswer& answer : answers) {
    for (const auto& scored : answer.prompt_logprobs) all.push_back(scored.logprob);
    for (const auto& sampled : answer.tokens) all.push_back(sampled.logprob);
  }
  return all;
}

void expect_reference(const std::vector<DriverAnswer>& answers, const nlohmann::json& cases) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    SCOPED_TRACE(concat(cases[i].at("input_ids").size(), " tokens"));
    const auto& logprobs = cases[i].at("prompt_logprobs");
    ASSERT_EQ(answers[i].prompt_logprobs.size() + 1, logprobs.size());
    for (std::size_t t = 1; t < logprobs.size(); ++t)
      ASSERT_NEAR(answers[i].prompt_logprobs[t - 1].logprob, logprobs[t].get<float>(), kTolerance) << "token " << t;
    const std::vector<std::int32_t> greedy = cases[i].at("greedy");
    for (std::size_t t = 0; t < greedy.size(); ++t) ASSERT_EQ(answers[i].tokens[t].token, greedy[t]) << "step " << t;
  }
}

TEST_P(DeviceGrouped, PromptLogprobsAndGreedyTokens) {
  const auto cases = read_json(fixture(GetParam()) / "expected.json").at("cases");
  for (const std::int64_t chunk : {64, 7, 256}) {
    SCOPED_TRACE(concat("chunk ", chunk));
    EngineDriver driver({.checkpoint = fixture(GetParam()), .prefill_chunk = chunk, .make_runner = DeviceRunners{}});
    expect_reference(driver.run(requests_of(cases)), cases);  // all lengths in one batch
  }
}

Algorithm algorithm_of(const nlohmann::json& options, const std::filesystem::path& folder,
                       const model::ModelConfig& config) {
  AlgorithmSizes sizes;
  const std::string name = options.at("algorithm");
  sizes.block_tokens = options.value("block", 16);
  sizes.window = options.at("window");
  sizes.sink = options.value("sink", 4);
  sizes.budget = options.value("budget", 0) * (name == "quest" ? sizes.block_tokens : 1);
  const std::string combine = options.value("combine", "max");
  sizes.combine = combine == "mean"      ? kernels::HeadCombine::kMean
                  : combine == "softmax" ? kernels::HeadCombine::kSoftmax
                                         : kernels::HeadCombine::kMax;
  return make_algorithm(name, config, KvDType::kF32, sizes, folder / "index_basis.safetensors");
}

TEST_P(DeviceGrouped, SparseAlgorithmsAgreeResidentAndHot) {
  const auto folder = fixture(GetParam());
  const model::ModelConfig config = require(model::open_checkpoint(folder))->config();
  std::int64_t misses = 0;
  const auto cases = read_json(folder / "expected_sparse.json").at("cases");
  for (const auto& one : cases) {
    const auto& options = one.at("options");
    SCOPED_TRACE(concat(options.dump(), ", ", one.at("input_ids").size(), " tokens"));
    const Algorithm algorithm = algorithm_of(options, folder, config);
    std::vector<float> resident;
    for (const KvModeChoice mode : {KvModeChoice::kResident, KvModeChoice::kHot}) {
      EngineDriver driver({.checkpoint = folder,
                           .policy = {.algorithm = algorithm, .threshold = 0},
                           .mode = mode,
                           .hot_ring = algorithm->window_tokens(),
                           .make_runner = DeviceRunners{}});
      const auto answers = driver.run({{.prompt = one.at("input_ids"), .new_tokens = kNewTokens}});
      EXPECT_EQ(answers.front().was_hot, mode == KvModeChoice::kHot);
      const std::vector<std::int32_t> greedy = one.at("greedy");
      const std::vector<float> logprobs = one.at("greedy_logprobs");
      for (std::size_t step = 0; step < greedy.size(); ++step) {
        ASSERT_EQ(answers.front().tokens[step].token, greedy[step]) << "step " << step;
        ASSERT_NEAR(answers.front().tokens[step].logprob, logprobs[step], kTolerance) << "step " << step;
      }
      if (mode == KvModeChoice::kResident) {
        resident = all_logprobs(answers);
      } else {
        EXPECT_EQ(all_logprobs(answers), resident);
        misses += driver.stats().misses;
      }
    }
  }
  EXPECT_GT(misses, 0);
}

INSTANTIATE_TEST_SUITE_P(Tiny, DeviceGrouped, ::testing::Values("tiny-llama", "tiny-qwen3"),
                         [](const auto& info) { return info.param == "tiny-llama" ? "Llama" : "Qwen3"; });

TEST_P(DeviceLatent, DsaAgreesResidentAndHot) {
  const auto folder = unpacked_fixture(GetParam());
  const auto config = read_json(folder / "config.json");
  const auto cases = read_json(folder / "expected.json").at("cases");
  const std::int64_t top_k = config.at("index_topk");
  DriverOptions options{
      .checkpoint = folder,
      .policy = {.algorithm = require(sparse::make_dsa({.top_k = top_k, .dim = config.at("index_head_dim")})),
                 .threshold = top_k},
      .make_runner = DeviceRunners{}};
  std::vector<float> base;
  const auto check = [&](const char* what) {
    SCOPED_TRACE(what);
    EngineDriver driver(options);
    const auto answers = driver.run(requests_of(cases));
    expect_reference(answers, cases);
    if (base.empty()) base = all_logprobs(answers);
    EXPECT_EQ(all_logprobs(answers), base);
    EXPECT_EQ(driver.stats().misses > 0, options.mode == KvModeChoice::kHot);
  };
  check("resident");
  options.make_runner = DeviceRunners{.graphs = false};
  check("without graphs");
  options.make_runner = DeviceRunners{};
  options.mode = KvModeChoice::kHot;
  options.hot_ring = 1;
  for (const std::int64_t blocks : {16, 17, 32}) {
    options.hot_blocks = blocks;
    check("hot");
  }
}

// Latent rows as the keys of one KV head: no reference of these but the CPU.
TEST_P(DeviceLatent, LowRankAndQuestAreTheCpus) {
  const auto folder = unpacked_fixture(GetParam());
  const model::ModelConfig config = require(model::open_checkpoint(folder))->config();
  const auto cases = read_json(folder / "expected.json").at("cases");
  for (const std::string name : {"lowrank", "quest"}) {
    SCOPED_TRACE(name);
    const Algorithm algorithm = make_algorithm(name, config, KvDType::kF32, {}, {});
    DriverOptions options{.checkpoint = folder,
                          .policy = {.algorithm = algorithm, .threshold = 0},
                          .hot_ring = algorithm->window_tokens()};
    EngineDriver on_cpu(options);
    const auto expected = on_cpu.run(requests_of(cases));
    options.make_runner = DeviceRunners{};
    EngineDriver resident(options);
    const auto answers = resident.run(requests_of(cases));
    ASSERT_EQ(answers.size(), expected.size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
      for (std::size_t t = 0; t < expected[i].tokens.size(); ++t) {
        ASSERT_EQ(answers[i].tokens[t].token, expected[i].tokens[t].token) << "request " << i << ", token " << t;
        ASSERT_NEAR(answers[i].tokens[t].logprob, expected[i].tokens[t].logprob, kTolerance)
            << "request " << i << ", token " << t;
      }
    }
    options.mode = KvModeChoice::kHot;
    EngineDriver hot(options);
    EXPECT_EQ(all_logprobs(hot.run(requests_of(cases))), all_logprobs(answers));
    EXPECT_GT(hot.stats().misses, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, DeviceLatent, ::testing::Values("tiny-deepseek-v32", "tiny-glm-dsa"),
                         [](const auto& info) { return info.param == "tiny-glm-dsa" ? "GlmDsa" : "DeepseekV32"; });

// A device pool for two sequences, and five of them: demoted, parked, resumed, promoted, and prompts from the host.
class DeviceModes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_F(DeviceModes, PressureChangesNoToken) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  const auto folder = fixture("tiny-llama");
  const model::ModelConfig config = require(model::open_checkpoint(folder))->config();
  for (const std::string name : {"lowrank", "quest", "streaming"}) {
    SCOPED_TRACE(name);
    const Algorithm algorithm = make_algorithm(name, config, KvDType::kF32, {}, folder / "index_basis.safetensors");
    std::vector<DriverRequest> requests;
    for (const std::int64_t length : {300, 120, 500, 64, 250}) {
      std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
      for (auto& token : prompt) token = std::uniform_int_distribution<std::int32_t>(2, 511)(random);
      requests.push_back({.prompt = std::move(prompt), .new_tokens = 60});
    }
    DriverOptions options{.checkpoint = folder,
                          .policy = {.algorithm = algorithm, .threshold = 100},
                          .device_tokens = 16384,
                          .hot_ring = 32,
                          .make_runner = DeviceRunners{}};
    EngineDriver roomy(options);
    const auto expected = roomy.run(requests);
    EXPECT_EQ(roomy.stats().misses, 0);
    options.device_tokens = 640;
    EngineDriver tight(options);
    const auto answers = tight.run(requests);
    EXPECT_GT(tight.counters().entered_hot, 0);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      for (std::size_t t = 0; t < answers[i].tokens.size(); ++t) {
        ASSERT_EQ(answers[i].tokens[t].token, expected[i].tokens[t].token) << "request " << i << ", token " << t;
        ASSERT_NEAR(answers[i].tokens[t].logprob, expected[i].tokens[t].logprob, 1e-4) << "request " << i;
      }
    }
  }
}

// A prompt that the pool can't hold, of more than two pieces: they are brought in advance, layer after layer, and give
// the bits of a resident prompt.
TEST_F(DeviceModes, PromptsFromTheHostInSeveralPieces) {
  for (const std::string name : {"tiny-llama", "tiny-deepseek-v32"}) {
    SCOPED_TRACE(name);
    const auto folder = name == "tiny-llama" ? fixture(name) : unpacked_fixture(name);
    const model::ModelConfig config = require(model::open_checkpoint(folder))->config();
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(concat("seed ", seed));
    std::mt19937 random(seed);
    std::vector<std::int32_t> prompt(9000);
    for (auto& token : prompt) token = std::uniform_int_distribution<std::int32_t>(2, config.vocabulary - 1)(random);
    DriverOptions options{
        .checkpoint = folder,
        .policy = {.algorithm = make_algorithm("streaming", config, KvDType::kF32, {}, {}), .threshold = 100},
        .device_tokens = 16384,
        .prefill_chunk = 1024,
        .hot_ring = 128,
        .make_runner = DeviceRunners{}};
    const std::vector<DriverRequest> requests{{.prompt = prompt, .new_tokens = 20, .prompt_logprobs = 0}};
    EngineDriver roomy(options);
    const auto expected = all_logprobs(roomy.run(requests));
    EXPECT_EQ(roomy.counters().streamed_prefills, 0);
    options.device_tokens = 1024;
    EngineDriver tight(options);
    const auto answers = tight.run(requests);
    EXPECT_EQ(tight.counters().streamed_prefills, 1);
    EXPECT_TRUE(answers.front().was_hot);
    const auto got = all_logprobs(answers);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << "token " << i;
  }
}

}  // namespace
}  // namespace hotset::testing
