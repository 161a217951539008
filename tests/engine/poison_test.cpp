// Damaged rows and metadata of one sequence harm that sequence alone: no invalid index, no other answer changes.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/engine/fixture_file.h"
#include "tests/engine/mode_driver.h"

namespace hotset::testing {
namespace {

ModeDriver driver_of(const std::string& algorithm) {
  const bool dsa = algorithm == "dsa";
  const auto folder =
      dsa ? std::filesystem::path(HOTSET_UNPACKED_FIXTURES) / "tiny-deepseek-v32" : fixture("tiny-llama");
  ModeDriver driver({.checkpoint = folder,
                     .algorithm = algorithm,
                     .basis_file = folder / "index_basis.safetensors",
                     .sizes = {.budget = algorithm == "quest" ? 96 : 48},
                     .threshold = 40,
                     .hot_buffers = {96}},
                    9);
  std::mt19937 random(17);
  for (int i = 0; i < 9; ++i) {
    ModeRequest request{.prompt = {}, .new_tokens = 30};
    for (int t = 0; t < 90 + 7 * i; ++t) request.prompt.push_back(static_cast<std::int32_t>(2 + random() % 510));
    driver.add(request);
  }
  for (auto& sequence : driver.sequences()) driver.move(sequence, sparse::KvMode::kResident);
  return driver;
}

// Fills the first page of every layer of sequence 4 with not-a-numbers once its prompt is there.
std::vector<ModeAnswer> run(ModeDriver& driver, bool poisoned) {
  for (int i = 0; i < 8; ++i) driver.step();
  if (poisoned) {
    const auto bytes = static_cast<std::size_t>(driver.layout().rows.page_bytes());
    for (const auto& pages : driver.sequences()[4].state->kv.device_pages) {
      std::memset(driver.device_base() + pages[0].value() * static_cast<std::int64_t>(bytes), 0xff, bytes);
    }
  }
  while (!driver.done()) driver.step();
  return driver.answers();
}

class Poison : public ::testing::TestWithParam<const char*> {};

TEST_P(Poison, OneSequenceFailsAlone) {
  ModeDriver sound = driver_of(GetParam());
  ModeDriver damaged = driver_of(GetParam());
  const auto wanted = run(sound, false);
  const auto got = run(damaged, true);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (i == 4) continue;
    EXPECT_EQ(got[i], wanted[i]) << "sequence " << i;
    EXPECT_EQ(damaged.sequences()[i].error, "");
  }
  EXPECT_NE(damaged.sequences()[4].error.find("not numbers"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Poison, ::testing::Values("dense", "lowrank", "quest", "streaming"));

}  // namespace
}  // namespace hotset::testing
