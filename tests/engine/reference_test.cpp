// The forward pass against the reference library's numbers (tests/fixtures/*/expected.json and expected_sparse.json).
#include <gtest/gtest.h>

#include "sparse/selection.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"

namespace hotset::testing {
namespace {

constexpr float kTolerance = 2e-3F;  // bf16 weights, float32 compute (tests/fixtures/README.md)

class Reference : public ::testing::TestWithParam<std::string> {};

std::vector<std::int32_t> tokens_of(const DriverAnswer& answer) {
  std::vector<std::int32_t> tokens;
  for (const auto& sampled : answer.tokens) tokens.push_back(sampled.token);
  return tokens;
}

TEST_P(Reference, PromptLogprobsAndGreedyTokens) {
  const auto cases = read_json(fixture(GetParam()) / "expected.json").at("cases");
  for (const std::int64_t chunk : {7, 64, 256}) {
    EngineDriver driver({.checkpoint = fixture(GetParam()), .prefill_chunk = chunk});
    std::vector<DriverRequest> requests;
    for (const auto& one : cases) {
      requests.push_back({.prompt = one.at("input_ids"), .new_tokens = 24, .prompt_logprobs = 0});
    }
    const auto answers = driver.run(requests);  // all lengths in one batch
    for (std::size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(concat("chunk ", chunk, ", ", requests[i].prompt.size(), " tokens"));
      const auto& expected = cases[i].at("prompt_logprobs");
      ASSERT_EQ(answers[i].prompt_logprobs.size() + 1, expected.size());
      for (std::size_t t = 1; t < expected.size(); ++t) {
        EXPECT_NEAR(answers[i].prompt_logprobs[t - 1].logprob, expected[t].get<float>(), kTolerance) << "token " << t;
      }
      EXPECT_EQ(tokens_of(answers[i]), cases[i].at("greedy").get<std::vector<std::int32_t>>());
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
      const auto answer = driver.run({{.prompt = one.at("input_ids"), .new_tokens = 24}}).front();
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
  EXPECT_EQ(compared, 3 * 2 * 24);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Reference, ::testing::Values("tiny-llama", "tiny-qwen3"),
                         [](const auto& info) { return info.param == "tiny-llama" ? "Llama" : "Qwen3"; });

}  // namespace
}  // namespace hotset::testing
