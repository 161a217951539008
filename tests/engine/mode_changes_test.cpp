// Modes change nothing: with demotion, promotion, parking and resuming at random steps, tokens and log-probabilities
// equal those of resident runs, bit for bit.
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <random>

#include "core/concat.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/mode_runs.h"
#include "tests/seed.h"

namespace hotset::testing {
namespace {

struct ModeCase {
  const char* fixture;
  const char* algorithm;
  bool unpacked = false;
  KvDType dtype = KvDType::kF32;
  int runs = 25;
  std::int64_t device_tokens = 0;  // a pool too small for some of the prompts, and requests of three algorithms
};
std::ostream& operator<<(std::ostream& out, const ModeCase& one) {
  return out << one.fixture << " " << one.algorithm << (one.dtype == KvDType::kF32 ? "" : " reduced")
             << (one.device_tokens > 0 ? " in a small pool" : "");
}

ModeDriverOptions options_of(const ModeCase& one) {
  const auto folder =
      one.unpacked ? std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / one.fixture : fixture(one.fixture);
  return {
      .checkpoint = folder,
      .algorithm = one.algorithm,
      .further = one.device_tokens > 0 ? std::vector<std::string>{"streaming", "dense"} : std::vector<std::string>{},
      .basis_file = folder / "index_basis.safetensors",
      .dtype = one.dtype,
      .threshold = 40,
      .device_tokens = one.device_tokens};
}

class ModeChanges : public ::testing::TestWithParam<ModeCase> {};

TEST_P(ModeChanges, GiveTheBitsOfResidentRuns) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  ModeDriverOptions options = options_of(GetParam());
  ModeDriver changing(options, seed + 1);
  options.device_tokens = 0;
  ModeDriver resident(options, seed);
  RandomRequests wanted;
  if (GetParam().device_tokens > 0) {
    wanted.most_prompt = 5 * GetParam().device_tokens / 4;
    wanted.algorithms = 1 + options.further.size();
    wanted.most_resident = GetParam().device_tokens;
  }
  Changes changes;
  for (int run = 0; run < GetParam().runs; ++run) {
    SCOPED_TRACE(concat("run ", run));
    const auto requests = random_requests(random, wanted);
    ASSERT_TRUE(same_answers(run_changing(changing, requests, random, changes), run_resident(resident, requests)));
  }
  const bool sparse = std::string_view(GetParam().algorithm) != "dense";
  EXPECT_EQ(resident.stats().misses, 0);
  EXPECT_EQ(changing.stats().misses > 0, sparse);
  EXPECT_EQ(changes.demoted + changes.promoted > 0, sparse);
  EXPECT_GT(changes.parked, GetParam().runs / 2);
  EXPECT_GT(changes.resumed, GetParam().runs / 2);
}

// A real model, when it is there.
TEST(ModeChangesOfTheDefaultModel, GiveTheBitsOfResidentRuns) {
  if (!std::filesystem::exists(HOTSET_DEFAULT_MODEL)) GTEST_SKIP() << "the default model has not been fetched";
  const std::uint64_t seed = 11;  // one run for each algorithm: the same each time
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  std::int64_t misses = 0;
  int changed = 0;
  for (const char* algorithm : {"lowrank", "quest", "streaming"}) {
    SCOPED_TRACE(algorithm);
    const ModeDriverOptions options{
        .checkpoint = HOTSET_DEFAULT_MODEL, .algorithm = algorithm, .threshold = 40, .threads = 2};
    ModeDriver resident(options, seed);
    ModeDriver changing(options, seed + 1);
    Changes changes;
    const auto requests = random_requests(random, {});
    ASSERT_TRUE(same_answers(run_changing(changing, requests, random, changes), run_resident(resident, requests)));
    EXPECT_GT(changes.demoted + changes.promoted + changes.parked, 0);
    misses += changing.stats().misses;
    changed += changes.demoted + changes.promoted;
  }
  EXPECT_GT(misses, 0);
  EXPECT_GT(changed, 0);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ModeChanges,
                         ::testing::Values(ModeCase{"tiny-llama", "dense"}, ModeCase{"tiny-llama", "lowrank"},
                                           ModeCase{"tiny-llama", "quest"}, ModeCase{"tiny-llama", "streaming"},
                                           ModeCase{"tiny-qwen3", "lowrank"}, ModeCase{"tiny-qwen3", "quest"},
                                           ModeCase{"tiny-qwen3", "streaming"},
                                           ModeCase{"tiny-qwen3", "lowrank", false, KvDType::kFp8, 10},
                                           ModeCase{"tiny-llama", "quest", false, KvDType::kBF16, 10},
                                           ModeCase{"tiny-deepseek-v32", "dsa", true},
                                           ModeCase{"tiny-glm-dsa", "dsa", true},
                                           ModeCase{"tiny-glm-dsa", "dsa", true, KvDType::kFp8, 10},
                                           ModeCase{"tiny-llama", "lowrank", false, KvDType::kF32, 10, 512},
                                           ModeCase{"tiny-qwen3", "quest", false, KvDType::kF32, 10, 512},
                                           ModeCase{"tiny-deepseek-v32", "dsa", true, KvDType::kF32, 10, 512}));

}  // namespace
}  // namespace hotset::testing
