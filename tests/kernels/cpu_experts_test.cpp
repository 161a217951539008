// Router and experts against slow code in double.
#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route(Backend& backend, RouteParams params, const std::vector<float>& logits, const std::vector<float>& bias) {
  const auto size = static_cast<std::size_t>(params.rows * params.per_token);
  Routed out{std::vector<std::int32_t>(size, -1), std::vector<float>(size, kNan)};
  params.logits = logits.data();
  params.bias = bias.empty() ? nullptr : bias.data();
  params.ids = out.ids.data();
  params.weights = out.weights.data();
  backend.route(params);
  return out;
}

// Numbers of the `count` largest, ties to the lower number; NaN as minus infinity.
std::vector<std::int32_t> best(const std::vector<double>& values, const std::vector<bool>& allowed, int count) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (allowed[i]) order.push_back(static_cast<std::int32_t>(i));
  }
  const auto key = [&](std::int32_t i) {
    const double value = values[static_cast<std::size_t>(i)];
    return std::isnan(value) ? -INFINITY : value;
  };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return key(a) > key(b); });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

std::map<std::int32_t, double> reference_route(const RouteParams& params, std::span<const float> logits,
                                               const std::vector<float>& bias) {
  const auto count = static_cast<std::size_t>(params.experts);
  const auto exponential = [&](std::size_t i) { return std::isnan(logits[i]) ? 0.0 : std::exp(double{logits[i]}); };
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += exponential(i);
  std::vector<double> score(count), choice(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double e = exponential(i);
    score[i] = params.softmax ? (total > 0 ? e / total : 0) : std::isinf(e) ? 1 : e / (1 + e);
    choice[i] = std::isnan(logits[i]) ? -INFINITY : score[i] + (bias.empty() ? 0.0 : double{bias[i]});
  }
  const std::size_t width = count / static_cast<std::size_t>(params.groups);
  std::vector<double> group_score;
  for (std::size_t first = 0; first < count; first += width) {
    std::vector<double> members;
    for (std::size_t i = first; i < first + width; ++i) {
      members.push_back(std::isnan(choice[i]) ? -INFINITY : choice[i]);
    }
    std::ranges::sort(members, std::greater<>());
    group_score.push_back(params.group_by_best ? members[0] : members[0] + members[1]);
  }
  std::vector<bool> allowed(count, false);
  for (const auto group : best(group_score, std::vector<bool>(group_score.size(), true), params.top_groups)) {
    for (std::size_t i = 0; i < width; ++i) allowed[static_cast<std::size_t>(group) * width + i] = true;
  }
  const auto taken = best(choice, allowed, params.per_token);
  double sum = 0;
  for (const auto id : taken) sum += score[static_cast<std::size_t>(id)];
  std::map<std::int32_t, double> out;
  for (const auto id : taken) {
    out[id] =
        score[static_cast<std::size_t>(id)] / (params.normalised ? sum + 1e-20 : 1.0) * double{params.scaling_factor};
  }
  return out;
}

void expect_reference(const RouteParams& params, const Routed& routed, const std::vector<float>& logits,
                      const std::vector<float>& bias) {
  for (std::int64_t row = 0; row < params.rows; ++row) {
    SCOPED_TRACE(::testing::Message() << "row " << row);
    const auto expected = reference_route(
        params, std::span(logits).subspan(static_cast<std::size_t>(row * params.experts), params.experts), bias);
    std::size_t at = static_cast<std::size_t>(row * params.per_token);
    for (const auto& [id, weight] : expected) {  // ascending
      EXPECT_EQ(routed.ids[at], id);
      EXPECT_NEAR(routed.weights[at], weight, 2e-6 * (1 + std::abs(weight)));
      ++at;
    }
  }
}

TEST(Route, AgreesWithTheDefinitionInEveryVariant) {
  Random random;
  const auto all = backends();
  for (int round = 0; round < 200; ++round) {
    RouteParams params;
    params.groups = static_cast<std::int32_t>(random.integer(1, 4));
    const auto width = static_cast<std::int32_t>(random.integer(2, 9));
    params.experts = params.groups * width;
    params.top_groups = static_cast<std::int32_t>(random.integer(1, params.groups));
    params.per_token = static_cast<std::int32_t>(random.integer(1, params.top_groups * width));
    params.rows = random.integer(1, 13);
    params.softmax = random.integer(0, 1) == 1;
    params.group_by_best = random.integer(0, 1) == 1;
    params.normalised = random.integer(0, 1) == 1;
    params.scaling_factor = static_cast<float>(random.uniform(0.5, 3));
    std::vector<float> logits, bias;
    // A coarse grid has many ties, of scores and of sums of two. (A grid around 0, or one of biases, would have sums
    // that are equal in truth only: sigmoid(x) + sigmoid(-x) is 1.)
    const bool ties = random.integer(0, 1) == 1;
    for (std::int64_t i = 0; i < params.rows * params.experts; ++i) {
      logits.push_back(ties ? static_cast<float>(random.integer(0, 3)) : random.normal());
      if (random.integer(0, 19) == 0) logits.back() = kNan;
      if (random.integer(0, 39) == 0) logits.back() = -kInfinity;
    }
    if (random.integer(0, 1) == 1) {
      for (std::int32_t i = 0; i < params.experts; ++i) {
        bias.push_back(ties ? 0.25F : random.normal());
      }
    }
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const Routed first = route(*all.front(), params, logits, bias);
    expect_reference(params, first, logits, bias);
    for (const auto& backend : all) {
      const Routed other = route(*backend, params, logits, bias);
      EXPECT_EQ(first.ids, other.ids);
      EXPECT_TRUE(same_bits(first.weights, other.weights));
    }
    if (HasFailure()) return;
  }
}

