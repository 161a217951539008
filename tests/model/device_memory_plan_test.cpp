// The plan of a GPU's memory, for a geometry whose sizes are known.
#include "model/device_memory_plan.h"

#include <gtest/gtest.h>

#include "model/kv_layout.h"

namespace hotset::model {
namespace {

ModelConfig llama_8b() {
  return {.architecture = Architecture::kLlama,
          .vocabulary = 128256,
          .hidden = 4096,
          .intermediate = 14336,
          .layers = 32,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .rotary_dim = 128,
          .max_positions = 131072};
}

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

}  // namespace
}  // namespace hotset::model
