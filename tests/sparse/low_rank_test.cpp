#include "sparse/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/kv_metadata_format.h"
#include "tests/kernels/selection_reference.h"
#include "tests/sparse/selection_driver.h"

namespace hotset::sparse {
namespace {

std::shared_ptr<const IndexBasis> random_basis(kernels::Random& random, std::int32_t layers, std::int32_t kv_heads,
                                               std::int32_t dim, std::int32_t rank) {
  auto basis = std::make_shared<IndexBasis>();
  basis->layers = layers;
  basis->kv_heads = kv_heads;
  basis->key_dim = dim;
  basis->rank = rank;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    basis->u.push_back(random.normals(std::int64_t{kv_heads} * dim * rank));
    for (float& x : basis->u.back()) x /= std::sqrt(static_cast<float>(dim));
  }
  return basis;
}

std::shared_ptr<const SelectionAlgorithm> make(std::int64_t sink, std::int64_t window, std::int64_t budget,
                                               const std::shared_ptr<const IndexBasis>& basis) {
  return make_low_rank({.sink = sink, .window = window, .budget = budget, .basis = basis}).value();
}

// The index keys that the definition gives, in double but for the rounding of the scale.
std::vector<float> index_keys(const std::vector<float>& keys, const IndexBasis& basis, std::int32_t layer) {
  MetadataGeometry geometry{MetadataGeometry::Kind::kLowRankKeys, 1, basis.key_dim, basis.rank, 1, KvDType::kF32};
  std::vector<std::byte> page(static_cast<std::size_t>(geometry.page_bytes()));
  std::vector<float> out;
  std::vector<float> one(static_cast<std::size_t>(basis.rank));
  const std::size_t width = static_cast<std::size_t>(basis.kv_heads) * basis.key_dim;
  for (std::size_t token = 0; token * width < keys.size(); ++token)
    for (std::int32_t head = 0; head < basis.kv_heads; ++head) {
      const auto x = reference::project(keys.data() + token * width + head * basis.key_dim, basis.of(layer).data(),
                                        head, basis.key_dim, basis.rank);
      const std::vector<float> rounded(x.begin(), x.end());
      encode_low_rank_key(geometry, 0, rounded.data(), page.data(), 0);
      decode_low_rank_key(geometry, 0, page.data(), 0, one.data());
      out.insert(out.end(), one.begin(), one.end());
    }
  return out;
}

TEST(LowRank, SelectsAsDefined) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(2);
  const reference::Shape shapes[] = {{1, 1, 8}, {3, 1, 16}, {9, 3, 64}, {4, 2, 24}};
  const std::int32_t ranks[] = {2, 6, 16, 24};
  for (std::size_t i = 0; i < std::size(shapes); ++i) {
    const reference::Shape& shape = shapes[i];
    const auto basis = random_basis(random, 2, shape.kv_heads, shape.dim, ranks[i]);
    for (const std::int64_t sink : {0, 1, 4})
      for (const std::int64_t window : {1, 7, 64})
        for (const std::int64_t more : {0, 1, 30, 2000}) {
          const std::int64_t budget = sink + window + more;
          const auto algorithm = make(sink, window, budget, basis);
          SelectionSequence sequence(*algorithm, LayerId{1});
          const std::vector<float> keys = random.normals(1000 * shape.kv_heads * shape.dim);
          sequence.append(*backend, keys);
          const std::int64_t lengths[] = {1, 63, 64, 65, 127, 128, 129, 1000};
          const std::vector<float> q = random.normals(8 * shape.heads * shape.dim);
          std::vector<SelectionRow> rows;
          for (std::int64_t row = 0; row < 8; ++row) rows.push_back(sequence.row(row, lengths[row], budget));
          SelectionQueries queries;
          queries.q = q.data();
          queries.q_stride = shape.heads * shape.dim;
          queries.heads = shape.heads;
          queries.scale = 0.5F;
          const std::vector<Ints> selected = select_rows(*algorithm, LayerId{1}, rows, queries, *backend);
          const std::vector<float> all_index_keys = index_keys(keys, *basis, 1);
          for (std::size_t row = 0; row < 8; ++row) {
            const std::int64_t length = lengths[row];
            const std::vector<float> seen(all_index_keys.begin(),
                                          all_index_keys.begin() + length * shape.kv_heads * ranks[i]);
            const std::vector<double> scores =
                reference::low_rank_scores(q.data() + row * static_cast<std::size_t>(queries.q_stride), seen,
                                           basis->of(1).data(), shape, ranks[i], 0.5);
            const std::int64_t first = std::min(sink, length);
            const std::int64_t last = std::max(length - window, first);
            // Another rounding of the projection flips a code here and there: a seventh of a key's largest channel.
            EXPECT_EQ(wrong_with(selected[row], length, first, last, budget,
                                 {scores.begin() + first, scores.begin() + last}, 1e-5 + 0.02 / double(length)),
                      "")
                << "sink " << sink << " window " << window << " budget " << budget << " length " << length;
          }
        }
  }
}

