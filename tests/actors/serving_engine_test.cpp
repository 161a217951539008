#include "actors/serving_engine.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace hotset::actors
