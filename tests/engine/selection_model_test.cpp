// The engine on a GPU as benchmarks run it: synthetic prompts, and selections replaced by a model of them.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "benchmarks/engine_load.h"
#include "benchmarks/target_models.h"
#include "model/dummy_weights.h"
#include "model/kv_layout.h"
#include "sparse/selection_trace.h"
#include "tests/engine/device_driver.h"
#include "tests/model/temporary_folder.h"

namespace hotset::testing {
namespace {

constexpr std::int64_t kPrompt = 2400, kNewTokens = 100, kSequences = 6, kBudget = 256;
constexpr std::int64_t kPages = (kPrompt + kNewTokens + 1) / kPageTokens + 2;
constexpr std::int32_t kLayers = 2;

model::ModelConfig small_llama() {
  model::ModelConfig config = llama_8b();
  config.vocabulary = 512;
  config.hidden = 128;
  config.intermediate = 256;
  config.layers = kLayers;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = config.rotary_dim = 64;
  config.max_positions = 4096;
  return config;
}

class SelectionModelOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    make_engine(kSequences, 2);
  }

  // With room for so many resident sequences, and a few hot ones.
  void make_engine(std::int64_t sequences, std::int64_t resident) {
    algorithm_ = target_algorithm(small_llama(), KvDType::kBF16, kBudget);
    const auto shape = require(sparse::hot_buffer_shape_for(*algorithm_, std::nullopt, 2 * kBudget));
    const std::int64_t hot = sparse::hot_pages_of(shape).total();
    load_.pools.layout = model::kv_layout_of(small_llama(), KvDType::kBF16, algorithm_->metadata());
    load_.pools.device_pages = static_cast<std::int32_t>((resident * kPages + 4 * hot) * kLayers);
    load_.pools.metadata_pages = static_cast<std::int32_t>(sequences * kPages * kLayers);
    load_.pools.host_pages = static_cast<std::int32_t>(sequences * kPages);
    load_.scheduler = {.max_batch = sequences, .prefill_chunk = kPrompt, .max_queue = 64};
    load_.vocabulary = 512;
    load_.policy = std::make_shared<const actors::SequencePolicy>(actors::SequencePolicy{
        .selection = {.algorithm = algorithm_, .threshold = 512}, .hot_shape = shape, .keeps_metadata = true});
    model::DeviceEngine engine = require(model::open_device_engine(kernels::ElementType::kBF16));
    backend_ = engine.backend.get();
    engine.weights = model::make_dummy_weights(small_llama(), *engine.backend, 1);
    auto device = require(storage::DevicePool::create(
        load_.pools.layout, {.rows = load_.pools.device_pages, .metadata = load_.pools.metadata_pages},
        kernels::cuda::device_pool_memory));
    auto host = require(storage::HostPool::create(load_.pools.layout, load_.pools.host_pages,
                                                  kernels::cuda::mapped_pool_memory(kMappedBytes)));
    runner_ =
        std::make_unique<model::DeviceStepRunner>(std::move(engine), std::move(device), std::move(host), algorithm_,
                                                  model::DeviceRunnerLimits{.max_batch = sequences,
                                                                            .prefill_chunk = 512,
                                                                            .max_tokens = kPages * kPageTokens,
                                                                            .largest_hot = shape,
                                                                            .max_selected = kBudget});
    runner_->set_synthetic_prompts(true);
  }

  void select_by(const sparse::SelectionModel& model) {
    runner_->set_selection_model(require(sparse::DeviceSelectionModel::create(model, kLayers, 1, *backend_)));
  }
  // Steps with hot sequences, once their buffers have seen a few selections.
  LoadTimes run(std::int64_t steps) {
    EngineLoad load(load_, *runner_);
    load.submit(kSequences, kPrompt, kNewTokens);
    load.settle(20);
    EXPECT_EQ(load.running(), kSequences);
    EXPECT_GT(load.pools().hot, 0);
    return load.run(steps);
  }
  static double miss_share(const LoadTimes& times) {
    return static_cast<double>(times.misses) / static_cast<double>(times.selected);
  }

  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm_;
  kernels::DenseBackend* backend_ = nullptr;
  LoadConfig load_;
  std::unique_ptr<model::DeviceStepRunner> runner_;
};

TEST_F(SelectionModelOnDevice, MissesFollowTheChurn) {
  for (const double share : {0.0, 0.1, 0.3}) {
    SCOPED_TRACE(share);
    select_by(sparse::ChurnModel{.share = share});
    const LoadTimes times = run(30);
    EXPECT_EQ(times.tokens, 30 * kSequences);
    EXPECT_EQ(times.prompt_tokens, 0);
    ASSERT_GT(times.selected, 0);
    // Forced blocks stay, and some that come are still in the buffer.
    EXPECT_LE(miss_share(times), share);
    EXPECT_GE(miss_share(times), share * 0.5);
    EXPECT_EQ(times.bytes_loaded > 0, share > 0);
  }
}

// A selection that was recorded and never changes misses nothing; one that always changes misses as much as was
// recorded.
TEST_F(SelectionModelOnDevice, RecordedSelectionsAreReplayed) {
  const model::TemporaryFolder folder;
  for (const bool changes : {false, true}) {
    SCOPED_TRACE(changes);
    const auto path = folder.path() / (changes ? "changes" : "stays");
    {
      auto writer = require(sparse::TraceWriter::create(path, {.model = "m", .layers = 1}));
      for (std::int64_t row = 0; row < kNewTokens; ++row) {
        std::vector<std::int32_t> blocks;  // 100, far from the newest
        for (std::int32_t i = 0; i < 100; ++i)
          blocks.push_back(i * 20 + (changes ? static_cast<std::int32_t>(row % 20) : 0));
        sparse::SelectionRecord record;
        record.step = static_cast<std::uint64_t>(row);
        record.sequence = SequenceId{1};
        record.position = kPrompt + row;
        record.blocks = blocks;
        writer->observe(record);
      }
    }
    select_by(sparse::RecordedModel{.trace = path});
    const LoadTimes times = run(30);
    // 512 blocks of the buffer are five selections; they come round again after twenty.
    EXPECT_EQ(times.misses, changes ? times.selected : 0);
    EXPECT_EQ(times.selected % (100 * kLayers), 0) << "selections are the recorded ones";
  }
}

// Bit for bit: what was made up went to the host as well, and rows that go in groups are those that go together.
TEST_F(SelectionModelOnDevice, HotAndResidentTokensAreTheSame) {
  for (const std::int64_t sequences : {1, 5, 21, 40}) {
    SCOPED_TRACE(sequences);
    make_engine(sequences, sequences);
    select_by(sparse::ChurnModel{.share = 0.2});
    std::map<KvModeChoice, std::map<SequenceId, std::vector<std::int32_t>>> tokens;
    for (const KvModeChoice mode : {KvModeChoice::kResident, KvModeChoice::kHot}) {
      load_.pools.mode = mode;
      EngineLoad load(load_, *runner_);
      load.submit(sequences, kPrompt, kNewTokens);
      load.on_token([&](SequenceId id, std::int32_t token) { tokens[mode][id].push_back(token); });
      const LoadTimes times = load.run_to_end();
      EXPECT_EQ(times.tokens, sequences * (kNewTokens - 1));
      EXPECT_EQ(times.misses > 0, mode == KvModeChoice::kHot);
    }
    EXPECT_EQ(tokens[KvModeChoice::kResident].size(), static_cast<std::size_t>(sequences));
    EXPECT_EQ(tokens[KvModeChoice::kResident], tokens[KvModeChoice::kHot]);
  }
}

}  // namespace
}  // namespace hotset::testing
