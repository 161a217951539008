// FP8 weights that stay FP8 on a GPU, against the CPU's engine on the same weights widened to float32; and that modes
// and neighbours change no bit with them either.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "core/concat.h"
#include "kernels/cuda/weight_matrix.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fp8_model.h"
#include "tests/engine/mode_runs.h"
#include "tests/seed.h"

namespace hotset::testing {
namespace {

using kernels::ElementType;

struct Fp8Case {
  std::string name;
  model::ModelConfig config;
};
std::ostream& operator<<(std::ostream& out, const Fp8Case& one) { return out << one.name; }

class DeviceFp8 : public ::testing::TestWithParam<Fp8Case> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    auto engine = require(model::open_device_engine(ElementType::kBF16));
    if (!engine.backend->takes_fp8(128, 128)) GTEST_SKIP() << "no Hopper GPU here";
  }
};
class DeviceFp8Modes : public DeviceFp8 {};

TEST_P(DeviceFp8, WeightsTakeWhatTheirFormatsTake) {
  const Fp8Model model(GetParam().config);
  auto checkpoint = model.checkpoint();
  for (const bool keeps : {true, false}) {
    model::DeviceEngine engine = require(model::open_device_engine(ElementType::kBF16, keeps));
    const auto takes = [&](std::int64_t rows, std::int64_t cols) { return engine.backend->takes_fp8(rows, cols); };
    const auto fp8 = model::fp8_matrices(*checkpoint, takes);
    EXPECT_EQ(fp8.empty(), !keeps);
    std::int64_t bytes = 0;
    for (const model::ExpectedTensor& tensor : model::expected_tensors(GetParam().config)) {
      if (tensor.shape.size() != 2) continue;
      bytes += fp8.contains(tensor.name) ? kernels::cuda::fp8_weight_bytes(tensor.shape[0], tensor.shape[1])
                                         : 2 * tensor.shape[0] * tensor.shape[1];
    }
    const auto weights = require(model::load_weights(*checkpoint, *engine.backend));
    EXPECT_EQ(weights->matrix_bytes(), bytes);
  }
}

// Log-probabilities of a prompt's tokens.
std::vector<float> prompt_logprobs(const Fp8Model& model, const MakeRunner& make_runner) {
  std::mt19937_64 random(9);
  EngineDriver driver({.prefill_chunk = 256, .make_runner = make_runner}, model.checkpoint());
  std::vector<float> out;
  for (const auto& answer : driver.run({{.prompt = random_prompt(200, random), .new_tokens = 1, .prompt_logprobs = 0}}))
    for (const auto& scored : answer.prompt_logprobs) out.push_back(scored.logprob);
  return out;
}

// Log-probabilities of generated tokens, each sequence made to repeat one of its own behind a prompt of one token.
std::vector<float> decode_logprobs(const Fp8Model& model, const MakeRunner& make_runner) {
  EngineDriver driver({.make_runner = make_runner}, model.checkpoint());
  std::vector<DriverRequest> requests;
  for (std::int32_t i = 0; i < 12; ++i) {
    requests.push_back({.prompt = {3 + 7 * i},
                        .new_tokens = 40,
                        .sampling = {.temperature = 0, .logit_bias = {{40 + 11 * i, 1000.0F}}, .logprobs = 0}});
  }
  std::vector<float> out;
  for (const auto& answer : driver.run(requests))
    for (const auto& sampled : answer.tokens) out.push_back(sampled.logprob);
  return out;
}

struct Gap {
  double mean = 0, most = 0;
};
Gap gap_of(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  Gap gap;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    EXPECT_TRUE(std::isfinite(difference));
    gap.mean += difference / static_cast<double>(a.size());
    gap.most = std::max(gap.most, difference);
  }
  return gap;
}

