// The memory of a GPU: what the plan counts against what engines then take, and the captured steps that they keep.
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "model/device_memory_plan.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/mode_runs.h"

namespace hotset::testing {
namespace {

using kernels::ElementType;

struct MemoryCase {
  std::string name;
  model::ModelConfig config;
  std::string algorithm;
  AlgorithmSizes sizes;
  ElementType compute = ElementType::kBF16;
  KvDType dtype = KvDType::kBF16;
  std::int64_t batch = 16;
  std::int64_t chunk = 4096;
  std::int64_t tokens = 32768;
};
std::ostream& operator<<(std::ostream& out, const MemoryCase& one) { return out << one.name; }

model::ModelConfig grouped() {
  return {.architecture = model::Architecture::kLlama,
          .vocabulary = 32000,
          .hidden = 1024,
          .intermediate = 4096,
          .layers = 2,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .rotary_dim = 128,
          .max_positions = 65536};
}

model::ModelConfig latent() {
  model::ModelConfig config{.architecture = model::Architecture::kDeepseekV32,
                            .vocabulary = 32000,
                            .hidden = 1024,
                            .intermediate = 2048,
                            .layers = 2,
                            .heads = 32,
                            .kv_heads = 32,
                            .head_dim = 192,
                            .rotary_dim = 64,
                            .max_positions = 65536};
  config.latent = {.q_rank = 512, .kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  config.experts = {.count = 16,
                    .per_token = 4,
                    .groups = 4,
                    .top_groups = 2,
                    .intermediate = 256,
                    .shared = 1,
                    .sparse_layer = {false, true}};
  config.indexer = {.heads = 16, .dim = 128, .top_k = 512, .full_layer = {true, true}};
  return config;
}

model::ModelConfig fp8_latent() {
  model::ModelConfig config = latent();
  config.fp8_weights = true;
  return config;
}

model::ModelConfig latent_without_indexer() {
  model::ModelConfig config = latent();
  config.architecture = model::Architecture::kDeepseekV3;
  config.indexer.reset();
  config.max_positions = 131072;
  return config;
}

class DeviceMemory : public ::testing::TestWithParam<MemoryCase> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    // What CUDA takes for the process is taken now.
    keeps_fp8_ = require(model::open_device_engine(GetParam().compute)).backend->takes_fp8(128, 128);
  }
  bool keeps_fp8_ = false;
};

std::int64_t mib(std::int64_t bytes) { return bytes >> 20; }

// A batch of the largest size; its first prompt is as long as there is room, once from the host, then resident, hot.
TEST_P(DeviceMemory, IsNoMoreThanThePlan) {
  const MemoryCase& one = GetParam();
  ASSERT_TRUE(model::check_model_config(one.config).ok());
  const std::int64_t held_before = kernels::cuda::held_device_bytes();
  const std::int64_t free_before = kernels::cuda::free_device_bytes();
  std::int64_t weights = 0;
  std::int64_t workspace = 0;
  std::int64_t pools = 0;
  ModeDriverOptions options{.algorithm = one.algorithm,
                            .sizes = one.sizes,
                            .dtype = one.dtype,
                            .threshold = 40,
                            .hot_ring = 64,
                            .hot_buffers = {one.algorithm == "dsa" ? 1024 : 2 * one.sizes.budget},
                            .prefill_chunk = one.chunk,
                            .pool_tokens = one.tokens,
                            .max_batch = one.batch};
  options.make_runner = [&](const EngineRequest& request) {
    const DeviceRunners runners{.compute = one.compute, .whole_batches = true, .dummy = true};
    const model::DeviceWeightFormat format{.compute = one.compute, .fp8 = keeps_fp8_};
    weights = model::device_weight_bytes(request.checkpoint, format);
    workspace = model::device_workspace_bytes(one.config, request.layout, format, runners.limits_of(request));
    pools = request.device_pages.rows * request.layout.rows.page_bytes() +
            request.device_pages.metadata * request.layout.metadata.page_bytes();
    return runners(request);
  };
  ModeDriver driver(options, 1, std::make_unique<model::Checkpoint>(model::CheckpointContents{.config = one.config}));
  const std::int64_t held_at_start = kernels::cuda::held_device_bytes() - held_before;
  std::mt19937_64 random(3);
  for (const bool from_host : {true, false}) {
    driver.clear();
    driver.add({.prompt = random_prompt(one.tokens - 2 * kPageTokens, random), .new_tokens = 6});
    auto& sequence = driver.sequences().front();
    if (!from_host) driver.move(sequence, sparse::KvMode::kResident);
    while (sequence.prefilling()) driver.step();
    driver.move(sequence, sparse::KvMode::kResident);
    for (int i = 0; i < 3; ++i) driver.step();
    if (one.algorithm != "dense") driver.move(sequence, sparse::KvMode::kHot);
    while (!driver.done()) driver.step();
    EXPECT_EQ(sequence.error, "");
  }
  const std::int64_t held = kernels::cuda::held_device_bytes() - held_before;
  const std::int64_t taken = free_before - kernels::cuda::free_device_bytes() - pools;
  std::cout << "planned " << mib(weights + workspace) << " MiB: weights " << mib(weights) << ", workspace "
            << mib(workspace - model::kDriverBytes) << ", driver " << mib(model::kDriverBytes) << "; held " << mib(held)
            << " (" << mib(held_at_start) << " at the start), taken beside pools " << mib(taken) << '\n';
  EXPECT_LE(held, weights + workspace - model::kDriverBytes);
  EXPECT_LE(taken, weights + workspace);
  EXPECT_GE(held, (weights + workspace - model::kDriverBytes) / 3) << "the plan is no guess";
}

INSTANTIATE_TEST_SUITE_P(
    Engines, DeviceMemory,
    ::testing::Values(MemoryCase{.name = "lowrank",
                                 .config = grouped(),
                                 .algorithm = "lowrank",
                                 .sizes = {.window = 64, .budget = 2048}},
                      MemoryCase{.name = "quest",
                                 .config = grouped(),
                                 .algorithm = "quest",
                                 .sizes = {.window = 64, .budget = 2048},
                                 .batch = 64},
                      MemoryCase{.name = "dense_f32",
                                 .config = grouped(),
                                 .algorithm = "dense",
                                 .compute = ElementType::kF32,
                                 .dtype = KvDType::kF32,
                                 .batch = 100,
                                 .chunk = 512,
                                 .tokens = 8192},
                      MemoryCase{.name = "streaming_fp8",
                                 .config = grouped(),
                                 .algorithm = "streaming",
                                 .sizes = {.window = 64},
                                 .dtype = KvDType::kFp8,
                                 .batch = 8},
                      MemoryCase{.name = "latent_lowrank",
                                 .config = latent_without_indexer(),
                                 .algorithm = "lowrank",
                                 .sizes = {.window = 64, .budget = 2048},
                                 .batch = 64,
                                 .tokens = 131072},
                      MemoryCase{.name = "latent_quest",
                                 .config = latent_without_indexer(),
                                 .algorithm = "quest",
                                 .sizes = {.window = 64, .budget = 2048},
                                 .dtype = KvDType::kFp8,
                                 .batch = 128},
                      MemoryCase{.name = "dsa", .config = latent(), .algorithm = "dsa"},
                      MemoryCase{.name = "dsa_fp8",
                                 .config = latent(),
                                 .algorithm = "dsa",
                                 .dtype = KvDType::kFp8,
                                 .batch = 128,
                                 .chunk = 8192},
                      MemoryCase{.name = "dsa_fp8_weights", .config = fp8_latent(), .algorithm = "dsa", .batch = 64},
                      MemoryCase{.name = "dsa_f32",
                                 .config = latent(),
                                 .algorithm = "dsa",
                                 .compute = ElementType::kF32,
                                 .dtype = KvDType::kF32,
                                 .batch = 32,
                                 .chunk = 1024,
                                 .tokens = 8192}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hotset::testing
