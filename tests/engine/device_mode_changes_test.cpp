// On a GPU modes change no bit either: with demotion, promotion, parking and resuming at random steps, prompts from the
// host and steps begun ahead, tokens and log-probabilities equal those of resident runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <random>

#include "core/concat.h"
#include "tests/engine/device_driver.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/mode_runs.h"
#include "tests/seed.h"

namespace hotset::testing {
namespace {

using kernels::ElementType;

struct DeviceModeCase {
  std::string fixture;
  std::string algorithm;
  AlgorithmSizes sizes;
  std::int64_t chunk = 32;
  std::int64_t ring = 16;
  std::vector<std::int64_t> buffers{64};
  ElementType compute = ElementType::kF32;
  KvDType dtype = KvDType::kF32;
  std::int64_t device_tokens = 0;  // 0: room for everything
  bool further = false;            // some requests stream, some are dense
  int runs = 12;
};
std::ostream& operator<<(std::ostream& out, const DeviceModeCase& one) {
  return out << one.fixture << " " << one.algorithm << " chunk " << one.chunk << " ring " << one.ring << " pool "
             << one.device_tokens << (one.further ? " mixed" : "") << (one.compute == ElementType::kF32 ? "" : " bf16")
             << (one.dtype == KvDType::kFp8 ? " fp8" : "");
}

ModeDriverOptions options_of(const DeviceModeCase& one) {
  const bool latent = one.fixture == "tiny-deepseek-v32" || one.fixture == "tiny-glm-dsa";
  const auto folder = latent ? unpacked_fixture(one.fixture) : fixture(one.fixture);
  ModeDriverOptions options{.checkpoint = folder,
                            .algorithm = one.algorithm,
                            .basis_file = latent ? std::filesystem::path() : folder / "index_basis.safetensors",
                            .sizes = one.sizes,
                            .dtype = one.dtype,
                            .threshold = 40,
                            .hot_ring = one.ring,
                            .hot_buffers = one.buffers,
                            .prefill_chunk = one.chunk,
                            .max_batch = 8,
                            .make_runner = DeviceRunners{.compute = one.compute, .whole_batches = true}};
  if (one.further) options.further = {"streaming", "dense"};
  return options;
}

class DeviceModeChanges : public ::testing::TestWithParam<DeviceModeCase> {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(DeviceModeChanges, GiveTheBitsOfResidentRuns) {
  const DeviceModeCase& one = GetParam();
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  ModeDriver resident(options_of(one), seed);
  ModeDriverOptions options = options_of(one);
  options.device_tokens = one.device_tokens;
  ModeDriver changing(options, seed + 1);
  options.ahead = true;
  ModeDriver ahead(options, seed + 2);
  const bool tight = one.device_tokens > 0;
  const RandomRequests wanted{.count = 5,
                              .least_prompt = tight ? 100 : 1,
                              .most_prompt = tight ? 5 * one.device_tokens / 4 : 260,
                              .least_tokens = 8,
                              .most_tokens = 36,
                              .algorithms = one.further ? 3U : 1U,
                              .most_resident = one.device_tokens};
  Changes changes;
  for (int run = 0; run < one.runs; run += 2) {
    SCOPED_TRACE(concat("run ", run));
    const auto requests = random_requests(random, wanted);
    const auto expected = run_resident(resident, requests);
    ASSERT_TRUE(same_answers(run_changing(changing, requests, random, changes), expected));
    ASSERT_TRUE(same_answers(run_changing(ahead, requests, random, changes), expected)) << "begun ahead";
  }
  EXPECT_EQ(resident.stats().misses, 0);
  if (one.runs < 10) return;  // too few for what follows to be certain
  const bool sparse = one.algorithm != "dense";
  EXPECT_EQ(changing.stats().misses > 0 && ahead.stats().misses > 0, sparse);
  EXPECT_EQ(changes.demoted + changes.promoted > 0, sparse);
  EXPECT_GT(changes.parked, one.runs / 2);
  EXPECT_GT(changes.resumed, one.runs / 2);
}

AlgorithmSizes blocks_of(std::int64_t block, std::int64_t window, std::int64_t budget) {
  return {.block_tokens = block, .window = window, .budget = budget};
}

// Together 244 runs.
INSTANTIATE_TEST_SUITE_P(
    Fixtures, DeviceModeChanges,
    ::testing::Values(
        DeviceModeCase{.fixture = "tiny-llama", .algorithm = "dense"},
        DeviceModeCase{.fixture = "tiny-llama", .algorithm = "lowrank"},
        DeviceModeCase{.fixture = "tiny-llama",
                       .algorithm = "lowrank",
                       .sizes = blocks_of(16, 16, 48),
                       .chunk = 64,
                       .ring = 64,
                       .buffers = {48, 49, 96},
                       .further = true},
        DeviceModeCase{.fixture = "tiny-qwen3",
                       .algorithm = "lowrank",
                       .sizes = blocks_of(16, 8, 32),
                       .chunk = 24,
                       .ring = 9,
                       .buffers = {32, 200},
                       .device_tokens = 512},
        DeviceModeCase{.fixture = "tiny-qwen3",
                       .algorithm = "lowrank",
                       .ring = 200,
                       .buffers = {64, 48},
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kBF16},
        DeviceModeCase{
            .fixture = "tiny-qwen3", .algorithm = "lowrank", .compute = ElementType::kBF16, .dtype = KvDType::kFp8},
        DeviceModeCase{.fixture = "tiny-llama", .algorithm = "quest"},
        DeviceModeCase{.fixture = "tiny-qwen3",
                       .algorithm = "quest",
                       .sizes = blocks_of(32, 40, 128),
                       .chunk = 128,
                       .ring = 64,
                       .buffers = {128, 160},
                       .further = true},
        DeviceModeCase{.fixture = "tiny-llama",
                       .algorithm = "quest",
                       .sizes = blocks_of(8, 8, 48),
                       .chunk = 40,
                       .ring = 16,
                       .buffers = {48, 64},
                       .device_tokens = 576},
        DeviceModeCase{
            .fixture = "tiny-qwen3", .algorithm = "quest", .compute = ElementType::kBF16, .dtype = KvDType::kBF16},
        DeviceModeCase{.fixture = "tiny-llama", .algorithm = "streaming"},
        DeviceModeCase{.fixture = "tiny-qwen3",
                       .algorithm = "streaming",
                       .sizes = blocks_of(64, 64, 64),
                       .ring = 64,
                       .buffers = {192},
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kBF16,
                       .device_tokens = 640},
        DeviceModeCase{
            .fixture = "tiny-deepseek-v32", .algorithm = "dsa", .ring = 1, .buffers = {16, 17, 64}, .runs = 10},
        DeviceModeCase{
            .fixture = "tiny-glm-dsa", .algorithm = "dsa", .chunk = 64, .ring = 33, .buffers = {32, 16}, .runs = 10},
        DeviceModeCase{.fixture = "tiny-glm-dsa",
                       .algorithm = "dsa",
                       .ring = 1,
                       .buffers = {16, 40},
                       .device_tokens = 448,
                       .runs = 10},
        DeviceModeCase{.fixture = "tiny-deepseek-v32",
                       .algorithm = "dsa",
                       .chunk = 100,
                       .ring = 16,
                       .buffers = {48},
                       .device_tokens = 512,
                       .further = true,
                       .runs = 10},
        DeviceModeCase{.fixture = "tiny-deepseek-v32",
                       .algorithm = "dsa",
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kBF16,
                       .runs = 10},
        DeviceModeCase{.fixture = "tiny-glm-dsa",
                       .algorithm = "dsa",
                       .ring = 16,
                       .buffers = {16},
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kFp8,
                       .runs = 10},
        // Latent rows as the keys of one KV head.
        DeviceModeCase{.fixture = "tiny-deepseek-v32", .algorithm = "lowrank", .buffers = {48, 64}, .runs = 10},
        DeviceModeCase{.fixture = "tiny-glm-dsa",
                       .algorithm = "lowrank",
                       .sizes = blocks_of(16, 8, 32),
                       .chunk = 24,
                       .ring = 9,
                       .buffers = {32, 200},
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kFp8,
                       .device_tokens = 512,
                       .runs = 10},
        DeviceModeCase{.fixture = "tiny-deepseek-v32",
                       .algorithm = "quest",
                       .sizes = blocks_of(8, 8, 48),
                       .chunk = 40,
                       .buffers = {48, 64},
                       .device_tokens = 576,
                       .further = true,
                       .runs = 10},
        DeviceModeCase{.fixture = "tiny-glm-dsa",
                       .algorithm = "quest",
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kBF16,
                       .runs = 10}));

// For tools that slow a run down.
INSTANTIATE_TEST_SUITE_P(Few, DeviceModeChanges,
                         ::testing::Values(DeviceModeCase{.fixture = "tiny-qwen3",
                                                          .algorithm = "lowrank",
                                                          .buffers = {48, 64},
                                                          .device_tokens = 512,
                                                          .further = true,
                                                          .runs = 2},
                                           DeviceModeCase{.fixture = "tiny-glm-dsa",
                                                          .algorithm = "dsa",
                                                          .ring = 1,
                                                          .buffers = {16, 40},
                                                          .device_tokens = 448,
                                                          .runs = 2}));

// Prompts of several pieces of 4,096 rows, in a pool for a quarter of them.
class DeviceLongPrompts : public DeviceModeChanges {};

TEST_P(DeviceLongPrompts, GiveTheBitsOfResidentRuns) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  ModeDriverOptions options = options_of(GetParam());
  options.pool_tokens = 20480;
  ModeDriver resident(options, seed);
  options.device_tokens = GetParam().device_tokens;
  options.ahead = true;
  ModeDriver changing(options, seed + 1);
  const auto requests = random_requests(
      random, {.count = 2, .least_prompt = 4500, .most_prompt = 9000, .least_tokens = 8, .most_tokens = 16});
  const auto expected = run_resident(resident, requests);
  Changes changes;
  EXPECT_TRUE(same_answers(run_changing(changing, requests, random, changes), expected));
  EXPECT_GT(changing.stats().misses, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, DeviceLongPrompts,
    ::testing::Values(
        DeviceModeCase{.fixture = "tiny-llama", .algorithm = "lowrank", .chunk = 1000, .device_tokens = 2048},
        DeviceModeCase{.fixture = "tiny-qwen3",
                       .algorithm = "quest",
                       .chunk = 4096,
                       .compute = ElementType::kBF16,
                       .dtype = KvDType::kBF16,
                       .device_tokens = 2048},
        DeviceModeCase{.fixture = "tiny-glm-dsa", .algorithm = "dsa", .chunk = 2048, .device_tokens = 2048}));

}  // namespace
}  // namespace hotset::testing
