#include "model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace hotset::model {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::int32_t sample_once(SamplingParams params, std::vector<float> logits, std::vector<std::int32_t> prompt = {}) {
  Sampler sampler(std::move(params), prompt);
  SampledToken out;
  EXPECT_TRUE(sampler.sample(logits, out));
  return out.token;
}

std::map<std::int32_t, int> draws(const SamplingParams& params, const std::vector<float>& logits, int count) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < count; ++i) {
    SamplingParams seeded = params;
    seeded.seed = static_cast<std::uint64_t>(i) * 7919 + 13;
    ++counts[sample_once(seeded, logits)];
  }
  return counts;
}

TEST(Sampler, GreedyIsArgmaxWithTiesToTheLowerId) {
  EXPECT_EQ(sample_once({.temperature = 0}, {0.5F, 2.0F, 2.0F, -1.0F}), 1);
  EXPECT_EQ(sample_once({.temperature = 0}, {-kInf, -kInf, -3.0F}), 2);
}

TEST(Sampler, DrawsWithTheSoftmaxOfLogitsOverTemperature) {
  const std::vector<float> logits{0.0F, std::log(2.0F), std::log(5.0F)};
  auto counts = draws({}, logits, 16000);  // 1/8, 2/8, 5/8
  EXPECT_NEAR(counts[0] / 16000.0, 0.125, 0.012);
  EXPECT_NEAR(counts[2] / 16000.0, 0.625, 0.015);
  counts = draws({.temperature = 0.5F}, logits, 16000);  // 1/30, 4/30, 25/30
  EXPECT_NEAR(counts[0] / 16000.0, 1 / 30.0, 0.007);
  EXPECT_NEAR(counts[1] / 16000.0, 4 / 30.0, 0.012);
}

TEST(Sampler, TopKKeepsTheBestAndTiesGoToTheLowerId) {
  const auto counts = draws({.top_k = 2}, {1.0F, 3.0F, 1.0F, -2.0F}, 2000);
  ASSERT_EQ(counts.size(), 2U);
  EXPECT_TRUE(counts.contains(0) && counts.contains(1));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  EXPECT_EQ(draws({.top_p = 0.4F}, logits, 1000).size(), 1U);
  EXPECT_EQ(draws({.top_p = 0.6F}, logits, 1000).size(), 2U);
  EXPECT_EQ(draws({.top_p = 0.9F}, logits, 2000).size(), 3U);
  EXPECT_EQ(draws({.top_p = 0.999F}, logits, 4000).size(), 4U);
}

// Larger than what is ordered at first, in no order, with ties.
TEST(Sampler, TopPOfAFlatVocabularyKeepsItsShareOfTheBest) {
  constexpr int kTokens = 1000;
  std::vector<float> logits(kTokens);
  for (int id = 0; id < kTokens; ++id) logits[static_cast<std::size_t>(id)] = (id * 7919 % kTokens) < 500 ? 1.0F : 0.0F;
  const double best = std::exp(1.0) * 500;
  const auto share = static_cast<float>(0.8 * best / (best + 500));
  const auto counts = draws({.top_p = share}, logits, 4000);
  std::vector<int> kept;  // the first 400 tokens with the higher score
  for (int id = 0; id < kTokens && kept.size() < 400; ++id) {
    if (logits[static_cast<std::size_t>(id)] == 1.0F) kept.push_back(id);
  }
  EXPECT_GT(counts.size(), 390U);
  for (const auto& [id, count] : counts) EXPECT_LE(id, kept.back() + 2);
  EXPECT_TRUE(counts.contains(kept.front()));
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  const std::vector<float> logits{std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  EXPECT_EQ(draws({.min_p = 0.4F}, logits, 1000).size(), 2U);
}

TEST(Sampler, RepetitionPenaltyCountsPromptAndOutput) {
  EXPECT_EQ(sample_once({.temperature = 0, .repetition_penalty = 2.0F}, {2.0F, 1.5F}, {0}), 1);
  EXPECT_EQ(sample_once({.temperature = 0, .repetition_penalty = 2.0F}, {-1.0F, -1.5F}, {0}), 1);
  EXPECT_EQ(sample_once({.temperature = 0}, {2.0F, 1.5F}, {0}), 0);
}

TEST(Sampler, PresenceAndFrequencyPenaltiesCountOutputOnly) {
  Sampler sampler({.temperature = 0, .presence_penalty = 0.25F, .frequency_penalty = 0.5F},
                  std::vector<std::int32_t>{1});
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> logits{3.0F, 2.0F};
    SampledToken out;
    ASSERT_TRUE(sampler.sample(logits, out));
    tokens.push_back(out.token);
  }
  // 3.0 against 2.0; after one: 2.25; after two: 1.75 < 2.0, so token 1; then 1.75 against 1.25.
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{0, 0, 1, 0}));
}

