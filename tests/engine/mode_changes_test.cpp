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
};
std::ostream& operator<<(std::ostream& out, const ModeCase& one) {
  return out << one.fixture << " " << one.algorithm << (one.dtype == KvDType::kF32 ? "" : " reduced");
}

ModeDriverOptions options_of(const ModeCase& one) {
  const auto folder =
      one.unpacked ? std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / one.fixture : fixture(one.fixture);
  return {.checkpoint = folder,
          .algorithm = one.algorithm,
          .basis_file = folder / "index_basis.safetensors",
          .dtype = one.dtype,
          .threshold = 40};
}

class ModeChanges : public ::testing::TestWithParam<ModeCase> {};

TEST_P(ModeChanges, GiveTheBitsOfResidentRuns) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  ModeDriver resident(options_of(GetParam()), seed);
  ModeDriver changing(options_of(GetParam()), seed + 1);
  Changes changes;
  for (int run = 0; run < GetParam().runs; ++run) {
    SCOPED_TRACE(concat("run ", run));
    const auto requests = random_requests(random, {});
    ASSERT_TRUE(same_answers(run_changing(changing, requests, random, changes), run_resident(resident, requests)));
  }
  const bool sparse = std::string_view(GetParam().algorithm) != "dense";
  EXPECT_EQ(resident.stats().misses, 0);
  EXPECT_EQ(changing.stats().misses > 0, sparse);
  EXPECT_EQ(changes.demoted > 0 && changes.promoted > 0, sparse);
  EXPECT_GT(changes.parked, GetParam().runs);
  EXPECT_GT(changes.resumed, GetParam().runs);
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
                                           ModeCase{"tiny-glm-dsa", "dsa", true, KvDType::kFp8, 10}));

}  // namespace
}  // namespace hotset::testing
