// Against the CPU backend's.
#include "kernels/cuda/selection/low_rank_scores.h"

#include "tests/kernels/cuda/selection/score_checks.h"

namespace hotset::kernels::cuda {
namespace {

using SelectionScores = GpuTest;
constexpr float kScale = 0.25F;

struct Shape {
  std::int32_t heads, kv_heads, dim, rank;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.heads << " heads, " << shape.kv_heads << " KV heads, dim " << shape.dim << ", rank "
             << shape.rank;
}

MetadataGeometry geometry_of(const Shape& shape) { return low_rank_geometry(shape.kv_heads, shape.dim, shape.rank); }

std::vector<float> random_basis(const Shape& shape, Random& random) {
  std::vector<float> basis = random.normals(std::int64_t{shape.kv_heads} * shape.dim * shape.rank);
  for (float& x : basis) x /= std::sqrt(static_cast<float>(shape.dim));
  return basis;
}

std::vector<float> device_scores(DeviceRows& rows, const Shape& shape, const DeviceBuffer<float>& q,
                                 const DeviceBuffer<float>& basis, bool plain, int grid) {
  LowRankScoresDeviceParams params;
  params.rows = rows.rows();
  params.q = q.data();
  params.q_stride = std::int64_t{shape.heads} * shape.dim;
  params.basis = basis.data();
  params.heads = shape.heads;
  params.scale = kScale;
  const std::size_t bytes = low_rank_workspace_bytes(params.rows.rows, params.rows.max_length, shape.heads, shape.rank);
  DeviceBuffer<std::byte> workspace(bytes + 256);
  workspace.fill_bytes(0xff);
  params.workspace = workspace.data();
  params.plain = plain;
  params.grid_blocks = grid;
  launch_low_rank_scores(params, nullptr);
  const std::vector<float> scores = rows.scores();
  const std::vector<std::byte> all = to_host(workspace, bytes + 256);
  for (std::size_t i = bytes; i < all.size(); ++i) EXPECT_EQ(all[i], std::byte{0xff}) << "written behind the workspace";
  return scores;
}

// Sequences of these lengths and what the CPU says of them.
struct Scored {
  Shape shape;
  std::vector<float> basis;
  Sequences sequences;
  std::vector<float> q;
  DeviceRows rows;
  std::vector<float> expected;
  std::vector<double> largest;  // of each row
  DeviceBuffer<float> device_q, device_basis;

  Scored(const Shape& of, const std::vector<std::int64_t>& lengths, Random& random)
      : shape(of),
        basis(random_basis(of, random)),
        sequences(make_sequences(geometry_of(of), basis, lengths, random)),
        q(random.normals(static_cast<std::int64_t>(lengths.size()) * of.heads * of.dim)),
        rows(sequences.rows, geometry_of(of), *std::max_element(lengths.begin(), lengths.end()) + 4, random),
        expected(rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
          backend.low_rank_scores({scored, q.data(), std::int64_t{of.heads} * of.dim, basis.data(), of.heads, kScale});
        })),
        largest(rows.list().size()),
        device_q(to_device(q)),
        device_basis(to_device(basis)) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double& of_row = largest[i / static_cast<std::size_t>(rows.stride())];
      of_row = std::max<double>(of_row, expected[i]);
    }
  }

  std::vector<float> scores(bool plain, int grid) {
    return device_scores(rows, shape, device_q, device_basis, plain, grid);
  }
  // Returns the largest error.
  double expect_agrees(const std::vector<float>& got, const char* what) const {
    return expect_close(
        rows, got, expected,
        [&](std::int64_t row, std::int64_t) { return 0x1p-10 * largest[static_cast<std::size_t>(row)]; }, what);
  }
};

void expect_agrees(const Shape& shape, Random& random) {
  SCOPED_TRACE(shape);
  Scored scored(shape, {1, 64, 65, 256, 257, 1024, 1025, 9000}, random);
  for (const bool plain : {false, true}) {
    const std::vector<float> first = scored.scores(plain, 0);
    const double most = scored.expect_agrees(first, plain ? "plain low-rank scores" : "low-rank scores");
    ASSERT_FALSE(::testing::Test::HasFailure());
    std::cout << shape << (plain ? ", plain" : "") << ": largest error " << most << '\n';
    for (const int grid : kGrids) ASSERT_TRUE(same(first, scored.scores(plain, grid))) << "grid " << grid;
    const std::int64_t stride = scored.rows.stride();
    DeviceRows alone({scored.rows.list()[7]}, geometry_of(shape), stride, random);
    const std::vector<float> one = device_scores(alone, shape, scored.device_q, scored.device_basis, plain, 0);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), first.begin() + 7 * stride));
  }
}

TEST_F(SelectionScores, LowRankScoresAgreeWithTheCpu) {
  Random random;
  for (const Shape& shape : {Shape{32, 8, 128, 32}, Shape{8, 2, 64, 16}, Shape{6, 2, 80, 64}, Shape{3, 3, 32, 32},
                             Shape{4, 4, 128, 16}, Shape{9, 1, 48, 6}, Shape{14, 2, 64, 20}, Shape{16, 2, 128, 32},
                             Shape{9, 3, 64, 16}, Shape{18, 6, 64, 32}, Shape{8, 2, 64, 32}, Shape{8, 4, 64, 32}}) {
    ASSERT_NO_FATAL_FAILURE(expect_agrees(shape, random));
  }
}

