#include "kernels/cpu/top_k.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

constexpr std::int32_t kCanary = -77;

struct Row {
  std::int64_t length;
  std::int64_t first, last;
  std::int32_t k;
};

struct Chosen {
  std::vector<std::int32_t> out, counts;
  std::int64_t stride = 0;
  [[nodiscard]] std::vector<std::int32_t> row(std::size_t index) const {
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>(index) * stride;
    return {begin, begin + counts[index]};
  }
};

Chosen run(Backend& backend, const std::vector<float>& scores, std::int64_t stride, const std::vector<Row>& rows,
           std::int64_t out_stride) {
  Chosen chosen{std::vector<std::int32_t>(rows.size() * static_cast<std::size_t>(out_stride) + 1, kCanary),
                std::vector<std::int32_t>(rows.size() + 1, kCanary), out_stride};
  std::vector<std::int64_t> lengths, first, last;
  std::vector<std::int32_t> k;
  for (const Row& row : rows) {
    lengths.push_back(row.length);
    first.push_back(row.first);
    last.push_back(row.last);
    k.push_back(row.k);
  }
  TopKParams params;
  params.scores = scores.data();
  params.stride = stride;
  params.lengths = lengths.data();
  params.first = first.data();
  params.last = last.data();
  params.rows = static_cast<std::int64_t>(rows.size());
  params.k = k.data();
  params.out = chosen.out.data();
  params.out_stride = out_stride;
  params.counts = chosen.counts.data();
  backend.top_k(params);
  EXPECT_EQ(chosen.out.back(), kCanary);
  EXPECT_EQ(chosen.counts.back(), kCanary);
  return chosen;
}

// One row without forced ends.
std::vector<std::int32_t> run(const std::vector<float>& scores, std::int32_t k) {
  const auto length = static_cast<std::int64_t>(scores.size());
  return run(*make_cpu_backend(1), scores, length, {{length, 0, length, k}}, std::max(k, 1)).row(0);
}

// Sorts the candidates by score (NaN lowest, with minus infinity), then by position.
std::vector<std::int32_t> reference(const float* scores, const Row& row) {
  const auto first = static_cast<std::int32_t>(std::min(row.first, row.length));
  const auto last = static_cast<std::int32_t>(std::clamp<std::int64_t>(row.last, first, row.length));
  std::vector<std::int32_t> order(static_cast<std::size_t>(last - first));
  std::iota(order.begin(), order.end(), first);
  const auto value = [&](std::int32_t i) { return std::isnan(scores[i]) ? -kInfinity : scores[i]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
  std::vector<std::int32_t> out;
  for (std::int32_t i = 0; i < first; ++i) out.push_back(i);
  for (std::int32_t i = last; i < row.length; ++i) out.push_back(i);
  for (const std::int32_t i : order)
    if (static_cast<std::int64_t>(out.size()) < row.k) out.push_back(i);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<float> random_scores(Random& random, std::int64_t count) {
  const std::vector<float> special = {kNan, -kNan, kInfinity, -kInfinity, 0.0F, -0.0F,
                                      1.0F, -1.0F, 1e-45F,    -1e-45F,    3e38F};
  std::vector<float> scores = random.normals(count);
  const std::int64_t kind = random.integer(0, 5);
  for (float& x : scores) {
    if (kind == 1) x = std::round(x);  // ties
    if (kind == 2 || (kind == 3 && random.integer(0, 9) == 0))
      x = special[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(special.size()) - 1))];
    if (kind == 4) x = std::exp(8 * x);            // as probabilities: many octaves
    if (kind == 5) x = 1.0F + std::ldexp(x, -20);  // neighbours: differ in the last digit only
  }
  return scores;
}

