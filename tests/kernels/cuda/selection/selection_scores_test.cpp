// Index, low-rank and block scores against the CPU backend's.
#include <cstring>

#include "kernels/cuda/selection/block_scores.h"
#include "kernels/cuda/selection/index_scores.h"
#include "kernels/cuda/selection/low_rank_scores.h"
#include "kernels/cuda/selection/top_k.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/selection/device_rows.h"

namespace hotset::kernels::cuda {
namespace {

using SelectionScores = GpuTest;
constexpr int kGrids[] = {0, 1, 3, 37, 400};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// |score - expected| <= bound(row) everywhere, NaN where NaN is expected, canaries untouched. Returns the largest
// error.
template <class Bound>
double expect_close(const DeviceRows& rows, const std::vector<float>& got, const std::vector<float>& expected,
                    const Bound& bound, const char* what) {
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / rows.stride();
    const auto at = static_cast<std::int64_t>(i) % rows.stride();
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
    const double allowed = expected[i] == RowTable::kCanary ? 0.0 : bound(row);
    if (!(error <= allowed)) {
      ADD_FAILURE() << what << ": row " << row << ", position " << at << ": " << got[i] << ", the CPU says "
                    << expected[i] << ", allowed " << allowed;
      return error;
    }
    most = std::max(most, error);
  }
  return most;
}

struct Sequences {
  std::vector<std::unique_ptr<SelectionBed>> beds;
  std::vector<DeviceRows::Row> rows;
};

// Four sequences of these lengths; rows at their ends, one shared table, a padded row.
Sequences make_sequences(const MetadataGeometry& geometry, const std::vector<float>& basis,
                         const std::vector<std::int64_t>& lengths, Random& random) {
  Sequences out;
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t length : lengths) {
    out.beds.push_back(std::make_unique<SelectionBed>(geometry, basis));
    out.beds.back()->append(*backend, random.normals(length * out.beds.back()->width()));
    out.rows.push_back({out.beds.back().get(), static_cast<std::int64_t>(out.rows.size()), length});
  }
  out.rows.push_back({nullptr, 0, 0});
  out.rows.push_back({out.beds[0].get(), 1, std::max<std::int64_t>(1, lengths[0] - 3)});
  return out;
}

// ---- Index keys ----

std::vector<float> cpu_index_scores(const DeviceRows& rows, const std::vector<float>& q,
                                    const std::vector<float>& weights, std::int32_t heads, std::int32_t dim) {
  return rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
    backend.index_scores({scored, q.data(), std::int64_t{heads} * dim, weights.data(), heads});
  });
}

std::vector<float> device_index_scores(DeviceRows& rows, const DeviceBuffer<float>& q,
                                       const DeviceBuffer<float>& weights, std::int32_t heads, std::int32_t dim,
                                       bool plain, int grid) {
  IndexScoresDeviceParams params;
  params.rows = rows.rows();
  params.q = q.data();
  params.q_stride = std::int64_t{heads} * dim;
  params.weights = weights.data();
  params.heads = heads;
  params.plain = plain;
  params.grid_blocks = grid;
  launch_index_scores(params, nullptr);
  return rows.scores();
}

TEST_F(SelectionScores, PlainIndexScoresHaveTheCpusBits) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8})
    for (const auto& [heads, dim] : {std::pair{1, 16}, std::pair{7, 48}, std::pair{9, 208}, std::pair{64, 128}}) {
      const MetadataGeometry geometry = index_geometry(dim, dtype);
      const Sequences sequences = make_sequences(geometry, {}, {1, 63, 64, 65, 700}, random);
      DeviceRows rows(sequences.rows, geometry, 705, random);
      const std::vector<float> q = random.normals(5 * heads * dim);
      const std::vector<float> weights = random.normals(5 * heads);
      const std::vector<float> expected = cpu_index_scores(rows, q, weights, heads, dim);
      const auto device_q = to_device(q);
      const auto device_weights = to_device(weights);
      for (const int grid : kGrids) {
        const std::vector<float> got = device_index_scores(rows, device_q, device_weights, heads, dim, true, grid);
        expect_close(rows, got, expected, [](std::int64_t) { return 0.0; }, "plain index scores");
        if (HasFailure()) FAIL() << "dtype " << static_cast<int>(dtype) << " heads " << heads << " dim " << dim;
      }
    }
}