// Of more query heads than one product takes; the absorbed queries of latent rows; more than tensor cores take at all.
TEST_F(SelectionScores, LowRankScoresOfLargeGroupsAgreeWithTheCpu) {
  Random random;
  for (const Shape& shape :
       {Shape{64, 8, 64, 32}, Shape{28, 4, 64, 32}, Shape{32, 4, 48, 16}, Shape{32, 2, 64, 32}, Shape{10, 2, 32, 16},
        Shape{9, 1, 48, 64}, Shape{80, 5, 32, 32}, Shape{128, 8, 32, 16}, Shape{128, 1, 576, 64}, Shape{132, 1, 32, 32},
        Shape{16, 16, 32, 16}, Shape{36, 4, 32, 32}, Shape{24, 12, 32, 32}}) {
    ASSERT_NO_FATAL_FAILURE(expect_agrees(shape, random));
  }
}

// Groups of more than one slice: keys are read once by one launch (2 and 4 KV heads) or two (8; 4 with groups of 16),
// or, at rank 64, twice. At the edges of pages and units, in grids of more and of fewer blocks than units.
TEST_F(SelectionScores, LowRankGroupsOfSeveralSlices) {
  Random random;
  for (const std::int32_t group : {5, 6, 7, 8, 16})
    for (const std::int32_t kv_heads : {2, 4, 8})
      for (const std::int32_t rank : {16, 32, 64}) {
        const Shape shape{group * kv_heads, kv_heads, 64, rank};
        SCOPED_TRACE(shape);
        Scored scored(shape, {1025, 1, 64, 65, 1024, 2500}, random);
        const std::vector<float> first = scored.scores(false, 0);
        scored.expect_agrees(first, "low-rank scores");
        ASSERT_FALSE(HasFailure());
        for (const int grid : kGrids) ASSERT_TRUE(same(first, scored.scores(false, grid))) << "grid " << grid;
        const std::int64_t stride = scored.rows.stride();
        DeviceRows alone({scored.rows.list()[5]}, geometry_of(shape), stride, random);
        const std::vector<float> one = device_scores(alone, shape, scored.device_q, scored.device_basis, false, 0);
        ASSERT_TRUE(std::equal(one.begin(), one.end(), first.begin() + 5 * stride)) << "alone";
      }
}

// Every size of a group with some numbers of KV heads, at the edges of pages and chunks.
TEST_F(SelectionScores, LowRankGroupsOfAnySize) {
  Random random;
  constexpr std::int32_t kRanks[] = {16, 32, 64};
  for (std::int32_t group = 1; group <= 16; ++group)
    for (const std::int32_t kv_heads : {1 + 5 * group % 8, 1 + (3 * group + 1) % 8}) {
      const Shape shape{group * kv_heads, kv_heads, 32, kRanks[(group + kv_heads) % 3]};
      SCOPED_TRACE(shape);
      Scored scored(shape, {257, 1, 63, 64, 65, 127, 128, 129, 255, 256, 1100, 191}, random);
      const std::vector<float> first = scored.scores(false, 0);
      scored.expect_agrees(first, "low-rank scores");
      ASSERT_FALSE(HasFailure());
      ASSERT_TRUE(same(first, scored.scores(false, 3)));
      ASSERT_NO_FATAL_FAILURE(expect_same_bits_in_other_batches(
          scored.rows.list(), scored.rows.stride(), first, [&](const std::vector<DeviceRows::Row>& list) {
            DeviceRows other(list, geometry_of(shape), scored.rows.stride(), random);
            return device_scores(other, shape, scored.device_q, scored.device_basis, false, 0);
          }));
    }
}

// One form or another, groups in one slice and in several, KV heads in one launch and in two.
constexpr Shape kFew[] = {{8, 2, 64, 32},  {14, 2, 64, 32}, {40, 8, 64, 16},
                          {16, 2, 64, 64}, {9, 1, 64, 16},  {12, 3, 64, 32}};

double sum_of(const std::vector<float>& scores) {
  double sum = 0;
  for (const float score : scores) sum += score;
  return sum;
}