TEST(Sampler, LogitBiasForcesAndForbids) {
  EXPECT_EQ(sample_once({.temperature = 0, .logit_bias = {{2, 100.0F}}}, {5.0F, 4.0F, -20.0F}), 2);
  EXPECT_EQ(sample_once({.temperature = 0, .logit_bias = {{0, -100.0F}}}, {5.0F, 4.0F, -20.0F}), 1);
}

TEST(Sampler, SameSeedSameTokensOtherSeedOthers) {
  const auto run = [](std::uint64_t seed) {
    Sampler sampler({.seed = seed}, {});
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 32; ++i) {
      std::vector<float> logits(64, 0.0F);
      SampledToken out;
      EXPECT_TRUE(sampler.sample(logits, out));
      tokens.push_back(out.token);
    }
    return tokens;
  };
  EXPECT_EQ(run(42), run(42));
  EXPECT_NE(run(42), run(43));
}

TEST(Sampler, LogprobsAreRawWhateverTheAdjustments) {
  Sampler sampler({.temperature = 0, .repetition_penalty = 3.0F, .logit_bias = {{1, 50.0F}}, .logprobs = 2},
                  std::vector<std::int32_t>{0});
  std::vector<float> logits{std::log(0.5F), std::log(0.2F), std::log(0.3F)};
  SampledToken out;
  ASSERT_TRUE(sampler.sample(logits, out));
  EXPECT_EQ(out.token, 1);
  EXPECT_NEAR(out.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(out.top.size(), 2U);
  EXPECT_EQ(out.top[0].token, 0);
  EXPECT_NEAR(out.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(out.top[1].token, 2);
}

TEST(Sampler, UnusableLogitsFailTheSequence) {
  for (const auto& bad : {std::vector<float>{0.0F, std::nanf("")}, {kInf, 0.0F}, {-kInf, -kInf}}) {
    Sampler sampler({.temperature = 0}, {});
    std::vector<float> logits = bad;
    SampledToken out;
    EXPECT_FALSE(sampler.sample(logits, out));
  }
}

TEST(ScoreToken, AlternativesAreBestFirstTiesToTheLowerId) {
  const std::vector<float> logits{1.0F, 2.0F, 2.0F, 0.0F};
  const SampledToken scored = score_token(logits, 3, 3);
  EXPECT_EQ(scored.token, 3);
  ASSERT_EQ(scored.top.size(), 3U);
  EXPECT_EQ(scored.top[0].token, 1);
  EXPECT_EQ(scored.top[1].token, 2);
  EXPECT_EQ(scored.top[2].token, 0);
  const double total = std::log(std::exp(1.0) + 2 * std::exp(2.0) + 1.0);
  EXPECT_NEAR(scored.logprob, -total, 1e-6);
}

TEST(ScoreToken, MoreAlternativesThanTokens) {
  EXPECT_EQ(score_token(std::vector<float>{1.0F, 2.0F}, 0, 20).top.size(), 2U);
}

}  // namespace
}  // namespace hotset::model