TEST_F(SelectionScores, Fp8IndexScoresKeepTheirBound) {
  Random random;
  constexpr int kDim = 128;
  for (const int heads : {32, 64}) {
    const MetadataGeometry geometry = index_geometry(kDim, KvDType::kFp8);
    const Sequences sequences = make_sequences(geometry, {}, {1, 15, 16, 64, 129, 5000, 1023}, random);
    DeviceRows rows(sequences.rows, geometry, 5003, random);
    std::vector<float> q = random.normals(7 * heads * kDim);
    for (int h = 0; h < heads; ++h) {  // heads of very different sizes
      for (int c = 0; c < kDim; ++c)
        q[static_cast<std::size_t>((5 * heads + h) * kDim + c)] *= std::exp2(h % 40 - 20.0F);
    }
    const std::vector<float> weights = random.normals(7 * heads);
    const std::vector<float> expected = cpu_index_scores(rows, q, weights, heads, kDim);
    // 2^-12 of each product and float32 sums; keys are below 6.
    std::vector<double> bounds;
    for (const DeviceRows::Row& row : rows.list()) {
      double sum = 0;
      for (int h = 0; h < heads; ++h) {
        double size = 0;
        for (int c = 0; c < kDim; ++c) {
          size += 6.0 * std::fabs(q[static_cast<std::size_t>((row.query_row * heads + h) * kDim + c)]);
        }
        sum += size * std::fabs(weights[static_cast<std::size_t>(row.query_row * heads + h)]);
      }
      bounds.push_back(sum * 0x1p-12);
    }
    const auto bound = [&](std::int64_t row) { return bounds[static_cast<std::size_t>(row)]; };
    const auto device_q = to_device(q);
    const auto device_weights = to_device(weights);
    const std::vector<float> first = device_index_scores(rows, device_q, device_weights, heads, kDim, false, 0);
    const double most = expect_close(rows, first, expected, bound, "FP8 index scores");
    if (HasFailure()) FAIL() << "heads " << heads;
    std::cout << heads << " heads: largest error " << most << "; the bound of the first row " << bounds[0] << '\n';
    for (const int grid : kGrids) {
      ASSERT_TRUE(same(first, device_index_scores(rows, device_q, device_weights, heads, kDim, false, grid)))
          << "grid " << grid;
    }
    // A row alone has the bits that it has in the batch.
    DeviceRows alone({rows.list()[5]}, geometry, 5003, random);
    const std::vector<float> one = device_index_scores(alone, device_q, device_weights, heads, kDim, false, 0);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), first.begin() + 5 * 5003));
  }
}

TEST_F(SelectionScores, ANanIndexKeyCostsItsOwnTokenOnly) {
  Random random;
  const MetadataGeometry geometry = index_geometry(128, KvDType::kFp8);
  const auto backend = make_cpu_backend(1);
  const std::vector<float> q = random.normals(64 * 128);
  const std::vector<float> weights = random.normals(64);
  std::vector<float> keys = random.normals(200 * 128);
  const auto device_q = to_device(q);
  const auto device_weights = to_device(weights);
  const auto scores_of = [&](float value) {
    keys[70 * 128 + 3] = value;
    SelectionBed bed(geometry);
    bed.append(*backend, keys);
    DeviceRows rows({{&bed, 0, 200}}, geometry, 200, random);
    return device_index_scores(rows, device_q, device_weights, 64, 128, false, 0);
  };
  std::vector<float> clean = scores_of(1.0F);
  std::vector<float> poisoned = scores_of(kNan);
  EXPECT_TRUE(std::isnan(poisoned[70]));
  clean[70] = poisoned[70] = 0.0F;
  EXPECT_TRUE(same(clean, poisoned));
}

TEST_F(SelectionScores, RowsThatTakeEverythingAreNotScored) {
  Random random;
  const MetadataGeometry geometry = index_geometry(128, KvDType::kFp8);
  const Sequences sequences = make_sequences(geometry, {}, {100, 300}, random);
  DeviceRows rows(sequences.rows, geometry, 300, random);
  const auto q = to_device(random.normals(2 * 64 * 128));
  const auto weights = to_device(random.normals(2 * 64));
  const auto k = to_device(std::vector<std::int32_t>{100, 299, 100, 0});
  IndexScoresDeviceParams params;
  params.rows = rows.rows();
  params.rows.k = k.data();
  params.q = q.data();
  params.q_stride = 64 * 128;
  params.weights = weights.data();
  params.heads = 64;
  launch_index_scores(params, nullptr);
  const std::vector<float> got = rows.scores();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], RowTable::kCanary);
  for (int i = 0; i < 300; ++i) ASSERT_NE(got[static_cast<std::size_t>(300 + i)], RowTable::kCanary);
}

