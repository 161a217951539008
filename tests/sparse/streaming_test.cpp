#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "sparse/selection.h"
#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

Ints select(const SelectionAlgorithm& algorithm, std::int64_t length) { return select_by_length(algorithm, length); }

// Values of forced_blocks(length, block, window) of the float64 reference.
TEST(Streaming, ReferenceValues) {
  const auto algorithm = make_streaming(16, 64).value();
  EXPECT_EQ(algorithm->name(), "streaming");
  EXPECT_EQ(algorithm->block_tokens(), 16);
  EXPECT_EQ(algorithm->window_tokens(), 64);
  EXPECT_EQ(algorithm->metadata().kind, MetadataGeometry::Kind::kNone);
  EXPECT_FALSE(algorithm->selects_prompt());
  EXPECT_EQ(select(*algorithm, 1), (Ints{0}));
  EXPECT_EQ(select(*algorithm, 64), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(select(*algorithm, 81), (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(select(*algorithm, 1000), (Ints{0, 58, 59, 60, 61, 62}));
  EXPECT_EQ(select(*algorithm, 1008), (Ints{0, 59, 60, 61, 62}));
  EXPECT_EQ(select(*make_streaming(1, 3).value(), 10), (Ints{0, 7, 8, 9}));
  EXPECT_EQ(select(*make_streaming(64, 1).value(), 129), (Ints{0, 2}));
  EXPECT_EQ(select(*make_streaming(64, 1).value(), 128), (Ints{0, 1}));
}

TEST(Streaming, EqualsItsDefinition) {
  for (const std::int64_t block_tokens : {1, 2, 8, 16, 64})
    for (const std::int64_t window : {1, 2, 7, 8, 9, 63, 64, 65, 112, 200}) {
      const auto algorithm = make_streaming(block_tokens, window).value();
      std::size_t largest = 0;
      for (std::int64_t length = 1; length < 700; ++length) {
        Ints expected;
        for (std::int64_t block = 0; block * block_tokens < length; ++block) {
          bool recent = false;
          for (std::int64_t token = block * block_tokens; token < (block + 1) * block_tokens && token < length; ++token)
            recent |= token >= length - window;
          if (block == 0 || recent) expected.push_back(static_cast<std::int32_t>(block));
        }
        const Ints blocks = select(*algorithm, length);
        ASSERT_EQ(blocks, expected) << "block " << block_tokens << " window " << window << " length " << length;
        ASSERT_EQ(blocks.back(), (length - 1) / block_tokens) << "the query's own token";
        largest = std::max(largest, blocks.size());
      }
      EXPECT_EQ(static_cast<std::int64_t>(largest), algorithm->max_blocks())
          << "block " << block_tokens << " window " << window;
      EXPECT_EQ(algorithm->forced_blocks(), algorithm->max_blocks());
    }
}

TEST(Streaming, AppendsOneSelectionPerRow) {
  const auto algorithm = make_streaming(16, 16).value();
  const auto backend = kernels::make_cpu_backend(1);
  SelectionScratch scratch;
  SelectionList list;
  const std::vector<SelectionRow> rows = {{.length = 100}, {.length = 0}, {.length = 5}};
  algorithm->select(LayerId{0}, rows, {}, *backend, scratch, list);
  algorithm->select(LayerId{1}, std::span(rows).first(1), {}, *backend, scratch, list);
  ASSERT_EQ(list.size(), 4);
  EXPECT_TRUE(std::ranges::equal(list.row(0), Ints{0, 5, 6}));
  EXPECT_TRUE(list.row(1).empty());
  EXPECT_TRUE(std::ranges::equal(list.row(2), Ints{0}));
  EXPECT_TRUE(std::ranges::equal(list.row(3), Ints{0, 5, 6}));
}

TEST(Streaming, ErrorsNameTheOption) {
  for (const std::int64_t block : {-16, 0, 3, 12, 128}) {
    EXPECT_EQ(make_streaming(block, 64).error().param, "--sparse-block") << block;
    EXPECT_EQ(make_streaming(block, 64).error().code, ErrorCode::kInvalidArgument) << block;
  }
  // A window of 0 would not hold the query's own token.
  for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(make_streaming(16, window).error().param, "--sparse-window") << window;
}

TEST(Selection, SparseOnlyPastTheThreshold) {
  SelectionPolicy policy{.algorithm = make_streaming(16, 64).value(), .threshold = 100};
  EXPECT_FALSE(policy.sparse_at(100));
  EXPECT_TRUE(policy.sparse_at(101));
  EXPECT_EQ(policy.budget_blocks(), 6);
  policy.budget = 3;
  EXPECT_EQ(policy.budget_blocks(), 3);
  policy.algorithm = nullptr;
  EXPECT_FALSE(policy.sparse_at(101));
}

}  // namespace
}  // namespace hotset::sparse
