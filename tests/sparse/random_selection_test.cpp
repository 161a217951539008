#include "tests/sparse/random_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

std::vector<std::int32_t> select(const RandomSelection& algorithm, std::uint64_t sequence, std::int32_t layer,
                                 std::int64_t length) {
  return select_by_length(algorithm, length, sequence, layer);
}

TEST(RandomSelectionTest, KeepsTheContractOfSelections) {
  for (const std::int32_t block_tokens : {1, 8, 64})
    for (const std::int64_t most : {1, 2, 9, 40}) {
      const RandomSelection algorithm(7, block_tokens, most);
      for (std::int64_t length = 1; length < 900; length += 7) {
        const std::vector<std::int32_t> blocks = select(algorithm, 3, 2, length);
        const std::int64_t last = (length - 1) / block_tokens;
        ASSERT_EQ(static_cast<std::int64_t>(blocks.size()), std::min(most, last + 1));
        ASSERT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
        ASSERT_EQ(std::set(blocks.begin(), blocks.end()).size(), blocks.size());
        ASSERT_GE(blocks.front(), 0);
        ASSERT_EQ(blocks.back(), last);
      }
    }
}

TEST(RandomSelectionTest, DependsOnSeedSequenceLayerAndLengthOnly) {
  const RandomSelection algorithm(7, 8, 9);
  const auto blocks = select(algorithm, 3, 2, 5000);
  EXPECT_EQ(blocks, select(RandomSelection(7, 8, 9), 3, 2, 5000));
  EXPECT_NE(blocks, select(RandomSelection(8, 8, 9), 3, 2, 5000));
  EXPECT_NE(blocks, select(algorithm, 4, 2, 5000));
  EXPECT_NE(blocks, select(algorithm, 3, 1, 5000));
  EXPECT_NE(blocks, select(algorithm, 3, 2, 4999));
}

TEST(RandomSelectionTest, ReachesEveryBlock) {
  const RandomSelection algorithm(1, 16, 4);
  std::set<std::int32_t> seen;
  for (std::uint64_t sequence = 0; sequence < 400; ++sequence)
    for (const std::int32_t block : select(algorithm, sequence, 0, 640)) seen.insert(block);
  EXPECT_EQ(seen.size(), 40U);
}

}  // namespace
}  // namespace hotset::sparse
