// What a GPU tells of its selections, beside what the CPU tells: every row of every layer, in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Places where the reference itself selects by a near tie, by sequence: float32 may go the other way there.
using NearTies = std::map<std::uint64_t, std::set<Records::Place>>;

constexpr double kNearTie = 1e-5;  // between the scores of the selected and the next block, as tests/gpu has it

// Of a fixture's case: {layer: score between the two, or null} for each generated token.
std::set<Records::Place> near_ties_of(const nlohmann::json& one) {
  std::set<Records::Place> ties;
  if (!one.contains("gaps")) return ties;
  auto position = static_cast<std::int64_t>(one.at("input_ids").size());
  for (const auto& layers : one.at("gaps")) {
    for (const auto& [layer, gap] : layers.items()) {
      if (!gap.is_null() && gap.get<double>() <= kNearTie) ties.emplace(position, std::stoi(layer));
    }
    ++position;
  }
  return ties;
}

// One block in the place of another.
bool swapped(const Records::Record& one, const Records::Record& other) {
  std::vector<std::int32_t> apart;
  std::ranges::set_symmetric_difference(one.blocks, other.blocks, std::back_inserter(apart));
  Records::Record same = other;
  same.blocks = one.blocks;
  return same == one && one.blocks.size() == other.blocks.size() && apart.size() == 2;
}

// Selections are equal. But for near ties, where one block may be in the place of another: what comes behind follows
// from it and is not compared.
void expect_equal(const Records& gpu, const Records& cpu, const NearTies& ties) {
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
    const auto near = ties.find(id);
    for (const auto& [place, record] : expected) {
      const Records::Record& got = found.at(place);
      if (got == record) {
        ++compared;
        continue;
      }
      ASSERT_TRUE(near != ties.end() && near->second.contains(place) && swapped(got, record))
          << "position " << place.first << ", layer " << place.second << "\n  GPU " << text(got) << "\n  CPU "
          << text(record);
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
  static void compare(DriverOptions options, const std::vector<DriverRequest>& requests, const NearTies& ties) {
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
      expect_equal(*gpu, *cpu, ties);
      if (HasFailure()) return;
    }
  }
};

// Generated tokens of sequences of different lengths, of which some do not select yet.
TEST_F(DeviceSelectionReport, GroupedRows) {
  const auto folder = fixture("tiny-llama");
  const auto config = require(model::open_checkpoint(folder))->config();
  std::map<std::string, std::vector<DriverRequest>> requests;  // by algorithm
  std::map<std::string, NearTies> ties;
  std::map<std::string, AlgorithmSizes> sizes;
  const auto cases = read_json(folder / "expected_sparse.json").at("cases");
  for (const auto& one : cases) {
    const auto& options = one.at("options");
    const std::string name = options.at("algorithm");
    if (options.value("combine", "max") != "max") continue;
    requests[name].push_back({.prompt = one.at("input_ids"), .new_tokens = kNewTokens});
    ties[name][requests[name].size()] = near_ties_of(one);  // sequences are the requests' numbers from 1 on
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
            those, ties[name]);
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
            requests, {});
  }
}

}  // namespace
}  // namespace hotset::testing
