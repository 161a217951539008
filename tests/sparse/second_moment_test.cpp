// Bases against known matrices and against a slow, obvious eigensolver (cyclic Jacobi rotations).
#include "sparse/second_moment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "core/concat.h"

namespace hotset::sparse {
namespace {

using Square = std::vector<std::vector<double>>;

struct EigenPairs {
  std::vector<double> values;  // falling
  Square vectors;              // [i] belongs to values[i], sign by the rule of the basis
};

// Zeroes each off-diagonal entry by a rotation, over and over, until nothing is left.
EigenPairs jacobi(Square a) {
  const std::size_t n = a.size();
  Square v(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) v[i][i] = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p][q] == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
        const double c = std::cos(angle), s = std::sin(angle);
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a[k][p], y = a[k][q];
          a[k][p] = c * x - s * y;
          a[k][q] = s * x + c * y;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double x = a[p][k], y = a[q][k];
          a[p][k] = c * x - s * y;
          a[q][k] = s * x + c * y;
          const double vx = v[k][p], vy = v[k][q];
          v[k][p] = c * vx - s * vy;
          v[k][q] = s * vx + c * vy;
        }
      }
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto i, auto j) { return a[i][i] > a[j][j]; });
  EigenPairs out;
  for (const std::size_t column : order) {
    out.values.push_back(a[column][column]);
    std::vector<double> vector(n);
    for (std::size_t row = 0; row < n; ++row) vector[row] = v[row][column];
    const auto largest =
        std::max_element(vector.begin(), vector.end(), [](double x, double y) { return std::abs(x) < std::abs(y); });
    if (*largest < 0) {
      for (double& entry : vector) entry = -entry;
    }
    out.vectors.push_back(vector);
  }
  return out;
}

// Random keys whose spread differs from channel to channel and whose channels hang together.
std::vector<float> random_keys(std::mt19937& random, std::int64_t rows, std::int32_t width) {
  std::normal_distribution<float> normal;
  std::vector<float> keys(static_cast<std::size_t>(rows) * width);
  for (std::int64_t row = 0; row < rows; ++row) {
    float last = 0;
    for (std::int32_t i = 0; i < width; ++i) {
      last = 0.6F * last + normal(random) * (0.2F + static_cast<float>((i * 7) % 11));
      keys[static_cast<std::size_t>(row * width + i)] = last + 1;
    }
  }
  return keys;
}

double at(const IndexBasis& basis, std::int32_t layer, std::int32_t head, std::int32_t row, std::int32_t column) {
  return basis.of(layer)[static_cast<std::size_t>((head * basis.key_dim + row) * basis.rank + column)];
}

void expect_orthonormal(const IndexBasis& basis) {
  for (std::int32_t layer = 0; layer < basis.layers; ++layer) {
    for (std::int32_t head = 0; head < basis.kv_heads; ++head) {
      for (std::int32_t i = 0; i < basis.rank; ++i) {
        for (std::int32_t j = 0; j <= i; ++j) {
          double product = 0;
          for (std::int32_t row = 0; row < basis.key_dim; ++row) {
            product += at(basis, layer, head, row, i) * at(basis, layer, head, row, j);
          }
          EXPECT_NEAR(product, i == j ? 1 : 0, 1e-6) << "columns " << i << " and " << j;
        }
      }
    }
  }
}

TEST(SecondMoment, SumsProductsOfEachHead) {
  SecondMoment moment(2, 2, 2);
  moment.add(1, std::vector<float>{1, 2, 3, 4, /**/ 5, 6, 7, 8});
  const auto first = moment.of(1, 0);
  EXPECT_EQ(first[0], 1 * 1 + 5 * 5);
  EXPECT_EQ(first[2], 2 * 1 + 6 * 5);
  EXPECT_EQ(first[3], 2 * 2 + 6 * 6);
  const auto second = moment.of(1, 1);
  EXPECT_EQ(second[0], 3 * 3 + 7 * 7);
  EXPECT_EQ(second[2], 4 * 3 + 8 * 7);
  EXPECT_EQ(second[3], 4 * 4 + 8 * 8);
  for (const double untouched : moment.of(0, 1)) EXPECT_EQ(untouched, 0);
}

TEST(SecondMoment, TheCutIntoCallsChangesNoBit) {
  std::mt19937 random(3);
  const auto keys = random_keys(random, 100, 3 * 16);
  SecondMoment whole(1, 3, 16);
  whole.add(0, keys);
  for (const std::size_t rows : {1, 7, 64}) {
    SecondMoment pieces(1, 3, 16);
    for (std::size_t first = 0; first < 100; first += rows) {
      pieces.add(0, std::span(keys).subspan(first * 48, std::min<std::size_t>(rows, 100 - first) * 48));
    }
    EXPECT_EQ(make_index_basis(pieces, 8).value().u, make_index_basis(whole, 8).value().u);
  }
}