TEST(Route, TakesEveryExpertWhenAskedForAll) {
  const auto backend = make_cpu_backend(1);
  const RouteParams params{.rows = 1, .experts = 5, .per_token = 5, .normalised = false};
  const std::vector<float> logits = {0, kNan, 3, -1, kInfinity};
  const Routed routed = route(*backend, params, logits, {});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(routed.weights[1], 0.0F);
  EXPECT_EQ(routed.weights[4], 1.0F);
}

// Equal choices inside a group, among groups, and in a group that does not stay.
TEST(Route, TiesGoToTheLowerNumber) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> logits(12, 0.5F);
  RouteParams params{.rows = 1, .experts = 12, .per_token = 3, .groups = 4, .top_groups = 2};
  EXPECT_EQ(route(*backend, params, logits, {}).ids, (std::vector<std::int32_t>{0, 1, 2}));
  std::vector<float> bias(12, 0.0F);
  bias[4] = bias[10] = 0.25F;  // groups 1 and 3 stay
  EXPECT_EQ(route(*backend, params, logits, bias).ids, (std::vector<std::int32_t>{3, 4, 10}));
}

// The bias decides who is taken, but is no part of the weight.
TEST(Route, BiasCountsForTheChoiceOnly) {
  const auto backend = make_cpu_backend(1);
  const RouteParams params{.rows = 1, .experts = 3, .per_token = 1, .normalised = false, .scaling_factor = 2};
  const Routed routed = route(*backend, params, {0, 1, 2}, {5, 0, 0});
  EXPECT_EQ(routed.ids.front(), 0);
  EXPECT_FLOAT_EQ(routed.weights.front(), 1.0F);  // 2 * sigmoid(0)
}

TEST(Route, AllNanLogitsTakeTheFirstExpertsWithoutWeight) {
  const auto backend = make_cpu_backend(1);
  for (const bool softmax : {false, true}) {
    const RouteParams params{.rows = 1, .experts = 4, .per_token = 2, .groups = 2, .top_groups = 1, .softmax = softmax};
    const Routed routed = route(*backend, params, std::vector<float>(4, kNan), {});
    EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(routed.weights, (std::vector<float>{0, 0}));
  }
}

struct ExpertsCase {
  std::int64_t rows = 0, hidden = 0, width = 0;
  std::int32_t count = 0, per_token = 0;
  std::vector<std::vector<float>> gate, up, down;  // [count]
  std::vector<float> x, weights, out;
  std::vector<std::int32_t> ids;
};

ExpertsCase random_experts(Random& random) {
  ExpertsCase out;
  out.rows = random.integer(1, 40);
  out.hidden = random.integer(1, 70);
  out.width = random.integer(1, 50);
  out.count = static_cast<std::int32_t>(random.integer(1, 9));
  out.per_token = static_cast<std::int32_t>(random.integer(1, out.count));
  for (std::int32_t expert = 0; expert < out.count; ++expert) {
    out.gate.push_back(random.normals(out.width * out.hidden));
    out.up.push_back(random.normals(out.width * out.hidden));
    out.down.push_back(random.normals(out.width * out.hidden));
  }
  out.x = random.normals(out.rows * out.hidden);
  out.out = random.normals(out.rows * out.hidden);
  out.weights = random.normals(out.rows * out.per_token);
  std::vector<std::int32_t> all(static_cast<std::size_t>(out.count));
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t row = 0; row < out.rows; ++row) {
    std::ranges::shuffle(all, random.engine());
    out.ids.insert(out.ids.end(), all.begin(), all.begin() + out.per_token);
  }
  return out;
}

