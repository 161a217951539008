#include "sparse/quest.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/selection_reference.h"
#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

using kernels::HeadCombine;

QuestOptions options(std::int64_t block, std::int64_t window, std::int64_t budget) {
  QuestOptions out;
  out.block_tokens = block;
  out.window = window;
  out.budget = budget;
  out.kv_heads = 1;
  out.key_dim = 8;
  return out;
}

TEST(Quest, SelectsAsDefined) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(2);
  for (const reference::Shape& shape : {reference::Shape{1, 1, 8}, reference::Shape{9, 3, 32}})
    for (const std::int64_t block : {1, 4, 16, 64})
      for (const std::int64_t window : {1, 17, 64})
        for (const HeadCombine combine : {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax}) {
          const std::int64_t forced = 2 + ceil_div(window - 1, block);
          const std::int64_t budget = forced + random.integer(0, 12);
          QuestOptions with = options(block, window, budget * block + block - 1);
          with.combine = combine;
          with.kv_heads = shape.kv_heads;
          with.key_dim = shape.dim;
          const auto algorithm = make_quest(with).value();
          ASSERT_EQ(algorithm->max_blocks(), budget);
          // Bounds widen with every token: each length is asked when it is the newest.
          SelectionSequence sequence(*algorithm, LayerId{0});
          std::vector<float> keys;
          for (const std::int64_t length : {1, 63, 64, 65, 127, 128, 129, 1000}) {
            const std::int64_t width = std::int64_t{shape.kv_heads} * shape.dim;
            const std::vector<float> more = random.normals(length * width - static_cast<std::int64_t>(keys.size()));
            keys.insert(keys.end(), more.begin(), more.end());
            sequence.append(*backend, more);
            const std::vector<float> q = random.normals(std::int64_t{shape.heads} * shape.dim);
            const SelectionQueries queries{
                .q = q.data(), .q_stride = shape.heads * shape.dim, .heads = shape.heads, .scale = 0.25F};
            const Ints blocks =
                select_rows(*algorithm, LayerId{0}, {sequence.row(0, length, budget)}, queries, *backend)[0];
            const std::int64_t count = ceil_div(length, block);
            const std::int64_t first = 1;
            const std::int64_t last = std::max(std::max<std::int64_t>(0, length - window) / block, first);
            std::vector<double> scores(static_cast<std::size_t>(last - first));
            if (!scores.empty())
              scores = reference::combine_heads(
                  reference::quest_scores(q.data(), keys, shape, static_cast<int>(block), 0.25),
                  static_cast<std::size_t>(first), static_cast<std::size_t>(last),
                  static_cast<reference::Combine>(combine));
            EXPECT_EQ(wrong_with(blocks, count, first, last, budget, scores, 1e-5), "")
                << "block " << block << " window " << window << " budget " << budget << " length " << length;
          }
        }
}

// The largest forced part occurs, so the smallest budget that is accepted is the smallest that works.
TEST(Quest, TheForcedPartIsNeverLarger) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(1);
  for (const std::int64_t block : {1, 8, 64})
    for (const std::int64_t window : {1, 2, 8, 9, 64, 65}) {
      const std::int64_t most = 2 + ceil_div(window - 1, block);
      const auto algorithm = make_quest(options(block, window, most * block)).value();
      EXPECT_EQ(algorithm->forced_blocks(), most);
      SelectionSequence sequence(*algorithm, LayerId{0});
      sequence.append(*backend, random.normals(400 * 8));
      const std::vector<float> q = random.normals(8);
      std::size_t largest = 0;
      std::vector<SelectionRow> rows;
      for (std::int64_t length = 1; length <= 400; ++length) rows.push_back(sequence.row(0, length, 0));
      const SelectionQueries queries{.q = q.data(), .q_stride = 0, .heads = 1};
      for (const Ints& blocks : select_rows(*algorithm, LayerId{0}, rows, queries, *backend))
        largest = std::max(largest, blocks.size());
      EXPECT_EQ(static_cast<std::int64_t>(largest), most) << "block " << block << " window " << window;
    }
}

TEST(Quest, SaysWhatItKeeps) {
  QuestOptions with = options(16, 64, 2048);
  with.kv_heads = 3;
  with.key_dim = 64;
  auto algorithm = make_quest(with).value();
  EXPECT_EQ(algorithm->name(), "quest");
  EXPECT_EQ(algorithm->block_tokens(), 16);
  EXPECT_EQ(algorithm->max_blocks(), 128);
  EXPECT_EQ(algorithm->forced_blocks(), 6);
  EXPECT_EQ(algorithm->window_tokens(), 64);
  EXPECT_EQ(algorithm->metadata().page_bytes(), 4 * 2 * 3 * 64 * 4);
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    with.rows_dtype = dtype;
    EXPECT_EQ(make_quest(with).value()->metadata().page_bytes(), 4 * 2 * 3 * 64 * 2);
  }
}

TEST(Quest, ErrorsNameTheOption) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t block : {-1, 0, 3, 65, 128})
    EXPECT_EQ(make_quest(options(block, 64, 2048)).error().param, "--sparse-block");
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{-5}, kHuge})
    EXPECT_EQ(make_quest(options(16, window, 2048)).error().param, "--sparse-window");
  for (const std::int64_t budget : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{95}, kHuge})
    EXPECT_EQ(make_quest(options(16, 64, budget)).error().param, "--sparse-budget") << budget;
  EXPECT_NE(make_quest(options(16, 64, 95)).error().message.find("96"), std::string::npos);
  EXPECT_TRUE(make_quest(options(16, 64, 96)).ok());
}

}  // namespace
}  // namespace hotset::sparse