// Between the CPU's log-probabilities and the GPU's, with FP8 weights that are widened to bfloat16 and that stay.
struct Gaps {
  Gap widened, fp8;
};
Gaps gaps_of(std::vector<float> (*logprobs)(const Fp8Model&, const MakeRunner&), const Fp8Model& model) {
  const auto runners = [](bool fp8) { return DeviceRunners{.compute = ElementType::kBF16, .fp8_weights = fp8}; };
  const std::vector<float> cpu = logprobs(model, nullptr);
  const Gaps gaps{.widened = gap_of(logprobs(model, runners(false)), cpu),
                  .fp8 = gap_of(logprobs(model, runners(true)), cpu)};
  std::cout << "mean and largest difference: widened " << gaps.widened.mean << ", " << gaps.widened.most << "; FP8 "
            << gaps.fp8.mean << ", " << gaps.fp8.most << '\n';
  return gaps;
}

// Rounds of FP8: up to 2^-4 of an input, 2^-4 / sqrt(3) on average, in five products of a layer that follow one
// another; logits are about 1 in size, and log-probabilities differ by sqrt(5 layers) times that at most, on average.
double quantised_gap(const model::ModelConfig& config) {
  return 0x1p-4 / std::sqrt(3.0) * std::sqrt(5.0 * config.layers);
}

// Products of more than 64 rows quantise their inputs. A near tie of experts that goes the other way counts for more.
TEST_P(DeviceFp8, PromptLogprobsAsOnTheCpu) {
  const Fp8Model model(GetParam().config);
  const Gap fp8 = gaps_of(prompt_logprobs, model).fp8;
  EXPECT_LT(fp8.mean, quantised_gap(GetParam().config) * (GetParam().config.experts ? 2 : 1));
}

// Steps of 12 rows quantise the inputs of experts alone, and so does a prompt of one row. Without them FP8 weights are
// exact, where widening rounds them to bfloat16: no farther from the CPU than that. With experts a sequence may get
// another one for all of its tokens, which are all the same.
TEST_P(DeviceFp8, DecodeLogprobsAsOnTheCpu) {
  const Fp8Model model(GetParam().config);
  const auto [widened, fp8] = gaps_of(decode_logprobs, model);
  const double quantised = quantised_gap(GetParam().config);
  if (GetParam().config.experts) {
    EXPECT_LT(fp8.mean, 3 * quantised);
  } else {
    EXPECT_LT(widened.mean, quantised / 4) << "the test tells them apart";
    EXPECT_LT(fp8.mean, 1.3 * widened.mean + quantised / 16);
  }
}

ModeDriverOptions options_of(const Fp8Case& one, std::int64_t batch) {
  return {.algorithm = one.config.indexer ? "dsa" : "streaming",
          .dtype = KvDType::kBF16,
          .threshold = 40,
          .pool_tokens = 12288,
          .max_batch = batch,
          .ahead = true,
          .make_runner = DeviceRunners{.compute = ElementType::kBF16, .whole_batches = true}};
}

// Steps of 8 rows (codes widened) and of 128 (activations quantised).
TEST_P(DeviceFp8Modes, ModesAndNeighboursChangeNoBit) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const Fp8Model model(GetParam().config);
  for (const std::int64_t batch : {8, 128}) {
    SCOPED_TRACE(concat("batch ", batch));
    ModeDriver driver(options_of(GetParam(), batch), seed, model.checkpoint());
    const auto requests = random_requests(
        random, {.count = std::min<std::int64_t>(batch, 24), .most_prompt = 150, .least_tokens = 6, .most_tokens = 24});
    const auto together = run_resident(driver, requests);
    Changes changes;
    const std::int64_t misses = driver.stats().misses;
    ASSERT_TRUE(same_answers(run_changing(driver, requests, random, changes), together));
    EXPECT_GT(driver.stats().misses, misses);
    for (const std::size_t i : {std::size_t{0}, requests.size() - 1}) {
      ASSERT_TRUE(same_answers(run_resident(driver, {requests[i]}), {together[i]})) << "request " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceFp8,
                         ::testing::Values(Fp8Case{"Latent", fp8_latent_config()},
                                           Fp8Case{"Experts", fp8_experts_config()},
                                           Fp8Case{"GroupedJoined", fp8_grouped_config(2)},
                                           Fp8Case{"GroupedApart", fp8_grouped_config(1)}),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Models, DeviceFp8Modes,
                         ::testing::Values(Fp8Case{"Experts", fp8_experts_config()},
                                           Fp8Case{"GroupedJoined", fp8_grouped_config(2)}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hotset::testing
