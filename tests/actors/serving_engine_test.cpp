#include "actors/serving_engine.h"

#include <gtest/gtest.h>

#include <string>

#include "actors/serving_parts.h"

namespace hotset::actors {
namespace {

// What only measures a GPU is refused in words that name the option.
TEST(CpuEngine, RefusesOptionsForMeasuringAGpu) {
  ServerConfig config{.device = "cpu", .threads = 1, .load_format = "dummy"};
  const auto engine = make_cpu_engine(config);
  ASSERT_TRUE(engine->settle(config).ok());
  config.selection_model = "churn=0.1";
  const auto replaced = engine->settle(config);
  ASSERT_FALSE(replaced.ok());
  EXPECT_EQ(replaced.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(replaced.error().param, "--selection-model");
  config.selection_model.clear();
  config.synthetic_prompts = true;
  const auto filled = engine->settle(config);
  ASSERT_FALSE(filled.ok());
  EXPECT_EQ(filled.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(filled.error().param, "--fill-kv");
}

TEST(CpuEngine, KeepsWeightsAsTheyAre) {
  ServerConfig config{.device = "cpu", .threads = 1};
  const auto engine = make_cpu_engine(config);
  for (const WeightTypeChoice type : {WeightTypeChoice::kBF16, WeightTypeChoice::kFp8}) {
    config.weight_type = type;
    const auto refused = engine->settle(config);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().param, "--weight-dtype");
  }
}

// Whatever the device: before a model is opened.
TEST(LoadServingParts, RefusesSizesAndModelsThatCannotBe) {
  ServerConfig config{.model = HOTSET_FIXTURES "/tiny-llama", .device = "cpu", .threads = 1, .load_format = "dummy"};
  const auto refused = [](const ServerConfig& wrong, const char* param, const char* words) {
    const auto parts = load_serving_parts(wrong);
    ASSERT_FALSE(parts.ok());
    EXPECT_EQ(parts.error().param, param) << parts.error().message;
    EXPECT_NE(parts.error().message.find(words), std::string::npos) << parts.error().message;
  };
  ServerConfig wrong = config;
  wrong.max_batch = 16;
  wrong.least_batch = 17;
  refused(wrong, "--least-batch", "is more than --max-batch 16");
  wrong = config;
  for (const char* value : {"churn=2", "churn=nan", "churn=", "foo", "trace="}) {
    wrong.selection_model = value;
    refused(wrong, "--selection-model", "--selection-model");
  }
  wrong.selection_model = "trace=/no/such/file";
  refused(wrong, "--selection-model", "there is no such file");
  wrong = config;
  wrong.model = HOTSET_FIXTURES "/tiny-llama/config.json";
  refused(wrong, "--model", "--load-format dummy takes a folder");
}

TEST(ContextOf, IsRefusedWhereTheModelOrTheDeviceDoesNotTakeIt) {
  constexpr std::int64_t kMost = std::int64_t{1} << 28;
  const EngineLimits limits{.context = kMost};
  EXPECT_EQ(context_of({}, 4096, limits).value(), 4096);
  EXPECT_EQ(context_of({.max_context = 4096}, 4096, limits).value(), 4096);
  EXPECT_EQ(context_of({.max_context = kMost}, 2 * kMost, limits).value(), kMost);
  EXPECT_EQ(context_of({}, kMost, limits).value(), kMost);
  EXPECT_EQ(context_of({}, 2 * kMost, {}).value(), 2 * kMost);
  const auto refused = [](const Result<std::int64_t>& context, const char* words) {
    ASSERT_FALSE(context.ok());
    EXPECT_EQ(context.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(context.error().param, "--max-context");
    EXPECT_TRUE(context.error().message.starts_with("--max-context")) << context.error().message;
    EXPECT_NE(context.error().message.find(words), std::string::npos) << context.error().message;
  };
  refused(context_of({.max_context = 4097}, 4096, limits), "is more than the model was made for (4096)");
  refused(context_of({.max_context = kMost + 1}, 2 * kMost, limits), "at most 268435456");
  refused(context_of({}, kMost + 1, limits), "at most 268435456");  // the model's own
}

TEST(CpuEngine, RefusesDummyWeightsThatMemoryDoesNotHold) {
  model::ModelConfig huge;
  huge.hidden = 65536;
  huge.intermediate = 262144;
  huge.layers = 1000;
  huge.heads = 512;
  huge.kv_heads = 512;
  huge.head_dim = 128;
  huge.vocabulary = 100000;
  ServerConfig config{.device = "cpu", .threads = 1, .load_format = "dummy"};
  const auto engine = make_cpu_engine(config);
  const auto settled = engine->settle(config);
  const auto sizes =
      engine->pool_sizes(settled.value(), model::Checkpoint({.config = huge}), {.layout = {}, .max_context = 64});
  ASSERT_FALSE(sizes.ok());
  EXPECT_EQ(sizes.error().param, "--model") << sizes.error().message;
}

}  // namespace
}  // namespace hotset::actors
