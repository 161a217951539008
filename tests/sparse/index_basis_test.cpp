#include "sparse/index_basis.h"

#include <gtest/gtest.h>

namespace hotset::sparse {
namespace {

TEST(IndexBasis, DefaultRanks) {
  EXPECT_EQ(default_index_rank(64, false), 16);
  EXPECT_EQ(default_index_rank(128, false), 32);
  EXPECT_EQ(default_index_rank(576, true), 64);
  EXPECT_EQ(default_index_rank(80, false), 20);
  EXPECT_EQ(default_index_rank(90, false), 20);
  EXPECT_EQ(default_index_rank(256, false), 64);
  EXPECT_EQ(default_index_rank(16, false), 4);
  EXPECT_EQ(default_index_rank(8, false), 4);
  EXPECT_EQ(default_index_rank(2, false), 2);
  EXPECT_EQ(default_index_rank(40, true), 40);
  for (std::int32_t dim = 2; dim <= 600; dim += 2) {
    for (const bool latent : {false, true}) {
      EXPECT_TRUE(check_index_rank(default_index_rank(dim, latent), dim, "--rank").ok()) << dim;
    }
  }
}

TEST(IndexBasis, RandomDirectionsAreOrthonormal) {
  const IndexBasis shape{.layers = 2, .kv_heads = 3, .key_dim = 24, .rank = 24};
  const IndexBasis basis = random_index_basis(shape, 5);
  ASSERT_EQ(basis.u.size(), 2U);
  for (std::int32_t layer = 0; layer < shape.layers; ++layer) {
    const auto u = basis.of(layer);
    ASSERT_EQ(u.size(), 3U * 24 * 24);
    for (std::size_t head = 0; head < 3; ++head) {
      for (std::size_t a = 0; a < 24; ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          double sum = 0;
          for (std::size_t c = 0; c < 24; ++c) sum += double{u[(head * 24 + c) * 24 + a]} * u[(head * 24 + c) * 24 + b];
          EXPECT_NEAR(sum, a == b ? 1.0 : 0.0, 1e-6) << layer << ' ' << head << ' ' << a << ' ' << b;
        }
      }
    }
  }
  EXPECT_EQ(random_index_basis(shape, 5).hash, basis.hash);
  EXPECT_NE(random_index_basis(shape, 6).hash, basis.hash);
}

TEST(IndexBasis, RanksThatAreRefused) {
  for (const std::int64_t rank : {-2LL, 0LL, 1LL, 15LL, 66LL, 1LL << 40}) {
    const auto checked = check_index_rank(rank, 64, "--rank");
    ASSERT_FALSE(checked.ok()) << rank;
    EXPECT_EQ(checked.error().param, "--rank");
    EXPECT_NE(checked.error().message.find("--rank"), std::string::npos);
    EXPECT_NE(checked.error().message.find("from 2 to 64"), std::string::npos) << checked.error().message;
  }
  EXPECT_TRUE(check_index_rank(2, 64, "--rank").ok());
  EXPECT_TRUE(check_index_rank(64, 64, "--rank").ok());
}

TEST(IndexBasis, HashDependsOnShapeAndEveryNumber) {
  IndexBasis basis{.layers = 2, .kv_heads = 1, .key_dim = 4, .rank = 2};
  basis.u = {{1, 0, 0, 1, 0, 0, 0, 0}, {0, 1, 1, 0, 0, 0, 0, 0}};
  hash_index_basis(basis);
  IndexBasis same = basis;
  same.hash = {};
  hash_index_basis(same);
  EXPECT_EQ(same.hash, basis.hash);

  for (auto& layer : same.u) {
    for (float& number : layer) {
      const float before = number;
      number += 0.5F;
      hash_index_basis(same);
      EXPECT_NE(same.hash, basis.hash);
      number = before;
    }
  }
  // The same numbers in another shape.
  IndexBasis other = basis;
  other.key_dim = 2;
  other.kv_heads = 2;
  hash_index_basis(other);
  EXPECT_NE(other.hash, basis.hash);
}

}  // namespace
}  // namespace hotset::sparse
