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

constexpr DeviceWeightFormat kBF16{.compute = kernels::ElementType::kBF16};
constexpr DeviceWeightFormat kF32{.compute = kernels::ElementType::kF32};
constexpr DeviceWeightFormat kFp8{.compute = kernels::ElementType::kBF16, .fp8 = true};

std::int64_t weight_bytes(const ModelConfig& config, const DeviceWeightFormat& format) {
  return device_weight_bytes(Checkpoint({.config = config}), format);
}

TEST(DeviceMemoryPlan, WeightsAreTheCheckpointsNumbersInTheComputeType) {
  constexpr std::int64_t kParameters = 8'030'261'248;  // Llama-3.1-8B
  EXPECT_EQ(weight_bytes(llama_8b(), kBF16), 2 * kParameters);
  EXPECT_EQ(weight_bytes(llama_8b(), kF32), 4 * kParameters);
  EXPECT_EQ(weight_bytes(llama_8b(), kFp8), 2 * kParameters) << "its weights are bfloat16";
}

// Two layers of DeepSeek-V3.2, one with its 8 experts, by hand.
TEST(DeviceMemoryPlan, Fp8WeightsTakeAByteAndTheirScales) {
  ModelConfig config = deepseek_v32();
  config.layers = 2;
  config.experts->sparse_layer = {false, true};
  config.indexer->full_layer = {true, true};
  constexpr std::int64_t kHidden = 7168;
  constexpr std::int64_t kAttention = 1536 * kHidden + 24576 * 1536 + 576 * kHidden + kHidden * 16384;
  constexpr std::int64_t kIndexer = 8192 * 1536 + 128 * kHidden;
  constexpr std::int64_t kMlps = 3 * 18432 * kHidden + (8 + 1) * 3 * 2048 * kHidden;
  constexpr std::int64_t kFp8Numbers = 2 * (kAttention + kIndexer) + kMlps;
  // kv_a has 576 rows: its last blocks are half full.
  constexpr std::int64_t kScales = (kFp8Numbers + 2 * 64 * kHidden) / (128 * 128);
  const std::int64_t bf16 = weight_bytes(config, kBF16);
  EXPECT_EQ(bf16, 2 * weight_count(config));
  EXPECT_EQ(weight_bytes(config, kFp8), bf16 - kFp8Numbers + 4 * kScales);
  EXPECT_EQ(weight_bytes(config, kF32), 2 * bf16);
  config.fp8_weights = false;
  EXPECT_EQ(weight_bytes(config, kFp8), bf16);
  // Experts of a width that is no multiple of 128 are widened, all of them.
  config.fp8_weights = true;
  config.experts->intermediate = 2000;
  config.experts->shared = 0;
  constexpr std::int64_t kDense = 2 * (kAttention + kIndexer) + 3 * 18432 * kHidden;
  EXPECT_EQ(weight_bytes(config, kFp8),
            2 * weight_count(config) - kDense + 4 * ((kDense + 2 * 64 * kHidden) / (128 * 128)));
}

TEST(DeviceMemoryPlan, WorkspaceHoldsQuantisedActivations) {
  const ModelConfig config = deepseek_v32();
  const KvLayout layout =
      kv_layout_of(config, KvDType::kFp8,
                   {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 128, .dtype = KvDType::kFp8});
  const DeviceRunnerLimits limits{.max_batch = 16, .prefill_chunk = 4096, .max_tokens = 8192, .max_selected = 2048};
  const std::int64_t more =
      device_workspace_bytes(config, layout, kFp8, limits) - device_workspace_bytes(config, layout, kBF16, limits);
  EXPECT_GE(more, std::int64_t{4096} * 24576) << "the widest input that a projection may have";
  EXPECT_LT(more, std::int64_t{2} << 30);
}

TEST(DeviceMemoryPlan, WorkspaceGrowsWithWhatTheOptionsAskFor) {
  const ModelConfig config = llama_8b();
  const KvLayout layout = kv_layout_of(
      config, KvDType::kBF16, {.kind = MetadataGeometry::Kind::kLowRankKeys, .kv_heads = 8, .dim = 128, .rank = 32});
  const auto bytes = [&](const DeviceRunnerLimits& limits) {
    return device_workspace_bytes(config, layout, kBF16, limits);
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
    return device_workspace_bytes(config, layout, kBF16,
                                  {.max_batch = 16, .prefill_chunk = 4096, .max_tokens = tokens, .max_selected = 2048});
  };
  const auto partial = [&](std::int64_t tokens) {
    return static_cast<std::int64_t>(kernels::cuda::sparse_attention_workspace_bytes(
        layout.rows, config.heads, 16, tokens, kernels::cuda::AttentionForm::kLatent));
  };
  EXPECT_GT(partial(131072), std::int64_t{1} << 30);
  EXPECT_GE(bytes(131072) - bytes(4096), partial(131072) - partial(4096));
}

// Partial results of long lists are those of the rows that don't fill the GPU, whatever the batch.
TEST(DeviceMemoryPlan, DeepSeekFitsAtALargeBatch) {
  const ModelConfig config = deepseek_v32();
  const KvLayout layout =
      kv_layout_of(config, KvDType::kFp8,
                   {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 128, .dtype = KvDType::kFp8});
  const auto bytes = [&](std::int64_t batch, int capability_major) {
    return device_workspace_bytes(
        config, layout, {kernels::ElementType::kBF16},
        {.max_batch = batch,
         .prefill_chunk = 4096,
         .max_tokens = 131072,
         .largest_hot = {.hot_blocks = 4096, .block_tokens = 1, .ring_recent = 128, .ring_tokens = 192},
         .max_selected = 2048,
         .capability_major = capability_major});
  };
  EXPECT_LT(bytes(256, 9), std::int64_t{16} << 30);
  EXPECT_LT(bytes(256, 9) - bytes(64, 9), std::int64_t{2} << 30);
  EXPECT_GT(bytes(64, 8), bytes(64, 9) + (std::int64_t{5} << 30)) << "the plain form keeps every run of every row";
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
