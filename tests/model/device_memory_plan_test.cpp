// The plan of a GPU's memory, for a geometry whose sizes are known.
#include "model/device_memory_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "benchmarks/target_models.h"
#include "kernels/cuda/sparse_attention.h"
#include "model/device_engine.h"
#include "model/kv_layout.h"

namespace hotset::model {
namespace {

TEST(DeviceMemoryPlan, WeightsAreTheCheckpointsNumbersInTheComputeType) {
  constexpr std::int64_t kParameters = 8'030'261'248;  // Llama-3.1-8B
  EXPECT_EQ(device_weight_bytes(llama_8b(), kernels::ElementType::kBF16), 2 * kParameters);
  EXPECT_EQ(device_weight_bytes(llama_8b(), kernels::ElementType::kF32), 4 * kParameters);
}

TEST(DeviceMemoryPlan, WorkspaceGrowsWithWhatTheOptionsAskFor) {
  const ModelConfig config = llama_8b();
  const KvLayout layout = kv_layout_of(
      config, KvDType::kBF16, {.kind = MetadataGeometry::Kind::kLowRankKeys, .kv_heads = 8, .dim = 128, .rank = 32});
  const auto bytes = [&](const DeviceRunnerLimits& limits) {
    return device_workspace_bytes(config, layout, kernels::ElementType::kBF16, limits);
  };
  const DeviceRunnerLimits base{
      .max_batch = 16,
      .prefill_chunk = 4096,
      .max_tokens = 32768,
      .largest_hot = {.hot_blocks = 4096, .block_tokens = 1, .ring_recent = 128, .ring_tokens = 192},
      .max_selected = 2048};
  // The activations of 4,096 rows alone: residual, queries, keys, values, gate and up in float32.
  EXPECT_GT(bytes(base), std::int64_t{4096} * (4096 + 4096 + 2 * 1024 + 2 * 14336) * 4);
  EXPECT_LT(bytes(base), std::int64_t{6} << 30);
  DeviceRunnerLimits other = base;
  other.max_batch = 64;
  EXPECT_GT(bytes(other), bytes(base));
  other = base;
  other.prefill_chunk = 8192;
  EXPECT_GT(bytes(other), bytes(base));
  other = base;
  other.max_tokens = 131072;
  EXPECT_GT(bytes(other), bytes(base));
  other = base;
  other.max_selected = 0;
  other.largest_hot = {};
  EXPECT_LT(bytes(other), bytes(base));
}

// Whatever selects by itself, a request may ask for dense attention: 128 heads' partial results over 131,072 rows.
TEST(DeviceMemoryPlan, HoldsDenseRequestsBesideAnIndexer) {
  const ModelConfig config = deepseek_v32();
  const KvLayout layout =
      kv_layout_of(config, KvDType::kBF16,
                   {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 128, .dtype = KvDType::kBF16});
  const auto bytes = [&](std::int64_t tokens) {
    return device_workspace_bytes(config, layout, kernels::ElementType::kBF16,
                                  {.max_batch = 16, .prefill_chunk = 4096, .max_tokens = tokens, .max_selected = 2048});
  };
  const auto partial = [&](std::int64_t tokens) {
    return static_cast<std::int64_t>(
        kernels::cuda::sparse_attention_workspace_bytes(layout.rows, config.heads, 16, tokens));
  };
  EXPECT_GT(partial(131072), std::int64_t{1} << 30);
  EXPECT_GE(bytes(131072) - bytes(4096), partial(131072) - partial(4096));
}

TEST(DeviceModel, RefusesWhatTheKernelsDoNotTake) {
  ASSERT_TRUE(check_device_model(llama_8b()).ok());
  ASSERT_TRUE(check_device_model(deepseek_v32()).ok());
  const auto refused = [](const ModelConfig& config, const char* words) {
    const auto checked = check_device_model(config);
    ASSERT_FALSE(checked.ok()) << words;
    EXPECT_EQ(checked.error().param, "--device");
    EXPECT_NE(checked.error().message.find(words), std::string::npos) << checked.error().message;
  };
  ModelConfig config = llama_8b();
  config.head_dim = 100;
  refused(config, "a head width that is a multiple of 16, and this model has 100");
  config.head_dim = 272;
  refused(config, "a head width of at most 256");
  config = llama_8b();
  config.vocabulary = (1 << 18) + 1;
  refused(config, "a vocabulary of at most 262144");
  config = deepseek_v32();
  config.latent->rope_dim = 40;
  refused(config, "a rotary width");
  config = deepseek_v32();
  config.experts->count = 1024;
  refused(config, "experts up to 512");
  config.experts->count = 512;
  config.experts->per_token = 65;
  refused(config, "experts of a token up to 64");
}

}  // namespace
}  // namespace hotset::model
