// Verify mode finds planted faults, names where they are, and says nothing of sound runs.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "core/concat.h"
#include "tests/engine/fixture_file.h"
#include "tests/engine/mode_driver.h"

namespace hotset::testing {
namespace {

using sparse::KvMode;

ModeDriver hot_driver(double rate) {
  ModeDriver driver({.checkpoint = fixture("tiny-llama"),
                     .algorithm = "lowrank",
                     .basis_file = fixture("tiny-llama") / "index_basis.safetensors",
                     .threshold = 40},
                    5);
  driver.cpu_runner().verify(rate);
  std::mt19937 random(3);
  ModeRequest request{.prompt = {}, .new_tokens = 60};
  for (int i = 0; i < 180; ++i) request.prompt.push_back(static_cast<std::int32_t>(2 + random() % 510));
  driver.add(request);
  driver.move(driver.sequences()[0], KvMode::kResident);
  while (driver.sequences()[0].prefilling()) driver.step();
  driver.step();
  driver.move(driver.sequences()[0], KvMode::kHot);
  for (int i = 0; i < 5; ++i) driver.step();
  return driver;
}

// A buffered block of layer 1 and its row.
struct HotRow {
  std::int32_t block = 0;
  std::byte* row = nullptr;
};
std::vector<HotRow> hot_rows(ModeDriver& driver) {
  const sparse::SequenceKv& kv = driver.sequences()[0].state->kv;
  std::vector<HotRow> out;
  const auto slots = kv.hot[1].block_of_slot();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    const PageId page = kv.device_pages[1][slot / 64];
    out.push_back({slots[slot], driver.device_base() + slot_of(page, static_cast<std::int64_t>(slot % 64)).value() *
                                                           driver.layout().rows.row_bytes()});
  }
  HS_CHECK(out.size() >= 2, "the buffer holds blocks");
  return out;
}

TEST(Verify, SoundRunsPass) {
  ModeDriver driver = hot_driver(1.0);
  while (!driver.done()) driver.step();
  // Every layer of every generated token but the first, which the prompt's last row gives.
  EXPECT_EQ(driver.verified().checked, 59 * driver.layout().rows.layers);
  EXPECT_EQ(driver.verified().failed, 0);
}

TEST(Verify, TheShareIsKept) {
  ModeDriver driver = hot_driver(0.25);
  while (!driver.done()) driver.step();
  const double share = static_cast<double>(driver.verified().checked) / (59.0 * driver.layout().rows.layers);
  EXPECT_NEAR(share, 0.25, 0.1);
}

TEST(Verify, AFlippedBitInAHotRowIsFound) {
  ModeDriver driver = hot_driver(1.0);
  const HotRow row = hot_rows(driver).front();
  row.row[9] ^= std::byte{4};
  driver.step();
  EXPECT_GE(driver.verified().failed, 1);
  const auto& failures = driver.verified().failures;
  ASSERT_FALSE(failures.empty());
  EXPECT_TRUE(std::ranges::any_of(failures, [&](const model::VerifyFailure& failure) {
    return failure.kind == model::VerifyFailure::Kind::kRow && failure.layer == LayerId{1} &&
           failure.block == row.block && failure.sequence == driver.sequences()[0].state->kv.id;
  })) << describe(failures.front());
  EXPECT_NE(describe(failures.front()).find("layer 1"), std::string::npos);
}

TEST(Verify, ARowFromAnotherPageIsFound) {
  ModeDriver driver = hot_driver(1.0);
  const auto rows = hot_rows(driver);
  std::memcpy(rows[0].row, rows[1].row, static_cast<std::size_t>(driver.layout().rows.row_bytes()));
  driver.step();
  EXPECT_TRUE(std::ranges::any_of(driver.verified().failures, [&](const model::VerifyFailure& failure) {
    return failure.kind == model::VerifyFailure::Kind::kRow && failure.block == rows[0].block;
  }));
}

TEST(Verify, ADamagedResidentRowIsFound) {
  ModeDriver driver = hot_driver(1.0);
  driver.move(driver.sequences()[0], KvMode::kResident);
  driver.step();
  ASSERT_EQ(driver.verified().failed, 0);
  const sparse::SequenceKv& kv = driver.sequences()[0].state->kv;
  driver.device_base()[slot_of(kv.device_pages[0][0], 2).value() * driver.layout().rows.row_bytes()] ^= std::byte{1};
  driver.step();  // the first tokens are always attended to
  EXPECT_GE(driver.verified().failed, 1);
  EXPECT_EQ(driver.verified().failures.front().block, 2);
}

}  // namespace
}  // namespace hotset::testing
