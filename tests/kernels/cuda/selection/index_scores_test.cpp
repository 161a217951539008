// Index scores against the CPU backend's: the plain form, and those of FP8 and bf16 keys on tensor cores.
#include "kernels/cuda/selection/index_scores.h"

#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/cuda/selection/top_k.h"
#include "tests/kernels/cuda/selection/score_checks.h"

namespace hotset::kernels::cuda {
namespace {

using IndexScores = GpuTest;
constexpr int kDim = 128;                                      // of the forms that use tensor cores
constexpr KvDType kTuned[] = {KvDType::kFp8, KvDType::kBF16};  // their keys
constexpr double kQueryError[] = {0x1p-11, 0x1p-14};           // their stated errors
constexpr const char* kNames[] = {"FP8 index scores", "bf16 index scores"};

std::vector<float> cpu_index_scores(const DeviceRows& rows, const std::vector<float>& q,
                                    const std::vector<float>& weights, std::int32_t heads, std::int32_t dim) {
  return rows.cpu_scores([&](Backend& backend, const ScoredRows& scored) {
    backend.index_scores({scored, q.data(), std::int64_t{heads} * dim, weights.data(), heads});
  });
}

IndexScoresDeviceParams params_of(const ScoredPages& rows, const DeviceBuffer<float>& q,
                                  const DeviceBuffer<float>& weights, std::int32_t heads, std::int32_t dim) {
  IndexScoresDeviceParams params;
  params.rows = rows;
  params.q = q.data();
  params.q_stride = std::int64_t{heads} * dim;
  params.weights = weights.data();
  params.heads = heads;
  return params;
}

std::vector<float> device_index_scores(DeviceRows& rows, const DeviceBuffer<float>& q,
                                       const DeviceBuffer<float>& weights, std::int32_t heads, std::int32_t dim,
                                       bool plain, int grid) {
  IndexScoresDeviceParams params = params_of(rows.rows(), q, weights, heads, dim);
  params.plain = plain;
  params.grid_blocks = grid;
  launch_index_scores(params, nullptr);
  return rows.scores();
}

TEST_F(IndexScores, PlainFormHasTheCpusBits) {
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
        expect_close(rows, got, expected, [](std::int64_t, std::int64_t) { return 0.0; }, "plain index scores");
        if (HasFailure()) FAIL() << "dtype " << static_cast<int>(dtype) << " heads " << heads << " dim " << dim;
      }
    }
}

// Shapes that no other form takes.
TEST_F(IndexScores, OddShapesTakeThePlainForm) {
  Random random;
  for (const KvDType dtype : kTuned)
    for (const auto& [heads, dim] : {std::pair{16, 128}, std::pair{96, 128}, std::pair{64, 64}, std::pair{32, 144}}) {
      const MetadataGeometry geometry = index_geometry(dim, dtype);
      const Sequences sequences = make_sequences(geometry, {}, {65, 300}, random);
      DeviceRows rows(sequences.rows, geometry, 303, random);
      const std::vector<float> q = random.normals(2 * heads * dim);
      const std::vector<float> weights = random.normals(2 * heads);
      const std::vector<float> got = device_index_scores(rows, to_device(q), to_device(weights), heads, dim, false, 0);
      expect_close(
          rows, got, cpu_index_scores(rows, q, weights, heads, dim), [](std::int64_t, std::int64_t) { return 0.0; },
          "index scores of an odd shape");
      if (HasFailure()) FAIL() << "dtype " << static_cast<int>(dtype) << " heads " << heads << " dim " << dim;
    }
}

// sizes[row][channel]: sum over heads of |weight q|.
std::vector<std::vector<double>> query_sizes(const DeviceRows& rows, const std::vector<float>& q,
                                             const std::vector<float>& weights, int heads) {
  std::vector<std::vector<double>> sizes;
  for (const DeviceRows::Row& row : rows.list()) {
    std::vector<double> of_row(kDim);
    for (int h = 0; h < heads; ++h) {
      const auto head = static_cast<std::size_t>(row.query_row * heads + h);
      for (int c = 0; c < kDim; ++c) {
        of_row[static_cast<std::size_t>(c)] +=
            std::fabs(static_cast<double>(weights[head]) * q[head * kDim + static_cast<std::size_t>(c)]);
      }
    }
    sizes.push_back(std::move(of_row));
  }
  return sizes;
}

