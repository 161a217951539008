#include "sparse/dsa.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/kernels/selection_reference.h"
#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

constexpr std::int32_t kHeads = 4;
constexpr std::int32_t kDim = 32;

struct Queries {
  std::vector<float> q, weights;
  SelectionQueries view;
  Queries(kernels::Random& random, std::int64_t rows)
      : q(random.normals(rows * kHeads * kDim)), weights(random.normals(rows * kHeads)) {
    view.index_q = q.data();
    view.index_weights = weights.data();
    view.index_heads = kHeads;
  }
};

std::shared_ptr<const SelectionAlgorithm> make(std::int64_t top_k) {
  return make_dsa({.top_k = top_k, .dim = kDim, .dtype = KvDType::kF32}).value();
}

// A whole prompt in one call: every position is a query.
TEST(Dsa, SelectsForEveryQueryOfAPrompt) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(2);
  for (const std::int64_t top_k : {1, 16, 64, 100}) {
    const auto algorithm = make(top_k);
    SelectionSequence sequence(*algorithm, LayerId{0});
    const std::vector<float> keys = random.normals(260 * kDim);
    sequence.append(*backend, keys);
    const Queries queries(random, 260);
    std::vector<SelectionRow> rows;
    for (std::int64_t row = 0; row < 260; ++row) rows.push_back(sequence.row(row, row + 1, top_k));
    const std::vector<Ints> selected = select_rows(*algorithm, LayerId{0}, rows, queries.view, *backend);
    for (std::int64_t row = 0; row < 260; ++row) {
      const std::vector<float> seen(keys.begin(), keys.begin() + (row + 1) * kDim);
      const auto scores = reference::index_scores(queries.q.data() + row * kHeads * kDim,
                                                  queries.weights.data() + row * kHeads, seen, kHeads, kDim);
      ASSERT_EQ(wrong_with(selected[static_cast<std::size_t>(row)], row + 1, 0, row + 1, top_k, scores, 1e-4), "")
          << "top_k " << top_k << " position " << row;
    }
  }
}

// Up to index_topk everything is attended and nothing is scored: there need be no metadata at all.
TEST(Dsa, UpToTopKEverything) {
  const auto algorithm = make(64);
  for (const std::int64_t length : {1, 2, 63, 64}) {
    Ints everything(static_cast<std::size_t>(length));
    std::iota(everything.begin(), everything.end(), 0);
    EXPECT_EQ(select_by_length(*algorithm, length), everything);
  }
  EXPECT_TRUE(select_by_length(*algorithm, 0).empty());
}

// One row of 1 token beside one of many; a chunk's rows beside another sequence's.
TEST(Dsa, RaggedBatchesSelectAsAlone) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(2);
  const auto algorithm = make(40);
  SelectionSequence first(*algorithm, LayerId{0});
  SelectionSequence second(*algorithm, LayerId{0});
  first.append(*backend, random.normals(9000 * kDim));
  second.append(*backend, random.normals(200 * kDim));
  const Queries queries(random, 6);
  const std::vector<SelectionRow> rows = {first.row(0, 1, 40),    first.row(1, 9000, 40), second.row(2, 199, 40),
                                          second.row(3, 200, 40), second.row(4, 0, 40),   first.row(5, 41, 40)};
  const std::vector<Ints> together = select_rows(*algorithm, LayerId{0}, rows, queries.view, *backend);
  const std::size_t sizes[] = {1, 40, 40, 40, 0, 40};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    EXPECT_EQ(together[row].size(), sizes[row]);
    EXPECT_EQ(together[row], select_rows(*algorithm, LayerId{0}, {rows[row]}, queries.view, *backend)[0]);
  }
}

TEST(Dsa, NothingIsAllocatedOnceGrownAndOutIsAppended) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(1);
  const auto algorithm = make(8);
  SelectionSequence sequence(*algorithm, LayerId{0});
  sequence.append(*backend, random.normals(100 * kDim));
  const Queries queries(random, 2);
  const std::vector<SelectionRow> rows = {sequence.row(0, 100, 8), sequence.row(1, 90, 8)};
  SelectionScratch scratch;
  SelectionList list;
  algorithm->select(LayerId{0}, rows, queries.view, *backend, scratch, list);
  const float* const scores = scratch.scores.data();
  algorithm->select(LayerId{0}, rows, queries.view, *backend, scratch, list);
  EXPECT_EQ(scratch.scores.data(), scores);
  ASSERT_EQ(list.size(), 4);
  EXPECT_TRUE(std::ranges::equal(list.row(0), list.row(2)));
  EXPECT_TRUE(std::ranges::equal(list.row(1), list.row(3)));
}

TEST(Dsa, SaysWhatItKeeps) {
  const auto algorithm = make_dsa({.top_k = 2048, .dim = 128, .dtype = KvDType::kFp8}).value();
  EXPECT_EQ(algorithm->name(), "dsa");
  EXPECT_EQ(algorithm->block_tokens(), 1);
  EXPECT_EQ(algorithm->max_blocks(), 2048);
  EXPECT_EQ(algorithm->forced_blocks(), 0);
  EXPECT_EQ(algorithm->window_tokens(), 1);
  EXPECT_TRUE(algorithm->selects_prompt());
  EXPECT_EQ(algorithm->metadata().page_bytes(), 64 * 132);
}

TEST(Dsa, ErrorsNameTheField) {
  for (const std::int64_t top_k : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(make_dsa({.top_k = top_k, .dim = 8}).error().param, "index_topk");
  EXPECT_EQ(make_dsa({.top_k = 8, .dim = 0}).error().param, "index_head_dim");
}

}  // namespace
}  // namespace hotset::sparse