// Rows [first, first + rows).
std::vector<float> run(Backend& backend, const ExpertsCase& one, std::int64_t first, std::int64_t rows) {
  const auto experts = backend.make_experts({.count = one.count, .hidden = one.hidden, .intermediate = one.width});
  using Part = PackedExperts::Part;
  const auto set = [&](std::size_t expert, Part part, const std::vector<float>& values) {
    const std::int64_t rows_of_part = part == Part::kDown ? one.hidden : one.width;
    const std::int64_t cols = part == Part::kDown ? one.width : one.hidden;
    experts->set(static_cast<std::int32_t>(expert), part,
                 {WeightType::kF32, rows_of_part, cols, std::as_bytes(std::span(values))});
  };
  for (std::size_t i = 0; i < one.gate.size(); ++i) {
    set(i, Part::kGate, one.gate[i]);
    set(i, Part::kUp, one.up[i]);
    set(i, Part::kDown, one.down[i]);
  }
  std::vector<float> out = slice(one.out, first * one.hidden, rows * one.hidden);
  backend.experts({.x = one.x.data() + first * one.hidden,
                   .experts = experts.get(),
                   .ids = one.ids.data() + first * one.per_token,
                   .weights = one.weights.data() + first * one.per_token,
                   .per_token = one.per_token,
                   .rows = rows,
                   .out = out.data()});
  return out;
}

std::vector<double> reference_experts(const ExpertsCase& one) {
  std::vector<double> out(one.out.begin(), one.out.end());
  const auto times = [](const std::vector<float>& matrix, const std::vector<double>& x) {
    std::vector<double> y(matrix.size() / x.size());
    for (std::size_t n = 0; n < y.size(); ++n) {
      for (std::size_t k = 0; k < x.size(); ++k) y[n] += double{matrix[n * x.size() + k]} * x[k];
    }
    return y;
  };
  for (std::int64_t use = 0; use < one.rows * one.per_token; ++use) {
    const auto row = use / one.per_token;
    const auto expert = static_cast<std::size_t>(one.ids[static_cast<std::size_t>(use)]);
    const auto from = one.x.begin() + row * one.hidden;
    const std::vector<double> x(from, from + one.hidden);
    std::vector<double> inner = times(one.gate[expert], x);
    const std::vector<double> up = times(one.up[expert], x);
    for (std::size_t i = 0; i < inner.size(); ++i) inner[i] = inner[i] / (1 + std::exp(-inner[i])) * up[i];
    const std::vector<double> y = times(one.down[expert], inner);
    for (std::size_t i = 0; i < y.size(); ++i) {
      out[static_cast<std::size_t>(row * one.hidden) + i] += double{one.weights[static_cast<std::size_t>(use)]} * y[i];
    }
  }
  return out;
}

TEST(Experts, AgreeWithTheDefinitionAndDependOnTheirRowOnly) {
  Random random;
  const auto all = backends();
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const ExpertsCase one = random_experts(random);
    const std::vector<float> whole = run(*all.front(), one, 0, one.rows);
    const std::vector<double> expected = reference_experts(one);
    const double bound = 1e-5 * static_cast<double>(one.hidden * one.width);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(whole[i], expected[i], bound * (1 + std::abs(expected[i])));
    }
    for (const auto& backend : all) EXPECT_TRUE(same_bits(whole, run(*backend, one, 0, one.rows)));
    const std::int64_t row = random.integer(0, one.rows - 1);
    EXPECT_TRUE(same_bits(slice(whole, row * one.hidden, one.hidden), run(*all.back(), one, row, 1)));
    // Another order of the same experts.
    ExpertsCase turned = one;
    for (std::int64_t r = 0; r < one.rows; ++r) {
      const auto first = r * one.per_token;
      std::reverse(turned.ids.begin() + first, turned.ids.begin() + first + one.per_token);
      std::reverse(turned.weights.begin() + first, turned.weights.begin() + first + one.per_token);
    }
    EXPECT_TRUE(same_bits(whole, run(*all.back(), turned, 0, one.rows)));
  }
}

// What NaN does to one row stays in it.
TEST(Experts, NanStaysInItsRow) {
  Random random;
  const auto backend = make_cpu_backend(2);
  ExpertsCase one = random_experts(random);
  const std::vector<float> clean = run(*backend, one, 0, one.rows);
  for (std::int64_t i = 0; i < one.hidden; ++i) one.x[static_cast<std::size_t>(i)] = kNan;
  const std::vector<float> broken = run(*backend, one, 0, one.rows);
  EXPECT_TRUE(std::ranges::all_of(slice(broken, 0, one.hidden), [](float x) { return std::isnan(x); }));
  const std::int64_t rest = (one.rows - 1) * one.hidden;
  EXPECT_TRUE(same_bits(slice(clean, one.hidden, rest), slice(broken, one.hidden, rest)));
}

}  // namespace
}  // namespace hotset::kernels