TEST_F(IndexScores, TensorCoresKeepTheirBound) {
  Random random;
  for (int form = 0; form < 2; ++form)
    for (const int heads : {32, 64}) {
      const MetadataGeometry geometry = index_geometry(kDim, kTuned[form]);
      // On one block, a warpgroup takes more than 32 pages of the longest.
      const Sequences sequences = make_sequences(geometry, {}, {1, 15, 63, 64, 65, 8321, 1023, 128, 129}, random);
      DeviceRows rows(sequences.rows, geometry, 8324, random);
      std::vector<float> q = random.normals(9 * heads * kDim);
      for (int h = 0; h < heads; ++h) {  // heads of very different sizes
        for (int c = 0; c < kDim; ++c)
          q[static_cast<std::size_t>((5 * heads + h) * kDim + c)] *= std::exp2(h % 40 - 20.0F);
      }
      const std::vector<float> weights = random.normals(9 * heads);
      const std::vector<float> expected = cpu_index_scores(rows, q, weights, heads, kDim);
      const std::vector<std::vector<double>> sizes = query_sizes(rows, q, weights, heads);
      std::map<const SelectionBed*, std::vector<float>> keys;
      for (const auto& bed : sequences.beds) keys[bed.get()] = bed->decoded();
      const auto bound = [&](std::int64_t row, std::int64_t token) {
        const std::vector<double>& size = sizes[static_cast<std::size_t>(row)];
        const float* const key = keys[rows.list()[static_cast<std::size_t>(row)].bed].data() + token * kDim;
        double sum = 0;
        for (std::size_t c = 0; c < kDim; ++c) sum += size[c] * std::fabs(key[c]);
        return sum * kQueryError[form];
      };
      const auto device_q = to_device(q);
      const auto device_weights = to_device(weights);
      const std::vector<float> first = device_index_scores(rows, device_q, device_weights, heads, kDim, false, 0);
      const double most = expect_close(rows, first, expected, bound, kNames[form]);
      if (HasFailure()) FAIL() << "heads " << heads;
      std::cout << kNames[form] << ", " << heads << " heads: largest error " << most << "; allowed of row 6, token 0 "
                << bound(6, 0) << '\n';
      for (const int grid : kGrids) {
        ASSERT_TRUE(same(first, device_index_scores(rows, device_q, device_weights, heads, kDim, false, grid)))
            << kNames[form] << ", grid " << grid;
      }
    }
}

// Queries of up to 16 bits are two bf16 numbers exactly, and every sum here is a whole number that float32 holds.
TEST_F(IndexScores, Bf16KeysAndSmallWholeNumbersAreExact) {
  Random random;
  for (const int heads : {32, 64}) {
    const MetadataGeometry geometry = index_geometry(kDim, KvDType::kBF16);
    const auto backend = make_cpu_backend(1);
    std::vector<float> keys(321 * kDim);
    for (float& key : keys) key = static_cast<float>(random.integer(-1, 1));
    SelectionBed bed(geometry);
    bed.append(*backend, keys);
    DeviceRows rows({{&bed, 0, 321}, {&bed, 1, 64}}, geometry, 321, random);
    std::vector<float> q(static_cast<std::size_t>(2 * heads * kDim));
    for (std::size_t i = 0; i < q.size(); ++i) {
      const bool wide = random.integer(0, 7) == 0;
      q[i] = static_cast<float>(wide ? random.integer(-65535, 65535) : random.integer(-255, 255));
    }
    std::vector<float> weights(static_cast<std::size_t>(2 * heads));
    for (float& weight : weights) weight = random.integer(0, 1) == 0 ? 1.0F : -1.0F;
    const std::vector<float> got = device_index_scores(rows, to_device(q), to_device(weights), heads, kDim, false, 0);
    expect_close(
        rows, got, cpu_index_scores(rows, q, weights, heads, kDim), [](std::int64_t, std::int64_t) { return 0.0; },
        "bf16 index scores of whole numbers");
    if (HasFailure()) FAIL() << "heads " << heads;
  }
}

