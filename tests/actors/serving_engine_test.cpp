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
