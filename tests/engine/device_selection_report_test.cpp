// What a GPU tells of its selections, beside what the CPU tells: every row of every layer, in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "sparse/selection_observer.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/test_algorithms.h"

namespace hotset::testing {
namespace {

constexpr std::int32_t kNewTokens = 12;

class Records final : public sparse::SelectionObserver {
 public:
  struct Record {
    std::int32_t block_tokens = 0;
    bool prefill = false, everything = false;
    std::vector<std::int32_t> blocks;
    bool operator==(const Record&) const = default;
  };
  using Place = std::pair<std::int64_t, std::int32_t>;  // position and layer: a record depends on those before it
  using Sequence = std::map<Place, Record>;

  void observe(const sparse::SelectionRecord& record) override {
    const std::uint64_t id = record.sequence.value();
    EXPECT_GE(record.step, step_) << "steps never shrink";
    step_ = record.step;
    const auto [newest, first] = newest_.try_emplace({id, record.layer.value()}, -1);
    EXPECT_GT(record.position, newest->second) << "positions ascend";
    newest->second = record.position;
    sequences_[id][{record.position, record.layer.value()}] = {.block_tokens = record.block_tokens,
                                                               .prefill = record.prefill,
                                                               .everything = record.everything,
                                                               .blocks = {record.blocks.begin(), record.blocks.end()}};
  }
  [[nodiscard]] const std::map<std::uint64_t, Sequence>& sequences() const { return sequences_; }

 private:
  std::uint64_t step_ = 0;
  std::map<std::pair<std::uint64_t, std::int32_t>, std::int64_t> newest_;  // of a sequence's layer
  std::map<std::uint64_t, Sequence> sequences_;
};

std::string text(const Records::Record& record) {
  std::string out = concat(record.prefill ? "prompt" : "generated", record.everything ? ", everything" : "",
                           ", blocks of ", record.block_tokens, ":");
  for (const std::int32_t block : record.blocks) out += concat(" ", block);
  return out;
}

// One block in the place of another: what a near tie may do, since scores differ in their last bits.
bool near_tie(const Records::Record& one, const Records::Record& other) {
  std::vector<std::int32_t> apart;
  std::ranges::set_symmetric_difference(one.blocks, other.blocks, std::back_inserter(apart));
  Records::Record same = other;
  same.blocks = one.blocks;
  return same == one && one.blocks.size() == other.blocks.size() && apart.size() == 2;
}

// From a near tie on a sequence is not compared; it must be rare.
void expect_equal(const Records& gpu, const Records& cpu) {
  std::size_t all = 0, compared = 0;
  ASSERT_EQ(gpu.sequences().size(), cpu.sequences().size());
  for (const auto& [id, expected] : cpu.sequences()) {
    SCOPED_TRACE(concat("sequence ", id));
    ASSERT_TRUE(gpu.sequences().contains(id));
    const Records::Sequence& found = gpu.sequences().at(id);
    ASSERT_TRUE(std::ranges::equal(
        found, expected, {}, [](const auto& record) { return record.first; },
        [](const auto& record) { return record.first; }))
        << found.size() << " records, expected " << expected.size();
    all += expected.size();
    for (const auto& [place, record] : expected) {
      const Records::Record& got = found.at(place);
      if (got == record) {
        ++compared;
        continue;
      }
      ASSERT_TRUE(near_tie(got, record)) << "position " << place.first << ", layer " << place.second << "\n  GPU "
                                         << text(got) << "\n  CPU " << text(record);
      std::cout << "near tie at position " << place.first << ", layer " << place.second << '\n';
      break;
    }
  }
  EXPECT_GT(all, 0U);
  EXPECT_GE(compared, all * 8 / 10) << "of " << all;
}

class DeviceSelectionReport : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }

  // Runs the requests together on both, resident and hot.
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
      expect_equal(*gpu, *cpu);
      if (HasFailure()) return;
    }
  }
};

// Generated tokens of sequences of different lengths, of which some do not select yet.
TEST_F(DeviceSelectionReport, GroupedRows) {
  const auto folder = fixture("tiny-llama");
  const auto config = require(model::open_checkpoint(folder))->config();
  std::map<std::string, std::vector<DriverRequest>> requests;  // by algorithm
  std::map<std::string, AlgorithmSizes> sizes;
  const auto cases = read_json(folder / "expected_sparse.json").at("cases");
  for (const auto& one : cases) {
    const auto& options = one.at("options");
    const std::string name = options.at("algorithm");
    if (options.value("combine", "max") != "max") continue;
    requests[name].push_back({.prompt = one.at("input_ids"), .new_tokens = kNewTokens});
    AlgorithmSizes& size = sizes[name];
    size.block_tokens = options.value("block", 16);
    size.window = options.at("window");
    size.sink = options.value("sink", 4);
    size.budget = options.value("budget", 0) * (name == "quest" ? size.block_tokens : 1);
  }
  ASSERT_EQ(requests.size(), 3U);
  for (const auto& [name, those] : requests) {
    SCOPED_TRACE(name);
    std::size_t shortest = those.front().prompt.size();
    for (const DriverRequest& request : those) shortest = std::min(shortest, request.prompt.size());
    const auto basis = name == "lowrank" ? folder / "index_basis.safetensors" : std::filesystem::path();
    compare({.checkpoint = folder,
             .policy = {.algorithm = make_algorithm(name, config, KvDType::kF32, sizes[name], basis),
                        .threshold = static_cast<std::int64_t>(shortest) + kNewTokens / 2},
             .hot_ring = sizes[name].window},
            those);
  }
}

// Prompts select too, their first rows attend to everything; layers of GLM share selections.
TEST_F(DeviceSelectionReport, LatentRows) {
  for (const char* const name : {"tiny-deepseek-v32", "tiny-glm-dsa"}) {
    SCOPED_TRACE(name);
    const auto folder = unpacked_fixture(name);
    const auto config = read_json(folder / "config.json");
    const std::int64_t top_k = config.at("index_topk");
    const auto cases = read_json(folder / "expected.json").at("cases");
    std::vector<DriverRequest> requests;
    for (const auto& one : cases) requests.push_back({.prompt = one.at("input_ids"), .new_tokens = kNewTokens});
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