// A few blocks fewer, or one at least.
TEST_F(IndexScores, SparedMultiprocessorsDoNotShow) {
  Random random;
  for (const KvDType dtype : {KvDType::kFp8, KvDType::kBF16, KvDType::kF32}) {
    const MetadataGeometry geometry = index_geometry(kDim, dtype);
    const Sequences sequences = make_sequences(geometry, {}, {1, 700, 9000}, random);
    DeviceRows rows(sequences.rows, geometry, 9000, random);
    const auto q = to_device(random.normals(3 * 64 * kDim));
    const auto weights = to_device(random.normals(3 * 64));
    const std::vector<float> all = device_index_scores(rows, q, weights, 64, kDim, false, 0);
    for (const std::int32_t spared : {16, 1 << 20}) {
      IndexScoresDeviceParams params = params_of(rows.rows(), q, weights, 64, kDim);
      params.spared_multiprocessors = spared;
      launch_index_scores(params, nullptr);
      ASSERT_TRUE(same(all, rows.scores())) << "dtype " << static_cast<int>(dtype) << ", spared " << spared;
    }
  }
}

// Of 32 rows, padded ones among them, in other places of the pool each time.
TEST_F(IndexScores, ARowAloneHasTheBitsThatItHasAmongOthers) {
  Random random;
  constexpr int kRows = 32;
  constexpr std::int64_t kStride = 3000;
  constexpr std::int64_t kLengths[] = {1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 1000, 2500, 3000};
  for (int form = 0; form < 2; ++form)
    for (const int heads : {32, 64}) {
      const MetadataGeometry geometry = index_geometry(kDim, kTuned[form]);
      const Sequences sequences = make_sequences(geometry, {}, {kStride, kStride}, random);
      std::vector<DeviceRows::Row> list;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const SelectionBed* const bed =
            row % 7 == 3 ? nullptr : sequences.beds[static_cast<std::size_t>(row % 2)].get();
        list.push_back({bed, row, bed == nullptr ? 0 : kLengths[static_cast<std::size_t>(row) % std::size(kLengths)]});
      }
      DeviceRows rows(list, geometry, kStride, random);
      const auto q = to_device(random.normals(kRows * heads * kDim));
      const auto weights = to_device(random.normals(kRows * heads));
      const std::vector<float> all = device_index_scores(rows, q, weights, heads, kDim, false, 0);
      for (std::size_t row = 0; row < kRows; ++row) {
        DeviceRows alone({list[row]}, geometry, kStride, random);
        const std::vector<float> one = device_index_scores(alone, q, weights, heads, kDim, false, 0);
        ASSERT_TRUE(std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(row) * kStride))
            << kNames[form] << ", " << heads << " heads, row " << row;
      }
    }
}

// The pool begins where page 1,000,000 would lie: byte offsets beyond 32 bits.
TEST_F(IndexScores, PagesMayLieBeyond4GiB) {
  Random random;
  constexpr std::int32_t kMoved = 1'000'000;
  for (const KvDType dtype : {KvDType::kFp8, KvDType::kBF16, KvDType::kF32}) {
    const MetadataGeometry geometry = index_geometry(kDim, dtype);
    const Sequences sequences = make_sequences(geometry, {}, {500}, random);
    DeviceRows rows(sequences.rows, geometry, 503, random);
    const auto q = to_device(random.normals(2 * 64 * kDim));
    const auto weights = to_device(random.normals(2 * 64));
    const std::vector<float> near = device_index_scores(rows, q, weights, 64, kDim, false, 0);
    ScoredPages far = rows.rows();
    std::vector<std::int32_t> pages(static_cast<std::size_t>(far.rows * far.page_stride));
    HOTSET_CUDA_CHECK(cudaMemcpy(pages.data(), far.pages, 4 * pages.size(), cudaMemcpyDeviceToHost));
    for (std::int32_t& page : pages) page += kMoved;
    const auto moved = to_device(pages);
    far.pages = moved.data();
    far.pool -= kMoved * geometry.page_bytes();
    launch_index_scores(params_of(far, q, weights, 64, kDim), nullptr);
    ASSERT_TRUE(same(near, rows.scores())) << "dtype " << static_cast<int>(dtype);
  }
}

