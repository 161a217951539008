#include "benchmarks/engine_load.h"

#include <gtest/gtest.h>

#include <utility>

#include "benchmarks/target_models.h"
#include "kernels/cpu/cpu_backend.h"
#include "model/dummy_weights.h"
#include "model/kv_layout.h"
#include "model/step_runner.h"

namespace hotset {
namespace {

constexpr std::int64_t kPrompt = 1200, kNewTokens = 80, kSequences = 6, kResident = 2;

model::ModelConfig small_llama() {
  model::ModelConfig config = llama_8b();
  config.vocabulary = 64;
  config.hidden = 32;
  config.intermediate = 64;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = config.rotary_dim = 16;
  config.max_positions = 2048;
  return config;
}

class EngineLoadTest : public ::testing::Test {
 protected:
  EngineLoadTest() : algorithm_(target_algorithm(small_llama(), KvDType::kF32, 96)) {
    const auto shape = sparse::hot_buffer_shape_for(*algorithm_, std::nullopt, 128);
    EXPECT_TRUE(shape.ok());
    const std::int64_t pages = pages_for_tokens(kPrompt + kNewTokens + 1) + 1;
    load_.pools.layout = model::kv_layout_of(small_llama(), KvDType::kF32, algorithm_->metadata());
    load_.pools.device_pages =
        static_cast<std::int32_t>((kResident * pages + 3 * sparse::hot_pages_of(shape.value()).total()) * 2);
    load_.pools.metadata_pages = static_cast<std::int32_t>(kSequences * pages * 2);
    load_.pools.host_pages = static_cast<std::int32_t>(kSequences * pages);
    load_.scheduler = {.max_batch = kSequences, .prefill_chunk = kPrompt, .max_queue = 64};
    load_.vocabulary = 64;
    load_.policy = std::make_shared<const actors::SequencePolicy>(actors::SequencePolicy{
        .selection = {.algorithm = algorithm_, .threshold = 128}, .hot_shape = shape.value(), .keeps_metadata = true});
    auto backend = kernels::make_cpu_backend(1);
    auto weights = model::make_dummy_weights(small_llama(), *backend, 1);
    auto device = storage::DevicePool::create(
        load_.pools.layout, {.rows = load_.pools.device_pages, .metadata = load_.pools.metadata_pages});
    auto host = storage::HostPool::create(load_.pools.layout, load_.pools.host_pages);
    runner_ = std::make_unique<model::StepRunner>(
        std::move(weights), std::move(backend), std::move(device).value(), std::move(host).value(), algorithm_,
        model::StepRunnerLimits{.max_batch = kSequences, .prefill_chunk = kPrompt});
  }

  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm_;
  LoadConfig load_;
  std::unique_ptr<model::StepRunner> runner_;
};

TEST_F(EngineLoadTest, ResidentSequencesBeyondThePoolWait) {
  load_.pools.mode = KvModeChoice::kResident;
  EngineLoad load(load_, *runner_);
  load.submit(kSequences, kPrompt, kNewTokens);
  load.settle(3);
  EXPECT_LT(load.running(), kSequences);
  EXPECT_EQ(load.running() + load.waiting(), kSequences);
  const LoadTimes times = load.run(10);
  EXPECT_EQ(times.steps, 10);
  EXPECT_EQ(times.tokens, 10 * load.running());
  EXPECT_EQ(times.prompt_tokens, 0);
  EXPECT_EQ(times.selected, 0);
  EXPECT_GT(times.seconds, 0);
}

TEST_F(EngineLoadTest, HotOnesRunBesideThem) {
  load_.pools.mode = KvModeChoice::kAuto;
  EngineLoad load(load_, *runner_);
  load.submit(1, kPrompt, kNewTokens);
  load.settle(3);
  load.submit(kSequences - 1, kPrompt, kNewTokens);
  load.settle(3);
  EXPECT_EQ(load.running(), kSequences);
  EXPECT_GT(load.pools().hot, 0);
  const LoadTimes times = load.run(10);
  EXPECT_EQ(times.tokens, 10 * kSequences);
  EXPECT_EQ(times.prompt_tokens, 0);
  EXPECT_GT(times.misses, 0);
  EXPECT_GT(times.selected, times.misses);
  EXPECT_GT(times.bytes_loaded, 0);
}

TEST_F(EngineLoadTest, RunsToTheEndAndLeavesNothing) {
  {
    EngineLoad load(load_, *runner_);
    load.submit(2, kPrompt, 5);
    const LoadTimes times = load.run_to_end();
    EXPECT_EQ(times.prompt_tokens, 2 * kPrompt);
    EXPECT_EQ(times.tokens, 2 * 4);  // the first one of each comes from the prompt
    EXPECT_EQ(times.bytes_offloaded > 0, true);
    EXPECT_EQ(load.running(), 0);
    EXPECT_EQ(load.pools().device_pages_free, load.pools().device_pages_total);
  }
  load_.write_through = false;
  EngineLoad load(load_, *runner_);
  load.submit(1, kPrompt, 1);
  const LoadTimes times = load.run_to_end();
  EXPECT_EQ(times.prompt_tokens, kPrompt);
  EXPECT_EQ(times.bytes_offloaded, 0);
}

}  // namespace
}  // namespace hotset