TEST(TopK, AgreesWithSorting) {
  Random random;
  for (const auto& backend : backends()) {
    for (int round = 0; round < 150; ++round) {
      const std::int64_t stride = random.integer(0, 9) == 0 ? random.integer(700, 5000) : random.integer(1, 700);
      std::vector<Row> rows(static_cast<std::size_t>(random.integer(1, 6)));
      std::vector<float> scores = random_scores(random, static_cast<std::int64_t>(rows.size()) * stride);
      std::int64_t most = 1;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        Row& row = rows[r];
        row.length = random.integer(0, stride);
        const std::int64_t ks[] = {0, 1, random.integer(0, stride), row.length, stride + 3};
        row.k = static_cast<std::int32_t>(ks[random.integer(0, 4)]);
        row.first = random.integer(0, 1) == 0 ? 0 : random.integer(0, std::min<std::int64_t>(row.length, 5));
        row.last = random.integer(0, 1) == 0 ? row.length + random.integer(0, 1)
                                             : std::max(row.first, row.length - random.integer(0, 70));
        // What is forced, and what lies behind the length, is not read.
        for (std::int64_t i = 0; i < stride; ++i)
          if (i < row.first || i >= row.last || i >= row.length)
            scores[r * static_cast<std::size_t>(stride) + static_cast<std::size_t>(i)] = kInfinity;
        const TopKRow request{nullptr, row.length, row.first, row.last, row.k};
        most = std::max(most, top_k_count(request));
      }
      const Chosen chosen = run(*backend, scores, stride, rows, most);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        ASSERT_EQ(chosen.row(r), reference(scores.data() + r * static_cast<std::size_t>(stride), rows[r]))
            << "length " << rows[r].length << " k " << rows[r].k << " forced to " << rows[r].first << " and from "
            << rows[r].last;
        for (std::int64_t i = chosen.counts[r]; i < most; ++i)
          ASSERT_EQ(chosen.out[r * static_cast<std::size_t>(most) + static_cast<std::size_t>(i)], -1);
      }
    }
  }
}

TEST(TopK, NamedEdges) {
  using Ints = std::vector<std::int32_t>;
  // All equal: the lower positions.
  EXPECT_EQ(run({2, 2, 2, 2}, 2), (Ints{0, 1}));
  // -0 equals +0: position decides.
  EXPECT_EQ(run({-0.0F, 0.0F, -0.0F}, 1), (Ints{0}));
  // NaN ties with minus infinity, below everything else.
  EXPECT_EQ(run({kNan, -kInfinity, -3e38F, kNan}, 2), (Ints{0, 2}));
  // Only NaN: still k positions.
  EXPECT_EQ(run({kNan, kNan, kNan}, 2), (Ints{0, 1}));
  EXPECT_EQ(run({kInfinity, 1, kInfinity, kInfinity}, 2), (Ints{0, 2}));
  EXPECT_EQ(run({1, 2}, 4), (Ints{0, 1}));
  EXPECT_EQ(run({1, 2}, 2), (Ints{0, 1}));
  EXPECT_EQ(run({1, 2}, 0), Ints{});
  EXPECT_EQ(run({-1, -2, -3}, 1), (Ints{0}));
}

TEST(TopK, NoForcedEndsMeansTheWholeRow) {
  const std::vector<float> scores = {3, 1, 2, 5};
  const std::int64_t length = 4;
  const std::int32_t k = 2;
  std::int32_t out[2];
  std::int32_t count = 0;
  TopKParams params;
  params.scores = scores.data();
  params.stride = 4;
  params.lengths = &length;
  params.rows = 1;
  params.k = &k;
  params.out = out;
  params.out_stride = 2;
  params.counts = &count;
  make_cpu_backend(1)->top_k(params);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(out[1], 3);
}

TEST(TopK, ForcedEndsCountAndMayExceedK) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> scores = {kNan, 9, 8, 7, 6, kNan, kNan};
  EXPECT_EQ(run(*backend, scores, 7, {{7, 1, 5, 4}}, 4).row(0), (std::vector<std::int32_t>{0, 1, 5, 6}));
  EXPECT_EQ(run(*backend, scores, 7, {{7, 1, 5, 3}}, 4).row(0), (std::vector<std::int32_t>{0, 5, 6}));
  EXPECT_EQ(run(*backend, scores, 7, {{7, 1, 5, 0}}, 4).row(0), (std::vector<std::int32_t>{0, 5, 6}));
  EXPECT_EQ(run(*backend, scores, 7, {{2, 1, 5, 1}}, 4).row(0), (std::vector<std::int32_t>{0}));
}

}  // namespace
}  // namespace hotset::kernels