TEST_F(IndexScores, AKeyThatIsNotFiniteCostsItsOwnTokenOnly) {
  Random random;
  const auto backend = make_cpu_backend(1);
  for (int form = 0; form < 2; ++form) {
    const MetadataGeometry geometry = index_geometry(kDim, kTuned[form]);
    const auto q = to_device(random.normals(64 * kDim));
    const auto weights = to_device(random.normals(64));
    std::vector<float> keys = random.normals(200 * kDim);
    const auto scores_of = [&](float value) {
      keys[70 * kDim + 3] = value;
      SelectionBed bed(geometry);
      bed.append(*backend, keys);
      DeviceRows rows({{&bed, 0, 200}}, geometry, 200, random);
      return device_index_scores(rows, q, weights, 64, kDim, false, 0);
    };
    std::vector<float> clean = scores_of(1.0F);
    for (const float value : {kNan, kInfinity, -kInfinity}) {
      if (kTuned[form] == KvDType::kFp8 && !std::isnan(value)) continue;  // e4m3 has no infinity
      std::vector<float> poisoned = scores_of(value);
      EXPECT_FALSE(std::isfinite(poisoned[70])) << kNames[form] << ", key " << value;
      EXPECT_TRUE(!std::isnan(value) || std::isnan(poisoned[70])) << kNames[form];
      clean[70] = poisoned[70] = 0.0F;
      EXPECT_TRUE(same(clean, poisoned)) << kNames[form] << ", key " << value;
    }
  }
}

TEST_F(IndexScores, ANanQueryOrWeightCostsItsOwnRowOnly) {
  Random random;
  for (int form = 0; form < 2; ++form) {
    const MetadataGeometry geometry = index_geometry(kDim, kTuned[form]);
    const Sequences sequences = make_sequences(geometry, {}, {200, 200, 200}, random);
    DeviceRows rows({sequences.rows[0], sequences.rows[1], sequences.rows[2]}, geometry, 200, random);
    const std::vector<float> q = random.normals(3 * 64 * kDim);
    const std::vector<float> weights = random.normals(3 * 64);
    const std::vector<float> clean = device_index_scores(rows, to_device(q), to_device(weights), 64, kDim, false, 0);
    // A NaN whose upper 16 bits are those of an infinity, too.
    for (const float value : {kNan, std::bit_cast<float>(0x7f800001U)}) {
      std::vector<float> bad_q = q;
      std::vector<float> bad_weights = weights;
      bad_q[(1 * 64 + 40) * kDim + 77] = value;
      bad_weights[1 * 64 + 40] = value;
      const std::vector<float> of_q =
          device_index_scores(rows, to_device(bad_q), to_device(weights), 64, kDim, false, 0);
      const std::vector<float> of_weight =
          device_index_scores(rows, to_device(q), to_device(bad_weights), 64, kDim, false, 0);
      for (std::size_t i = 0; i < clean.size(); ++i) {
        const bool bad = i / 200 == 1;
        ASSERT_TRUE(bad ? std::isnan(of_q[i]) : of_q[i] == clean[i]) << kNames[form] << ", query, score " << i;
        ASSERT_TRUE(bad ? std::isnan(of_weight[i]) : of_weight[i] == clean[i]) << kNames[form] << ", weight, " << i;
      }
    }
  }
}