TEST(LowRank, SaysWhatItKeeps) {
  kernels::Random random;
  const auto algorithm = make(4, 64, 2048, random_basis(random, 3, 2, 32, 8));
  EXPECT_EQ(algorithm->name(), "lowrank");
  EXPECT_EQ(algorithm->block_tokens(), 1);
  EXPECT_EQ(algorithm->max_blocks(), 2048);
  EXPECT_EQ(algorithm->forced_blocks(), 68);
  EXPECT_EQ(algorithm->window_tokens(), 64);
  EXPECT_FALSE(algorithm->selects_prompt());
  EXPECT_EQ(algorithm->metadata().page_bytes(), 64 * 2 * (4 + 2));
}

TEST(LowRank, ASmallerBudgetThanTheServersIsKept) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(1);
  const auto algorithm = make(1, 2, 100, random_basis(random, 1, 1, 8, 4));
  SelectionSequence sequence(*algorithm, LayerId{0});
  sequence.append(*backend, random.normals(300 * 8));
  const std::vector<float> q = random.normals(8);
  const SelectionQueries queries{.q = q.data(), .q_stride = 8, .heads = 1};
  const auto selected =
      select_rows(*algorithm, LayerId{0}, {sequence.row(0, 300, 100), sequence.row(0, 300, 10)}, queries, *backend);
  EXPECT_EQ(selected[0].size(), 100U);
  EXPECT_EQ(selected[1].size(), 10U);
  EXPECT_TRUE(std::ranges::includes(selected[0], selected[1]));
}

// More scores than one batch holds, beside rows that take everything.
TEST(LowRank, LongBatchesAreCutWithoutATrace) {
  kernels::Random random;
  const auto backend = kernels::make_cpu_backend(2);
  const auto algorithm = make(1, 2, 50, random_basis(random, 1, 1, 8, 2));
  SelectionSequence sequence(*algorithm, LayerId{0});
  sequence.append(*backend, random.normals(150'000 * 8));
  const std::int64_t count = 64;
  const std::vector<float> q = random.normals(count * 8);
  const SelectionQueries queries{.q = q.data(), .q_stride = 8, .heads = 1};
  std::vector<SelectionRow> rows;
  for (std::int64_t row = 0; row < count; ++row)
    rows.push_back(sequence.row(row, row % 7 == 3 ? row : 150'000 - row, 50));
  const auto selected = select_rows(*algorithm, LayerId{0}, rows, queries, *backend);
  ASSERT_EQ(selected.size(), rows.size());
  for (const std::size_t row : {0U, 3U, 26U, 27U, 28U, 29U, 45U, 63U})
    EXPECT_EQ(selected[row], select_rows(*algorithm, LayerId{0}, {rows[row]}, queries, *backend)[0]);
}

TEST(LowRank, ErrorsNameTheOption) {
  kernels::Random random;
  const auto basis = random_basis(random, 1, 1, 8, 4);
  const auto error = [&](std::int64_t sink, std::int64_t window, std::int64_t budget) {
    return make_low_rank({.sink = sink, .window = window, .budget = budget, .basis = basis}).error();
  };
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error(-1, 64, 2048).param, "--sparse-sink");
  EXPECT_EQ(error(kHuge, 64, 2048).param, "--sparse-sink");
  EXPECT_EQ(error(4, 0, 2048).param, "--sparse-window");
  EXPECT_EQ(error(4, kHuge, 2048).param, "--sparse-window");
  EXPECT_EQ(error(4, 64, 67).param, "--sparse-budget");
  EXPECT_NE(error(4, 64, 67).message.find("68"), std::string::npos);
  EXPECT_EQ(error(4, 64, 67).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error(4, 64, kHuge).param, "--sparse-budget");
  EXPECT_TRUE(make_low_rank({.sink = 4, .window = 64, .budget = 68, .basis = basis}).ok());
}

}  // namespace
}  // namespace hotset::sparse