TEST(IndexBasisOf, KnownMatrices) {
  // Keys along the axes: the basis is the axes, the most used one first.
  SecondMoment axes(1, 1, 4);
  axes.add(0, std::vector<float>{0, 3, 0, 0, /**/ 0, 0, 0, -5, /**/ 1, 0, 0, 0, /**/ 0, 0, 2, 0});
  const auto basis = make_index_basis(axes, 4);
  ASSERT_TRUE(basis.ok());
  const std::vector<float> expected = {0, 0, 0, 1, /**/ 0, 1, 0, 0, /**/ 0, 0, 1, 0, /**/ 1, 0, 0, 0};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(basis.value().u[0][i], expected[i], 1e-7) << i;
  EXPECT_NEAR(captured_share(axes, make_index_basis(axes, 2).value())[0][0], (25.0 + 9) / (25 + 9 + 4 + 1), 1e-12);

  // One direction only, [3, -4] / 5: its largest entry becomes positive; the other column is orthogonal to it.
  SecondMoment line(1, 1, 2);
  line.add(0, std::vector<float>{3, -4, /**/ -6, 8, /**/ 0.3F, -0.4F});
  const auto direction = make_index_basis(line, 2);
  ASSERT_TRUE(direction.ok());
  EXPECT_NEAR(direction.value().u[0][0], -0.6, 1e-6);
  EXPECT_NEAR(direction.value().u[0][2], 0.8, 1e-6);
  expect_orthonormal(direction.value());
}

TEST(IndexBasisOf, EqualsASlowSolver) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  for (const std::int32_t dim : {2, 6, 16, 40}) {
    SecondMoment moment(2, 2, dim);
    for (std::int32_t layer = 0; layer < 2; ++layer) moment.add(layer, random_keys(random, 300, 2 * dim));
    const auto basis = make_index_basis(moment, dim);
    ASSERT_TRUE(basis.ok());
    expect_orthonormal(basis.value());
    const auto half = make_index_basis(moment, std::max(2, dim / 4 * 2));
    ASSERT_TRUE(half.ok());
    const auto shares = captured_share(moment, half.value());
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      for (std::int32_t head = 0; head < 2; ++head) {
        Square full(static_cast<std::size_t>(dim), std::vector<double>(static_cast<std::size_t>(dim)));
        const auto lower = moment.of(layer, head);
        for (std::int32_t i = 0; i < dim; ++i) {
          for (std::int32_t j = 0; j <= i; ++j) full[i][j] = full[j][i] = lower[static_cast<std::size_t>(i * dim + j)];
        }
        const EigenPairs slow = jacobi(full);
        double leading = 0;
        for (std::int32_t column = 0; column < dim; ++column) {
          if (column < half.value().rank) leading += slow.values[column];
          // Directions with nearly equal eigenvalues are free to turn into each other.
          const double above = column > 0 ? slow.values[column - 1] : 1e300;
          const double below = column + 1 < dim ? slow.values[column + 1] : -1e300;
          const double gap = std::min(above - slow.values[column], slow.values[column] - below);
          if (gap < 1e-6 * slow.values[0]) continue;
          // A sign is free where two entries are equally large.
          double product = 0;
          for (std::int32_t row = 0; row < dim; ++row) {
            product += at(basis.value(), layer, head, row, column) * slow.vectors[column][row];
          }
          EXPECT_NEAR(std::abs(product), 1, 1e-6) << "dim " << dim << ", column " << column;
        }
        EXPECT_NEAR(shares[layer][head], leading / std::accumulate(slow.values.begin(), slow.values.end(), 0.0), 1e-6);
      }
    }
  }
}

TEST(IndexBasisOf, LargestEntryOfEachColumnIsPositive) {
  std::mt19937 random(5);
  SecondMoment moment(1, 4, 32);
  moment.add(0, random_keys(random, 500, 4 * 32));
  const auto basis = make_index_basis(moment, 16);
  ASSERT_TRUE(basis.ok());
  for (std::int32_t head = 0; head < 4; ++head) {
    for (std::int32_t column = 0; column < 16; ++column) {
      double largest = 0;
      for (std::int32_t row = 0; row < 32; ++row) {
        const double entry = at(basis.value(), 0, head, row, column);
        if (std::abs(entry) > std::abs(largest)) largest = entry;
      }
      EXPECT_GT(largest, 0) << "head " << head << ", column " << column;
    }
  }
}

TEST(IndexBasisOf, NoKeysAndFewKeys) {
  SecondMoment moment(1, 1, 8);
  auto basis = make_index_basis(moment, 4);
  ASSERT_TRUE(basis.ok());
  expect_orthonormal(basis.value());
  EXPECT_EQ(captured_share(moment, basis.value())[0][0], 1.0);
  moment.add(0, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  basis = make_index_basis(moment, 4);
  ASSERT_TRUE(basis.ok());
  expect_orthonormal(basis.value());
  EXPECT_NEAR(captured_share(moment, basis.value())[0][0], 1.0, 1e-6);
}

TEST(IndexBasisOf, BadInputIsAnError) {
  SecondMoment moment(2, 1, 4);
  moment.add(0, std::vector<float>{1, 2, 3, 4});
  for (const std::int32_t rank : {0, 3, 6}) EXPECT_EQ(make_index_basis(moment, rank).error().param, "--index-rank");
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SecondMoment broken = moment;
    broken.add(1, std::vector<float>{1, bad, 3, 4});
    const auto basis = make_index_basis(broken, 2);
    ASSERT_FALSE(basis.ok());
    EXPECT_EQ(basis.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(basis.error().message.find("layer 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace hotset::sparse