// bf16's largest number is below float32's: what lies between must not become an infinity.
TEST_F(IndexScores, Bf16KeysTakeTheLargestQueries) {
  Random random;
  const MetadataGeometry geometry = index_geometry(kDim, KvDType::kBF16);
  const auto backend = make_cpu_backend(1);
  std::vector<float> keys(70 * kDim, 0.0F);
  for (std::size_t token = 0; token < 70; ++token)
    keys[token * kDim + 5] = std::exp2(-1.0F - static_cast<float>(token));
  SelectionBed bed(geometry);
  bed.append(*backend, keys);
  DeviceRows rows({{&bed, 0, 70}}, geometry, 70, random);
  const std::vector<float> q(32 * kDim, std::numeric_limits<float>::max());
  const std::vector<float> weights(32, 0x1p-10F);
  const std::vector<float> got = device_index_scores(rows, to_device(q), to_device(weights), 32, kDim, false, 0);
  for (std::size_t token = 0; token < 70; ++token) {
    const float expected = std::ldexp(std::numeric_limits<float>::max(), -static_cast<int>(token) - 6);
    ASSERT_NEAR(got[token] / expected, 1.0, 0x1p-14) << "token " << token;
  }
}

TEST_F(IndexScores, RowsThatTakeEverythingAreNotScored) {
  Random random;
  for (const KvDType dtype : kTuned) {
    const MetadataGeometry geometry = index_geometry(kDim, dtype);
    const Sequences sequences = make_sequences(geometry, {}, {100, 300}, random);
    DeviceRows rows(sequences.rows, geometry, 300, random);
    const auto q = to_device(random.normals(2 * 64 * kDim));
    const auto weights = to_device(random.normals(2 * 64));
    const auto k = to_device(std::vector<std::int32_t>{100, 299, 100, 0});
    IndexScoresDeviceParams params = params_of(rows.rows(), q, weights, 64, kDim);
    params.rows.k = k.data();
    launch_index_scores(params, nullptr);
    const std::vector<float> got = rows.scores();
    for (int i = 0; i < 100; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], RowTable::kCanary);
    for (int i = 0; i < 300; ++i) ASSERT_NE(got[static_cast<std::size_t>(300 + i)], RowTable::kCanary);
  }
}

// More rows than one launch takes; without query_rows a row takes the query of its own number.
TEST_F(IndexScores, LargeBatchesAreSplit) {
  Random random;
  constexpr std::int64_t kRows = 1030;
  constexpr int kHeads = 32;
  for (const KvDType dtype : kTuned) {
    const MetadataGeometry geometry = index_geometry(kDim, dtype);
    const Sequences sequences = make_sequences(geometry, {}, {200}, random);
    std::vector<DeviceRows::Row> list;
    for (std::int64_t row = 0; row < kRows; ++row) list.push_back({sequences.beds[0].get(), row, 1 + row % 200});
    DeviceRows rows(list, geometry, 200, random);
    const auto q = to_device(random.normals(kRows * kHeads * kDim));
    const auto weights = to_device(random.normals(kRows * kHeads));
    const std::vector<float> named = device_index_scores(rows, q, weights, kHeads, kDim, false, 0);
    IndexScoresDeviceParams params = params_of(rows.rows(), q, weights, kHeads, kDim);
    params.rows.query_rows = nullptr;
    launch_index_scores(params, nullptr);
    ASSERT_TRUE(same(named, rows.scores()));
    DeviceRows alone({list.back()}, geometry, 200, random);
    const std::vector<float> one = device_index_scores(alone, q, weights, kHeads, kDim, false, 0);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), named.end() - 200));
  }
}

// ---- Scores and top-k together ----

TEST_F(IndexScores, SelectionsDifferAtNearTiesOnly) {
  Random random;
  constexpr int kHeads = 64;
  constexpr std::int64_t kLength = 20'000;
  constexpr std::int32_t kWanted = 2048;
  constexpr std::size_t kMostDifferent[] = {100, 20};
  for (int form = 0; form < 2; ++form) {
    const MetadataGeometry geometry = index_geometry(kDim, kTuned[form]);
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
    std::set_symmetric_difference(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                                  std::back_inserter(different));
    for (const std::int32_t at : different) {
      ASSERT_LE(std::fabs(expected[static_cast<std::size_t>(at)] - least), 2 * most) << "position " << at;
    }
    std::cout << kNames[form] << ": " << different.size() / 2 << " of " << kWanted << " differ; largest score error "
              << most << '\n';
    EXPECT_LT(different.size(), kMostDifferent[form]);
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
