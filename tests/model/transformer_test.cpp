// The forward pass of latent models against the formulas in double, for the shapes of the family that no fixture has:
// queries without a rank, softmax routers, odd widths, no shared experts. And what loading refuses.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_driver.h"
#include "tests/model/slow_decoder.h"
#include "tests/model/small_latent_model.h"

namespace hotset::model {
namespace {

std::vector<std::int32_t> random_prompt(std::int64_t tokens, std::int64_t vocabulary) {
  std::mt19937 engine(7);
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < tokens; ++i) {
    out.push_back(static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(vocabulary)));
  }
  return out;
}

// The prompt goes over expanded rows of two tiles, the generated tokens over latent ones.
void expect_formulas(const ModelConfig& config) {
  ASSERT_TRUE(check_model_config(config).ok());
  const Tensors tensors = random_tensors(config, 11);
  testing::EngineDriver driver({.prefill_chunk = 50}, checkpoint_of(config, tensors));
  const testing::DriverRequest request{
      .prompt = random_prompt(70, config.vocabulary), .new_tokens = 8, .prompt_logprobs = 0};
  const testing::DriverAnswer answer = driver.run({request}).front();
  std::vector<std::int32_t> tokens = request.prompt;
  std::vector<SampledToken> got = answer.prompt_logprobs;
  for (const SampledToken& sampled : answer.tokens) {
    tokens.push_back(sampled.token);
    got.push_back(sampled);
  }
  const auto expected = SlowDecoder(config, tensors).logprobs(tokens);
  ASSERT_EQ(got.size() + 1, tokens.size());
  for (std::size_t t = 1; t < tokens.size(); ++t) {
    EXPECT_NEAR(got[t - 1].logprob, expected[t - 1][static_cast<std::size_t>(tokens[t])], 1e-4) << "token " << t;
  }
}

TEST(LatentTransformer, DenseMlpWithQueryRank) { expect_formulas(small_latent_config()); }

TEST(LatentTransformer, QueriesWithoutRankAndSoftmaxRouter) {
  ModelConfig config = small_latent_config();
  config.latent->q_rank = 0;
  config.experts = small_experts();
  config.experts->router = ExpertsConfig::Router::kSoftmax;
  config.experts->normalised = false;
  config.experts->scaling_factor = 1.5;
  expect_formulas(config);
}

TEST(LatentTransformer, GroupsByTheirBestExpertAndNoSharedOnes) {
  ModelConfig config = small_latent_config();
  config.experts = small_experts();
  config.experts->router = ExpertsConfig::Router::kSoftmax;
  config.experts->group_score = ExpertsConfig::GroupScore::kBest;
  config.experts->groups = 4;
  config.experts->top_groups = 2;
  config.experts->normalised = false;
  config.experts->shared = 0;
  expect_formulas(config);
}

TEST(LatentTransformer, SigmoidRouterWithBias) {
  ModelConfig config = small_latent_config();
  config.architecture = Architecture::kDeepseekV3;
  config.experts = small_experts();
  config.experts->correction_bias = true;
  config.experts->groups = 3;
  config.experts->top_groups = 2;
  config.experts->scaling_factor = 2.5;
  expect_formulas(config);
}

TEST(ModelWeights, CountsEveryMatrixOnce) {
  ModelConfig config = small_latent_config();
  config.experts = small_experts();
  const Tensors tensors = random_tensors(config, 1);
  const auto backend = kernels::make_cpu_backend(1);
  const auto weights = load_weights(*checkpoint_of(config, tensors), *backend);
  ASSERT_TRUE(weights.ok());
  std::int64_t expected = 0;
  for (const ExpectedTensor& tensor : expected_tensors(config)) {
    if (tensor.shape.size() == 2) expected += tensor.shape[0] * tensor.shape[1];
  }
  EXPECT_EQ(weights.value()->parameters(), expected);
}

TEST(ModelWeights, RefusesToTakeBlocksApart) {
  ModelConfig config = small_latent_config();
  config.latent->kv_rank = 32;
  const Tensors tensors = random_tensors(config, 1);
  const std::string name = "layers.1.self_attn.kv_b_proj";
  const std::vector<std::byte> blocks(static_cast<std::size_t>(config.heads * 22 * 34));
  auto made = checkpoint_of(config, tensors);
  CheckpointContents contents{.config = config};
  for (const ExpectedTensor& tensor : expected_tensors(config))
    contents.tensors[tensor.name] = *made->find(tensor.name);
  contents.tensors[name].type = kernels::WeightType::kQ8_0;
  contents.tensors[name].data = blocks;
  Checkpoint checkpoint(std::move(contents));
  const auto backend = kernels::make_cpu_backend(1);
  const auto weights = load_weights(checkpoint, *backend);
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.error().message.find(name), std::string::npos);
}

}  // namespace
}  // namespace hotset::model
