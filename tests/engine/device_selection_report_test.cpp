// What a GPU tells of its selections, beside what the CPU tells: every row of every layer, in float32.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "sparse/selection_observer.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/test_algorithms.h"

namespace hotset::testing {
namespace {

// Of a (sequence, layer), by position.
class Records final : public sparse::SelectionObserver {
 public:
  struct Record {
    std::int32_t block_tokens = 0;
    bool prefill = false, everything = false;
    std::vector<std::int32_t> blocks;
    bool operator==(const Record&) const = default;
  };
  using Key = std::pair<std::uint64_t, std::int32_t>;

  void observe(const sparse::SelectionRecord& record) override {
    EXPECT_GE(record.step, step_) << "steps never shrink";
    step_ = record.step;
    auto& records = of_[{record.sequence.value(), record.layer.value()}];
    if (!records.empty()) {
      EXPECT_GT(record.position, records.rbegin()->first) << "positions ascend";
    }
    records[record.position] = {.block_tokens = record.block_tokens,
                                .prefill = record.prefill,
                                .everything = record.everything,
                                .blocks = {record.blocks.begin(), record.blocks.end()}};
  }
  [[nodiscard]] const std::map<Key, std::map<std::int64_t, Record>>& of() const { return of_; }
  [[nodiscard]] std::size_t size() const {
    std::size_t all = 0;
    for (const auto& [key, records] : of_) all += records.size();
    return all;
  }

 private:
  std::uint64_t step_ = 0;
  std::map<Key, std::map<std::int64_t, Record>> of_;
};

std::string text(const Records::Record& record) {
  std::string out = concat(record.prefill ? "prompt" : "generated", record.everything ? ", everything" : "",
                           ", blocks of ", record.block_tokens, ":");
  for (const std::int32_t block : record.blocks) out += concat(" ", block);
  return out;
}

void expect_equal(const Records& gpu, const Records& cpu) {
  ASSERT_EQ(gpu.of().size(), cpu.of().size());
  for (const auto& [key, records] : cpu.of()) {
    SCOPED_TRACE(concat("sequence ", key.first, ", layer ", key.second));
    ASSERT_TRUE(gpu.of().contains(key));
    const auto& found = gpu.of().at(key);
    ASSERT_EQ(found.size(), records.size());
    for (const auto& [position, record] : records) {
      ASSERT_TRUE(found.contains(position)) << "position " << position;
      ASSERT_EQ(found.at(position), record)
          << "position " << position << "\n  GPU " << text(found.at(position)) << "\n  CPU " << text(record);
    }
  }
}

std::vector<DriverRequest> requests_of(const std::filesystem::path& folder) {
  const auto cases = read_json(folder / "expected.json").at("cases");
  std::vector<DriverRequest> requests;
  for (const auto& one : cases) requests.push_back({.prompt = one.at("input_ids"), .new_tokens = 12});
  return requests;
}

class DeviceSelectionReport : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }

  // Runs the requests together on both, in every mode.
  static void compare(DriverOptions options, const std::vector<DriverRequest>& requests) {
    for (const KvModeChoice mode : {KvModeChoice::kResident, KvModeChoice::kHot}) {
      SCOPED_TRACE(mode == KvModeChoice::kHot ? "hot" : "resident");
      options.mode = mode;
      const auto run = [&](MakeRunner make_runner) {
        options.make_runner = std::move(make_runner);
        EngineDriver driver(options);
        (void)driver.run(requests);
      };
      const auto cpu = std::make_shared<Records>();
      run([&](const EngineRequest& request) {
        auto runner = make_cpu_runner(request);
        runner->observe(cpu);
        return runner;
      });
      const auto gpu = std::make_shared<Records>();
      run([&](const EngineRequest& request) {
        auto runner = DeviceRunners{}(request);
        runner->observe(gpu);
        return runner;
      });
      EXPECT_GT(cpu->size(), 0U);
      expect_equal(*gpu, *cpu);
      if (HasFailure()) return;
    }
  }
};

// Generated tokens of sequences of different lengths, of which some do not select yet.
TEST_F(DeviceSelectionReport, GroupedRows) {
  const auto folder = fixture("tiny-llama");
  const auto config = require(model::open_checkpoint(folder))->config();
  const auto requests = requests_of(folder);
  for (const char* const name : {"lowrank", "quest", "streaming"}) {
    SCOPED_TRACE(name);
    const auto basis = std::string(name) == "lowrank" ? folder / "index_basis.safetensors" : std::filesystem::path();
    compare({.checkpoint = folder,
             .policy = {.algorithm = make_algorithm(name, config, KvDType::kF32, {}, basis), .threshold = 80},
             .hot_ring = 16},
            requests);
  }
}

// Prompts select too, their first rows attend to everything; layers of GLM share selections.
TEST_F(DeviceSelectionReport, LatentRows) {
  for (const char* const name : {"tiny-deepseek-v32", "tiny-glm-dsa"}) {
    SCOPED_TRACE(name);
    const auto folder = unpacked_fixture(name);
    const auto config = read_json(folder / "config.json");
    const std::int64_t top_k = config.at("index_topk");
    const auto requests = requests_of(folder);
    compare({.checkpoint = folder,
             .policy = {.algorithm = require(sparse::make_dsa({.top_k = top_k, .dim = config.at("index_head_dim")})),
                        .threshold = top_k},
             .hot_ring = 1,
             .hot_blocks = 17},
            requests);
  }
}

}  // namespace
}  // namespace hotset::testing