// More rows than one launch takes; without query_rows a row takes the query of its own number.
TEST_F(SelectionScores, LargeBatchesAreSplit) {
  Random random;
  constexpr std::int64_t kRows = 1030;
  constexpr int kHeads = 32;
  const MetadataGeometry geometry = index_geometry(128, KvDType::kFp8);
  const Sequences sequences = make_sequences(geometry, {}, {200}, random);
  std::vector<DeviceRows::Row> list;
  for (std::int64_t row = 0; row < kRows; ++row) list.push_back({sequences.beds[0].get(), row, 1 + row % 200});
  DeviceRows rows(list, geometry, 200, random);
  const auto q = to_device(random.normals(kRows * kHeads * 128));
  const auto weights = to_device(random.normals(kRows * kHeads));
  const std::vector<float> named = device_index_scores(rows, q, weights, kHeads, 128, false, 0);
  IndexScoresDeviceParams params;
  params.rows = rows.rows();
  params.rows.query_rows = nullptr;
  params.q = q.data();
  params.q_stride = kHeads * 128;
  params.weights = weights.data();
  params.heads = kHeads;
  launch_index_scores(params, nullptr);
  ASSERT_TRUE(same(named, rows.scores()));
  DeviceRows alone({list.back()}, geometry, 200, random);
  const std::vector<float> one = device_index_scores(alone, q, weights, kHeads, 128, false, 0);
  ASSERT_TRUE(std::equal(one.begin(), one.end(), named.end() - 200));
}

// ---- Low-rank keys ----

struct LowRankCase {
  std::int32_t heads, kv_heads, dim, rank;
};

std::vector<float> device_low_rank(DeviceRows& rows, const LowRankCase& shape, const DeviceBuffer<float>& q,
                                   const DeviceBuffer<float>& basis, bool plain, int grid) {
  LowRankScoresDeviceParams params;
  params.rows = rows.rows();
  params.q = q.data();
  params.q_stride = std::int64_t{shape.heads} * shape.dim;
  params.basis = basis.data();
  params.heads = shape.heads;
  params.scale = 0.25F;
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

TEST_F(SelectionScores, LowRankScoresAgreeWithTheCpu) {
  Random random;
  constexpr std::int64_t kLongest = 9000;
  for (const LowRankCase& shape :
       {LowRankCase{32, 8, 128, 32}, LowRankCase{8, 2, 64, 16}, LowRankCase{6, 2, 80, 64}, LowRankCase{3, 3, 32, 32},
        LowRankCase{4, 4, 128, 16}, LowRankCase{9, 1, 48, 6}, LowRankCase{14, 2, 64, 20}, LowRankCase{16, 2, 128, 32},
        LowRankCase{9, 3, 64, 16}, LowRankCase{18, 6, 64, 32}, LowRankCase{8, 2, 64, 32}, LowRankCase{8, 4, 64, 32}})
    for (const bool plain : {false, true}) {
      const MetadataGeometry geometry = low_rank_geometry(shape.kv_heads, shape.dim, shape.rank);
      std::vector<float> basis = random.normals(std::int64_t{shape.kv_heads} * shape.dim * shape.rank);
      for (float& x : basis) x /= std::sqrt(static_cast<float>(shape.dim));
      const Sequences sequences = make_sequences(geometry, basis, {1, 64, 65, 256, 257, 1024, 1025, kLongest}, random);
      DeviceRows rows(sequences.rows, geometry, kLongest + 4, random);
      const std::vector<float> q = random.normals(std::int64_t{8} * shape.heads * shape.dim);
      const std::vector<float> expected = rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
        backend.low_rank_scores(
            {scored, q.data(), std::int64_t{shape.heads} * shape.dim, basis.data(), shape.heads, 0.25F});
      });
      const auto device_q = to_device(q);
      const auto device_basis = to_device(basis);
      const std::vector<float> first = device_low_rank(rows, shape, device_q, device_basis, plain, 0);
      std::vector<double> largest(rows.list().size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        double& of_row = largest[i / static_cast<std::size_t>(rows.stride())];
        of_row = std::max<double>(of_row, expected[i]);
      }
      const double most = expect_close(
          rows, first, expected, [&](std::int64_t row) { return 0x1p-10 * largest[static_cast<std::size_t>(row)]; },
          plain ? "plain low-rank scores" : "low-rank scores");
      if (HasFailure()) {
        FAIL() << shape.heads << " heads, " << shape.kv_heads << " KV heads, dim " << shape.dim << ", rank "
               << shape.rank;
      }
      std::cout << "rank " << shape.rank << (plain ? ", plain" : "") << ": largest error " << most << '\n';
      for (const int grid : kGrids) {
        ASSERT_TRUE(same(first, device_low_rank(rows, shape, device_q, device_basis, plain, grid))) << "grid " << grid;
      }
      DeviceRows alone({rows.list()[7]}, geometry, kLongest + 4, random);
      const std::vector<float> one = device_low_rank(alone, shape, device_q, device_basis, plain, 0);
      ASSERT_TRUE(std::equal(one.begin(), one.end(), first.begin() + 7 * (kLongest + 4)));
    }
}

