// Dummy weights through the whole forward pass: the same numbers again, finite results, and the two forms of kv_b that
// prompts and generated tokens use are of one matrix.
#include "model/dummy_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/half.h"
#include "model/safetensors_checkpoint.h"
#include "tests/engine/engine_driver.h"
#include "tests/model/slow_decoder.h"
#include "tests/model/small_latent_model.h"

namespace hotset::model {
namespace {

ModelConfig grouped_config() {
  ModelConfig config{.architecture = Architecture::kQwen3,
                     .vocabulary = 60,
                     .hidden = 48,
                     .intermediate = 80,
                     .layers = 3,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .rotary_dim = 16,
                     .max_positions = 4096};
  config.qk_norm = true;
  config.qkv_bias = true;
  return config;
}

ModelConfig latent_config() {
  ModelConfig config = small_latent_config();
  config.architecture = Architecture::kDeepseekV3;
  config.experts = small_experts();
  return config;
}

std::vector<float> logprobs(const testing::DriverAnswer& answer) {
  std::vector<float> out;
  for (const SampledToken& scored : answer.prompt_logprobs) out.push_back(scored.logprob);
  for (const SampledToken& sampled : answer.tokens) out.push_back(sampled.logprob);
  return out;
}

testing::DriverAnswer run(const ModelConfig& config, std::uint64_t seed, std::vector<std::int32_t> prompt) {
  const Tensors unused = random_tensors(config, 1);  // the driver takes the config from a checkpoint
  testing::DriverOptions options{.prefill_chunk = 50};
  options.make_runner = [&](const testing::EngineRequest& request) {
    auto backend = kernels::make_cpu_backend(1);
    auto weights = make_dummy_weights(config, *backend, seed);
    auto device = testing::require(storage::DevicePool::create(request.layout, request.device_pages));
    auto host = testing::require(storage::HostPool::create(request.layout, request.host_pages));
    return std::make_unique<StepRunner>(
        std::move(weights), std::move(backend), std::move(device), std::move(host), request.keeper,
        StepRunnerLimits{.max_batch = request.max_batch, .prefill_chunk = request.prefill_chunk});
  };
  testing::EngineDriver driver(options, checkpoint_of(config, unused));
  return driver.run({{.prompt = std::move(prompt), .new_tokens = 6, .prompt_logprobs = 0}}).front();
}

void expect_sound(const ModelConfig& config) {
  ASSERT_TRUE(check_model_config(config).ok());
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 70; ++i) prompt.push_back(i * i % static_cast<std::int32_t>(config.vocabulary));
  const testing::DriverAnswer answer = run(config, 3, prompt);
  const std::vector<float> base = logprobs(answer);
  for (const float value : base) EXPECT_TRUE(std::isfinite(value));
  EXPECT_EQ(logprobs(run(config, 3, prompt)), base);
  EXPECT_NE(logprobs(run(config, 4, prompt)), base);
  // The generated tokens as a prompt.
  std::vector<std::int32_t> longer = prompt;
  for (const SampledToken& sampled : answer.tokens) longer.push_back(sampled.token);
  const std::vector<float> again = logprobs(run(config, 3, longer));
  for (std::size_t i = 0; i < base.size(); ++i) EXPECT_NEAR(again[i], base[i], 1e-4) << i;
}

TEST(DummyWeights, Grouped) { expect_sound(grouped_config()); }
TEST(DummyWeights, LatentWithExperts) { expect_sound(latent_config()); }

TEST(DummyWeights, NumbersHaveTheDeviation) {
  const auto bits = kernels::random_matrix_bits(kernels::random_rows(9, 0.25F, 512), 256, 512);
  double sum = 0, squares = 0;
  for (const std::uint16_t value : bits) {
    const double x = bf16_to_f32(value);
    EXPECT_LE(std::abs(x), 0.25 * 1.7321 * 1.01);
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(bits.size());
  EXPECT_NEAR(sum / count, 0.0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / count), 0.25, 0.002);
}

TEST(DummyWeights, ConfigOfAFolder) {
  const auto config = read_folder_config(std::filesystem::path(HOTSET_FIXTURES) / "tiny-llama");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value().name, "tiny-llama");
  EXPECT_EQ(read_folder_config(std::filesystem::path(HOTSET_FIXTURES) / "nowhere").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace hotset::model