// One head has a query that is not finite: it scores nothing. Logits of another are beyond what float32 tells apart.
TEST_F(SelectionScores, ALowRankQueryThatIsNotFiniteScoresNothing) {
  Random random;
  constexpr std::int64_t kLength = 5000;
  for (const Shape& shape : kFew)
    for (const float value : {kInfinity, kNan}) {
      SCOPED_TRACE(shape);
      const std::vector<float> basis = random.normals(std::int64_t{shape.kv_heads} * shape.dim * shape.rank);
      SelectionBed bed(geometry_of(shape), basis);
      bed.append(*make_cpu_backend(1), random.normals(kLength * bed.width()));
      DeviceRows rows({{&bed, 0, kLength}}, geometry_of(shape), kLength, random);
      std::vector<float> numbers = random.normals(std::int64_t{shape.heads} * shape.dim);
      numbers[static_cast<std::size_t>(5 * shape.dim + 7)] = value;
      for (int c = 0; c < shape.dim; ++c) numbers[static_cast<std::size_t>(6 * shape.dim + c)] *= 1e30F;
      const auto q = to_device(numbers);
      const auto device_basis = to_device(basis);
      for (const bool plain : {false, true}) {
        EXPECT_NEAR(sum_of(device_scores(rows, shape, q, device_basis, plain, 0)), 1.0 - 1.0 / shape.heads, 1e-2)
            << "plain " << plain << ", " << value;
      }
    }
}

// Logits of about 55 and, of one token, 90 (units of log e): the others' scores are about 2^-50 of its, and as exact.
// Every head has the same query, every token a multiple of the same key and a little more.
TEST_F(SelectionScores, LowRankScoresBesideAMuchLargerOneKeepTheirOrder) {
  Random random;
  constexpr std::int64_t kLength = 1500;
  constexpr std::int64_t kLarge = 700;
  std::vector<Shape> shapes = {{32, 8, 128, 32}, {8, 2, 64, 16}};
  for (const std::int32_t group : {5, 6, 7, 8, 16})
    for (const std::int32_t rank : {16, 32, 64}) {
      const std::int32_t kv_heads = group == 16 ? 4 : 8;  // two launches
      shapes.push_back({group * kv_heads, kv_heads, rank == 64 ? 128 : 64, rank});
      shapes.push_back({group * 2, 2, rank == 64 ? 128 : 64, rank});
    }
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape);
    const std::vector<float> basis = random_basis(shape, random);
    const std::vector<float> direction = random.normals(shape.dim);
    std::vector<float> q, keys;
    for (std::int32_t head = 0; head < shape.heads; ++head) q.insert(q.end(), direction.begin(), direction.end());
    std::vector<float> factors;  // of a key of each KV head: its logit, less what 4 bits cost, is 1
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      double size = 0;
      for (std::int32_t r = 0; r < shape.rank; ++r) {
        double projected = 0;
        for (std::int32_t c = 0; c < shape.dim; ++c) {
          projected += double{direction[static_cast<std::size_t>(c)]} *
                       basis[static_cast<std::size_t>((head * shape.dim + c) * shape.rank + r)];
        }
        size += projected * projected;
      }
      factors.push_back(static_cast<float>(1.0 / (kScale * size)));
    }
    for (std::int64_t token = 0; token < kLength; ++token) {
      const float logit = token == kLarge ? 90.0F : 55.0F + static_cast<float>(random.integer(-200, 200)) / 100.0F;
      for (const float factor : factors)
        for (const float x : direction) keys.push_back(logit * factor * x);
    }
    SelectionBed bed(geometry_of(shape), basis);
    bed.append(*make_cpu_backend(1), keys);
    DeviceRows rows({{&bed, 0, kLength}}, geometry_of(shape), kLength, random);
    const std::vector<float> expected = rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
      backend.low_rank_scores(
          {scored, q.data(), std::int64_t{shape.heads} * shape.dim, basis.data(), shape.heads, kScale});
    });
    const auto device_q = to_device(q);
    const auto device_basis = to_device(basis);
    for (const bool plain : {false, true})
      for (const int grid : {0, 1}) {
        const std::vector<float> got = device_scores(rows, shape, device_q, device_basis, plain, grid);
        for (std::int64_t token = 0; token < kLength; ++token) {
          const auto at = static_cast<std::size_t>(token);
          ASSERT_TRUE(token == kLarge || (expected[at] > 0x1p-70F && expected[at] < 0x1p-30F)) << expected[at];
          ASSERT_NEAR(std::log(got[at] / expected[at]), 0.0, 0.1) << "token " << token << ", plain " << plain;
        }
      }
  }
}

TEST_F(SelectionScores, ANanLowRankKeyGetsNothing) {
  Random random;
  constexpr std::int64_t kLength = 300;
  for (const Shape& shape : kFew) {
    SCOPED_TRACE(shape);
    const std::vector<float> basis = random.normals(std::int64_t{shape.kv_heads} * shape.dim * shape.rank);
    SelectionBed bed(geometry_of(shape), basis);
    std::vector<float> keys = random.normals(kLength * bed.width());
    std::fill_n(keys.begin() + 90 * bed.width(), bed.width(), kNan);
    bed.append(*make_cpu_backend(1), keys);
    DeviceRows rows({{&bed, 0, kLength}}, geometry_of(shape), kLength, random);
    const auto q = to_device(random.normals(std::int64_t{shape.heads} * shape.dim));
    const auto device_basis = to_device(basis);
    for (const bool plain : {false, true}) {
      const std::vector<float> got = device_scores(rows, shape, q, device_basis, plain, 0);
      EXPECT_EQ(got[90], 0.0F);
      EXPECT_NEAR(sum_of(got), 1.0, 1e-4) << "plain " << plain;
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