// Of 8 heads one has a query that is not finite: it scores nothing. Logits of another are beyond what float32 tells
// apart.
TEST_F(SelectionScores, ALowRankQueryThatIsNotFiniteScoresNothing) {
  Random random;
  const LowRankCase shape{8, 2, 64, 32};
  const MetadataGeometry geometry = low_rank_geometry(2, 64, 32);
  const std::vector<float> basis = random.normals(2 * 64 * 32);
  const auto backend = make_cpu_backend(1);
  SelectionBed bed(geometry, basis);
  bed.append(*backend, random.normals(5000 * 128));
  DeviceRows rows({{&bed, 0, 5000}}, geometry, 5000, random);
  std::vector<float> numbers = random.normals(8 * 64);
  numbers[3 * 64 + 5] = kInfinity;
  for (int c = 0; c < 64; ++c) numbers[static_cast<std::size_t>(6 * 64 + c)] *= 1e30F;
  const auto q = to_device(numbers);
  const auto device_basis = to_device(basis);
  for (const bool plain : {false, true}) {
    const std::vector<float> got = device_low_rank(rows, shape, q, device_basis, plain, 0);
    double sum = 0;
    for (const float score : got) sum += score;
    EXPECT_NEAR(sum, 7.0 / 8.0, 1e-2) << "plain " << plain;
  }
}

TEST_F(SelectionScores, ANanLowRankKeyGetsNothing) {
  Random random;
  const LowRankCase shape{8, 2, 64, 32};
  const MetadataGeometry geometry = low_rank_geometry(2, 64, 32);
  const std::vector<float> basis = random.normals(2 * 64 * 32);
  const auto backend = make_cpu_backend(1);
  std::vector<float> keys = random.normals(300 * 128);
  for (int c = 0; c < 128; ++c) keys[static_cast<std::size_t>(90 * 128 + c)] = kNan;
  SelectionBed bed(geometry, basis);
  bed.append(*backend, keys);
  DeviceRows rows({{&bed, 0, 300}}, geometry, 300, random);
  const auto q = to_device(random.normals(8 * 64));
  const auto device_basis = to_device(basis);
  for (const bool plain : {false, true}) {
    const std::vector<float> got = device_low_rank(rows, shape, q, device_basis, plain, 0);
    double sum = 0;
    for (const float score : got) sum += score;
    EXPECT_EQ(got[90], 0.0F);
    EXPECT_NEAR(sum, 1.0, 1e-4);
  }
}

// ---- Blocks ----

