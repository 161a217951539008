#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

struct Chosen {
  std::vector<std::int32_t> out, counts;
};

Chosen run(Backend& backend, const std::vector<float>& scores, std::int64_t stride,
           const std::vector<std::int64_t>& lengths, std::int32_t k) {
  const auto rows = static_cast<std::int64_t>(lengths.size());
  Chosen chosen{std::vector<std::int32_t>(static_cast<std::size_t>(rows * k), -7),
                std::vector<std::int32_t>(lengths.size(), -7)};
  const std::vector<std::int32_t> ks(lengths.size(), k);
  backend.top_k({.scores = scores.data(),
                 .stride = stride,
                 .lengths = lengths.data(),
                 .rows = rows,
                 .k = ks.data(),
                 .out = chosen.out.data(),
                 .out_stride = k,
                 .counts = chosen.counts.data()});
  return chosen;
}

// Sorts by score (NaN lowest, with minus infinity), then by position.
std::vector<std::int32_t> reference(const float* scores, std::int64_t length, std::int32_t k) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](std::int32_t i) { return std::isnan(scores[i]) ? -kInfinity : scores[i]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, length)));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<std::size_t>(k), -1);
  return order;
}

TEST(TopK, AgreesWithSorting) {
  Random random;
  const std::vector<float> special = {kNan, -kNan, kInfinity, -kInfinity, 0.0F, -0.0F,
                                      1.0F, -1.0F, 1e-45F,    -1e-45F,    3e38F};
  for (const auto& backend : backends()) {
    for (int round = 0; round < 60; ++round) {
      const std::int64_t stride = random.integer(1, 700);
      const std::int64_t rows = random.integer(1, 6);
      std::vector<float> scores = random.normals(rows * stride);
      const std::int64_t kind = random.integer(0, 3);
      for (float& x : scores) {
        if (kind == 1) x = std::round(x);  // ties
        if (kind == 2 || (kind == 3 && random.integer(0, 9) == 0)) {
          x = special[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(special.size()) - 1))];
        }
      }
      std::vector<std::int64_t> lengths;
      for (std::int64_t r = 0; r < rows; ++r) lengths.push_back(random.integer(0, stride));
      for (const std::int64_t k :
           {std::int64_t{0}, std::int64_t{1}, random.integer(1, stride), lengths[0], stride + 3}) {
        const Chosen chosen = run(*backend, scores, stride, lengths, static_cast<std::int32_t>(k));
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t length = lengths[static_cast<std::size_t>(r)];
          const auto first = chosen.out.begin() + r * k;
          ASSERT_EQ(std::vector<std::int32_t>(first, first + k),
                    reference(scores.data() + r * stride, length, static_cast<std::int32_t>(k)));
          ASSERT_EQ(chosen.counts[static_cast<std::size_t>(r)], std::min(k, length));
        }
      }
    }
  }
}

TEST(TopK, NamedEdges) {
  const auto backend = make_cpu_backend(1);
  // All equal: the lower positions.
  EXPECT_EQ(run(*backend, {2, 2, 2, 2}, 4, {4}, 2).out, (std::vector<std::int32_t>{0, 1}));
  // -0 equals +0: position decides.
  EXPECT_EQ(run(*backend, {-0.0F, 0.0F, -0.0F}, 3, {3}, 1).out, (std::vector<std::int32_t>{0}));
  // NaN ties with minus infinity, below everything else.
  EXPECT_EQ(run(*backend, {kNan, -kInfinity, -3e38F, kNan}, 4, {4}, 2).out, (std::vector<std::int32_t>{0, 2}));
  // Only NaN: still k positions.
  EXPECT_EQ(run(*backend, {kNan, kNan, kNan}, 3, {3}, 2).out, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(run(*backend, {1, 2}, 2, {2}, 4).out, (std::vector<std::int32_t>{0, 1, -1, -1}));
  EXPECT_EQ(run(*backend, {1, 2}, 2, {0}, 2).out, (std::vector<std::int32_t>{-1, -1}));
}

}  // namespace
}  // namespace hotset::kernels