TEST_F(SelectionScores, BlockScoresAgreeWithTheCpu) {
  Random random;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16})
    for (const HeadCombine combine : {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax})
      for (const int block : {8, 16, 64}) {
        constexpr int kHeads = 6;
        constexpr int kDim = 80;
        const MetadataGeometry geometry = bounds_geometry(2, kDim, block, dtype);
        const Sequences sequences = make_sequences(geometry, {}, {1, 63, 64, 65, 3000}, random);
        const std::int64_t stride = 3000 / block + 3;
        DeviceRows rows(sequences.rows, geometry, stride, random);
        const std::vector<float> q = random.normals(5 * kHeads * kDim);
        std::vector<std::int64_t> first, last;
        for (const DeviceRows::Row& row : rows.list()) {
          const std::int64_t blocks = row.bed == nullptr ? 0 : ceil_div(row.length, block);
          first.push_back(blocks > 4 ? 2 : 0);
          last.push_back(blocks > 4 ? blocks - 1 : blocks);
        }
        std::size_t next = 0;
        while (rows.list()[next].bed == nullptr) ++next;
        const std::vector<float> expected = rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
          BlockScoresParams params{scored, q.data(), kHeads * kDim, &first[next], &last[next], kHeads, combine, 0.1F};
          backend.block_scores(params);
          for (++next; next < rows.list().size() && rows.list()[next].bed == nullptr;) ++next;
        });
        BlockScoresDeviceParams params;
        params.rows = rows.rows();
        const auto device_q = to_device(q);
        const auto device_first = to_device(first);
        const auto device_last = to_device(last);
        DeviceBuffer<std::byte> workspace(
            block_workspace_bytes(params.rows.rows, params.rows.max_length, block, kHeads));
        workspace.fill_bytes(0xff);
        params.q = device_q.data();
        params.q_stride = kHeads * kDim;
        params.first = device_first.data();
        params.last = device_last.data();
        params.heads = kHeads;
        params.combine = combine;
        params.scale = 0.1F;
        params.workspace = workspace.data();
        launch_block_scores(params, nullptr);
        const std::vector<float> got = rows.scores();
        expect_close(
            rows, got, expected, [&](std::int64_t) { return combine == HeadCombine::kSoftmax ? 1e-5 : 1e-4; },
            "block scores");
        if (HasFailure()) FAIL() << "block " << block << " combine " << static_cast<int>(combine);
        launch_block_scores({.rows = rows.rows(),
                             .q = params.q,
                             .q_stride = params.q_stride,
                             .first = params.first,
                             .last = params.last,
                             .heads = kHeads,
                             .combine = combine,
                             .scale = 0.1F,
                             .workspace = params.workspace},
                            nullptr);
        ASSERT_TRUE(same(got, rows.scores()));
      }
}

// ---- Scores and top-k together ----

TEST_F(SelectionScores, SelectionsDifferAtNearTiesOnly) {
  Random random;
  constexpr int kHeads = 64;
  constexpr int kDim = 128;
  constexpr std::int64_t kLength = 20'000;
  constexpr std::int32_t kWanted = 2048;
  const MetadataGeometry geometry = index_geometry(kDim, KvDType::kFp8);
  const Sequences sequences = make_sequences(geometry, {}, {kLength}, random);
  DeviceRows rows({sequences.rows[0]}, geometry, kLength, random);
  const std::vector<float> q = random.normals(kHeads * kDim);
  const std::vector<float> weights = random.normals(kHeads);
  const std::vector<float> expected = cpu_index_scores(rows, q, weights, kHeads, kDim);
  const std::vector<float> got = device_index_scores(rows, to_device(q), to_device(weights), kHeads, kDim, false, 0);
  float most = 0.0F;
  for (std::size_t i = 0; i < got.size(); ++i) most = std::max(most, std::fabs(got[i] - expected[i]));
  const auto select = [&](const std::vector<float>& scores) {
    std::vector<std::int32_t> out(kWanted), counts(1);
    const std::int64_t length = kLength;
    TopKParams params;
    params.scores = scores.data();
    params.stride = kLength;
    params.lengths = &length;
    params.rows = 1;
    params.k = &kWanted;
    params.out = out.data();
    params.out_stride = kWanted;
    params.counts = counts.data();
    make_cpu_backend(1)->top_k(params);
    return out;
  };
  const std::vector<std::int32_t> ours = select(got);
  const std::vector<std::int32_t> theirs = select(expected);
  float least = kInfinity;
  for (const std::int32_t at : theirs) least = std::min(least, expected[static_cast<std::size_t>(at)]);
  std::vector<std::int32_t> different;
  std::set_symmetric_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(different));
  for (const std::int32_t at : different) {
    ASSERT_LE(std::fabs(expected[static_cast<std::size_t>(at)] - least), 2 * most) << "position " << at;
  }
  std::cout << different.size() / 2 << " of " << kWanted << " differ; largest score error " << most << '\n';
  EXPECT_LT(different.size(), 100U);
}

}  // namespace
}  // namespace hotset::kernels::cuda
