#include "kernels/cpu/cpu_selection.h"

#include <functional>

#include "tests/kernels/selection_bed.h"
#include "tests/kernels/selection_reference.h"

namespace hotset::kernels {
namespace {

constexpr std::int64_t kLengths[] = {1, 63, 64, 65, 127, 128, 129, 1000};

// |score - reference| <= tolerance * max(the row's largest score, size), `size` being that of the terms that may
// cancel; canaries outside the expected scores.
void expect_scores(const std::vector<float>& scores, std::int64_t row, std::int64_t stride, std::int64_t first,
                   const std::vector<double>& expected, double tolerance, double size = 0) {
  double most = size;
  for (const double x : expected) most = std::max(most, std::fabs(x));
  const std::int64_t last = first + static_cast<std::int64_t>(expected.size());
  for (std::int64_t i = 0; i < stride; ++i) {
    const float score = scores[static_cast<std::size_t>(row * stride + i)];
    if (i < first || i >= last) {
      ASSERT_EQ(score, RowTable::kCanary) << "position " << i << " was written";
    } else {
      ASSERT_NEAR(score, expected[static_cast<std::size_t>(i - first)], tolerance * most) << "position " << i;
    }
  }
}

// A call's scores have the same bits on every instruction set and thread count.
std::vector<float> same_everywhere(const std::function<std::vector<float>(Backend&)>& call) {
  std::vector<float> first;
  for (const auto& backend : backends()) {
    const std::vector<float> scores = call(*backend);
    if (first.empty()) first = scores;
    EXPECT_TRUE(same_bits(first, scores)) << backend->description();
  }
  return first;
}

// ---- Index keys ----

std::vector<float> index_scores(Backend& backend, const RowTable& table, std::int64_t stride, const float* q,
                                const float* weights, std::int32_t heads, std::int32_t dim) {
  std::vector<float> scores;
  IndexScoresParams params;
  params.rows = table.rows(scores, stride);
  params.q = q;
  params.q_stride = std::int64_t{heads} * dim;
  params.weights = weights;
  params.heads = heads;
  backend.index_scores(params);
  return scores;
}

TEST(IndexScores, AgreeWithTheDefinition) {
  Random random;
  const auto plain = make_cpu_backend(1);
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8})
    for (const auto& [heads, dim] :
         {std::pair{1, 8}, std::pair{4, 32}, std::pair{7, 20}, std::pair{9, 200}, std::pair{32, 128}})
      for (const std::int64_t length : kLengths) {
        SelectionBed bed(index_geometry(dim, dtype));
        bed.append(*plain, random.normals(length * dim));
        // Three queries at different lengths: as a chunk of a prompt.
        const std::vector<float> q = random.normals(3 * heads * dim);
        const std::vector<float> weights = random.normals(3 * heads);
        const std::int64_t lengths[] = {std::max<std::int64_t>(1, length - 2), std::max<std::int64_t>(1, length - 70),
                                        length};
        RowTable table;
        for (std::int64_t row = 0; row < 3; ++row) table.add(bed, row, lengths[row]);
        const std::int64_t stride = length + 5;
        const std::vector<float> scores = same_everywhere([&](Backend& backend) {
          return index_scores(backend, table, stride, q.data(), weights.data(), heads, dim);
        });
        for (std::int64_t row = 0; row < 3; ++row) {
          const std::vector<float> keys = slice(bed.decoded(), 0, lengths[row] * dim);
          const auto expected =
              reference::index_scores(q.data() + row * heads * dim, weights.data() + row * heads, keys, heads, dim);
          ASSERT_NO_FATAL_FAILURE(expect_scores(scores, row, stride, 0, expected, 2e-6, heads * std::sqrt(dim)))
              << "heads " << heads << " dim " << dim << " length " << lengths[row];
        }
      }
}

TEST(IndexScores, StoredKeysKeepTheirBound) {
  Random random;
  const auto backend = make_cpu_backend(2);
  for (const auto& [dtype, bound] :
       {std::pair{KvDType::kF32, 0.0}, std::pair{KvDType::kBF16, 0x1p-8}, std::pair{KvDType::kFp8, 0x1p-4}}) {
    SelectionBed bed(index_geometry(132, dtype));
    bed.append(*backend, random.normals(130 * 132));
    const std::vector<float> decoded = bed.decoded();
    for (std::size_t i = 0; i < decoded.size(); ++i)
      ASSERT_NEAR(decoded[i], bed.keys()[i], bound * std::fabs(bed.keys()[i]) + (bound > 0.01 ? 1e-4 : 0.0));
  }
}

TEST(IndexScores, ANanKeyCostsItsOwnTokenOnly) {
  Random random;
  const auto backend = make_cpu_backend(1);
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    std::vector<float> keys = random.normals(100 * 16);
    const std::vector<float> q = random.normals(2 * 16);
    const std::vector<float> weights = {1.0F, 0.5F};
    const auto scores_of = [&](float value) {
      keys[70 * 16 + 3] = value;
      SelectionBed bed(index_geometry(16, dtype));
      bed.append(*backend, keys);
      RowTable table;
      table.add(bed, 0, 100);
      return index_scores(*backend, table, 100, q.data(), weights.data(), 2, 16);
    };
    std::vector<float> clean = scores_of(1.0F);
    std::vector<float> poisoned = scores_of(kNan);
    EXPECT_TRUE(std::isnan(poisoned[70]));
    clean[70] = poisoned[70] = 0.0F;
    EXPECT_TRUE(same_bits(clean, poisoned));
  }
}

// ---- Low-rank keys ----

std::vector<float> low_rank_scores(Backend& backend, const RowTable& table, std::int64_t stride, const float* q,
                                   const std::vector<float>& basis, const reference::Shape& shape) {
  std::vector<float> scores;
  LowRankScoresParams params;
  params.rows = table.rows(scores, stride);
  params.q = q;
  params.q_stride = std::int64_t{shape.heads} * shape.dim;
  params.basis = basis.data();
  params.heads = shape.heads;
  params.scale = 0.25F;
  backend.low_rank_scores(params);
  return scores;
}

TEST(LowRankScores, AgreeWithTheDefinition) {
  Random random;
  const auto plain = make_cpu_backend(1);
  const reference::Shape shapes[] = {{1, 1, 8}, {3, 1, 16}, {4, 2, 24}, {9, 3, 64}, {6, 6, 20}, {5, 1, 80}};
  const std::int32_t ranks[] = {2, 6, 8, 16, 20, 64};
  for (std::size_t i = 0; i < std::size(shapes); ++i)
    for (const std::int64_t length : kLengths) {
      const reference::Shape& shape = shapes[i];
      const std::int32_t rank = std::min(ranks[i], shape.dim);
      std::vector<float> basis = random.normals(shape.kv_heads * shape.dim * rank);
      for (float& x : basis) x /= std::sqrt(static_cast<float>(shape.dim));
      SelectionBed bed(low_rank_geometry(shape.kv_heads, shape.dim, rank), basis);
      bed.append(*plain, random.normals(length * bed.width()));
      const std::vector<float> q = random.normals(2 * shape.heads * shape.dim);
      const std::int64_t lengths[] = {(length + 1) / 2, length};
      RowTable table;
      for (std::int64_t row = 0; row < 2; ++row) table.add(bed, row, lengths[row]);
      const std::int64_t stride = length + 3;
      const std::vector<float> scores = same_everywhere(
          [&](Backend& backend) { return low_rank_scores(backend, table, stride, q.data(), basis, shape); });
      for (std::int64_t row = 0; row < 2; ++row) {
        const std::vector<float> index_keys = slice(bed.decoded(), 0, lengths[row] * shape.kv_heads * rank);
        const auto expected = reference::low_rank_scores(q.data() + row * shape.heads * shape.dim, index_keys,
                                                         basis.data(), shape, rank, 0.25);
        ASSERT_NO_FATAL_FAILURE(expect_scores(scores, row, stride, 0, expected, 5e-6))
            << "heads " << shape.heads << " rank " << rank << " length " << lengths[row];
      }
    }
}

TEST(LowRankScores, StoredKeysAreTheProjectionIn4Bits) {
  Random random;
  const auto plain = make_cpu_backend(1);
  std::int64_t compared = 0;
  std::int64_t flipped = 0;
  for (const std::int32_t rank : {2, 6, 16, 34}) {
    const std::vector<float> basis = random.normals(2 * 40 * rank);
    SelectionBed bed(low_rank_geometry(2, 40, rank), basis);
    bed.append(*plain, random.normals(150 * bed.width()));
    const std::vector<float> decoded = bed.decoded();
    for (std::int64_t token = 0; token < 150; ++token)
      for (int head = 0; head < 2; ++head) {
        const auto x = reference::project(bed.keys().data() + (token * 2 + head) * 40, basis.data(), head, 40, rank);
        double most = 0;
        for (const double value : x) most = std::max(most, std::fabs(value));
        for (std::int32_t j = 0; j < rank; ++j, ++compared) {
          const double got = decoded[static_cast<std::size_t>((token * 2 + head) * rank + j)];
          // Half a step of the scale, which is rounded to 11 bits.
          ASSERT_LE(std::fabs(got - x[static_cast<std::size_t>(j)]), most / 7 * (0.5 + 0x1p-8));
          flipped += got == 0 && std::fabs(x[static_cast<std::size_t>(j)]) > most / 7 * 0.51;
        }
      }
  }
  EXPECT_GT(compared, 10'000);
  EXPECT_EQ(flipped, 0);
}

TEST(LowRankScores, EqualKeysHaveEqualScoresWhereverTheyAre) {
  Random random;
  const auto backend = make_cpu_backend(3);
  const reference::Shape shape{4, 2, 16};
  const std::vector<float> basis = random.normals(2 * 16 * 8);
  SelectionBed bed(low_rank_geometry(2, 16, 8), basis);
  std::vector<float> keys = random.normals(400 * 32);
  for (const std::int64_t token : {70, 131, 255, 399})
    std::copy_n(keys.begin() + 5 * 32, 32, keys.begin() + token * 32);
  bed.append(*backend, keys);
  RowTable table;
  table.add(bed, 0, 400);
  const std::vector<float> q = random.normals(64);
  const std::vector<float> scores = low_rank_scores(*backend, table, 400, q.data(), basis, shape);
  for (const std::size_t token : {70U, 131U, 255U, 399U}) EXPECT_EQ(scores[token], scores[5]);
}

TEST(LowRankScores, PoisonStaysWithItsTokenAndItsQuery) {
  Random random;
  const auto backend = make_cpu_backend(1);
  const reference::Shape shape{2, 1, 16};
  const std::vector<float> basis = random.normals(16 * 4);
  std::vector<float> keys = random.normals(200 * 16);
  keys[100 * 16 + 2] = kNan;
  keys[150 * 16 + 2] = kInfinity;
  SelectionBed bed(low_rank_geometry(1, 16, 4), basis);
  bed.append(*backend, keys);
  std::vector<float> q = random.normals(3 * 32);
  q[32 + 5] = kNan;
  q[64 + 5] = kInfinity;
  RowTable table;
  for (std::int64_t row = 0; row < 3; ++row) table.add(bed, row, 200);
  const std::vector<float> scores = low_rank_scores(*backend, table, 200, q.data(), basis, shape);
  double sum = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(std::isfinite(scores[i]));
    sum += scores[i];
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
  EXPECT_EQ(scores[100], 0.0F);
  for (std::size_t i = 200; i < 600; ++i) ASSERT_TRUE(std::isfinite(scores[i]));
}

// ---- Block bounds ----

std::vector<float> block_scores(Backend& backend, const RowTable& table, std::int64_t stride, const float* q,
                                const reference::Shape& shape, HeadCombine combine,
                                const std::vector<std::int64_t>& first, const std::vector<std::int64_t>& last) {
  std::vector<float> scores;
  BlockScoresParams params;
  params.rows = table.rows(scores, stride);
  params.q = q;
  params.q_stride = std::int64_t{shape.heads} * shape.dim;
  params.first = first.data();
  params.last = last.data();
  params.heads = shape.heads;
  params.combine = combine;
  params.scale = 0.25F;
  backend.block_scores(params);
  return scores;
}

TEST(BlockScores, AgreeWithTheDefinition) {
  Random random;
  const auto plain = make_cpu_backend(1);
  const reference::Shape shapes[] = {{1, 1, 8}, {9, 3, 64}, {4, 2, 20}};
  for (const reference::Shape& shape : shapes)
    for (const std::int32_t block : {1, 4, 16, 64})
      for (const std::int64_t length : kLengths) {
        SelectionBed bed(bounds_geometry(shape.kv_heads, shape.dim, block, KvDType::kF32));
        bed.append(*plain, random.normals(length * bed.width()));
        const std::vector<float> q = random.normals(2 * shape.heads * shape.dim);
        const std::int64_t blocks = ceil_div(length, block);
        const std::int64_t short_length = (length + 1) / 2;
        const std::vector<std::int64_t> first = {0, std::min<std::int64_t>(1, blocks)};
        const std::vector<std::int64_t> last = {ceil_div(short_length, block), std::max(blocks - 2, first[1])};
        RowTable table;
        table.add(bed, 0, short_length);
        table.add(bed, 1, length);
        const std::int64_t stride = blocks + 3;
        for (const HeadCombine combine : {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax}) {
          const std::vector<float> scores = same_everywhere([&](Backend& backend) {
            return block_scores(backend, table, stride, q.data(), shape, combine, first, last);
          });
          for (std::size_t row = 0; row < 2; ++row) {
            if (first[row] == last[row]) continue;
            // A block's bounds take in all its tokens, the ones behind a shorter row's length too.
            const std::int64_t seen = row == 0 ? std::min(length, last[0] * block) : length;
            const auto heads = reference::quest_scores(q.data() + row * shape.heads * shape.dim,
                                                       slice(bed.keys(), 0, seen * bed.width()), shape, block, 0.25);
            const auto expected =
                reference::combine_heads(heads, first[row], last[row], static_cast<reference::Combine>(combine));
            ASSERT_NO_FATAL_FAILURE(expect_scores(scores, static_cast<std::int64_t>(row), stride, first[row], expected,
                                                  5e-6, std::sqrt(shape.dim)))
                << "heads " << shape.heads << " block " << block << " length " << length;
          }
        }
      }
}

TEST(BlockScores, Bf16BoundsGiveUpperBounds) {
  Random random;
  const auto backend = make_cpu_backend(1);
  const reference::Shape shape{2, 1, 32};
  SelectionBed exact(bounds_geometry(1, 32, 16, KvDType::kF32));
  SelectionBed rounded(bounds_geometry(1, 32, 16, KvDType::kBF16));
  const std::vector<float> keys = random.normals(500 * 32);
  exact.append(*backend, keys);
  rounded.append(*backend, keys);
  const std::vector<float> q = random.normals(64);
  const auto scores_of = [&](const SelectionBed& bed) {
    RowTable table;
    table.add(bed, 0, 500);
    return block_scores(*backend, table, 32, q.data(), shape, HeadCombine::kMax, {0}, {32});
  };
  const std::vector<float> a = scores_of(exact);
  const std::vector<float> b = scores_of(rounded);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_GE(b[i], a[i] - 1e-5F);
    EXPECT_NEAR(b[i], a[i], 0.02F * std::fabs(a[i]) + 0.05F);
  }
}

TEST(BlockScores, EqualBoundsHaveEqualScoresWhereverTheyAre) {
  Random random;
  const auto backend = make_cpu_backend(3);
  const reference::Shape shape{6, 2, 16};
  std::vector<float> keys = random.normals(2000 * 32);
  for (const std::int64_t block : {9, 70, 200})
    std::copy_n(keys.begin() + 3 * 8 * 32, 8 * 32, keys.begin() + block * 8 * 32);
  SelectionBed bed(bounds_geometry(2, 16, 8, KvDType::kBF16));
  bed.append(*backend, keys);
  RowTable table;
  table.add(bed, 0, 2000);
  const std::vector<float> q = random.normals(96);
  for (const HeadCombine combine : {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax}) {
    const std::vector<float> scores = block_scores(*backend, table, 250, q.data(), shape, combine, {1}, {240});
    for (const std::size_t block : {9U, 70U, 200U}) EXPECT_EQ(scores[block], scores[3]);
  }
}

// ---- All kinds ----

struct Kind {
  MetadataGeometry geometry;
  std::function<std::vector<float>(Backend&, const RowTable&, std::int64_t stride,
                                   const std::vector<std::int64_t>& lengths)>
      scores;
};

class EveryKind : public ::testing::Test {
 protected:
  static constexpr int kQueries = 5;
  Random random_;
  reference::Shape shape_{4, 2, 24};
  std::vector<float> basis_ = random_.normals(2 * 24 * 10);
  std::vector<float> q_ = random_.normals(kQueries * 4 * 24);
  std::vector<float> weights_ = random_.normals(kQueries * 4);

  std::vector<Kind> kinds() {
    std::vector<Kind> out;
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8})
      out.push_back({index_geometry(24, dtype), [this](Backend& backend, const RowTable& table, std::int64_t stride,
                                                       const std::vector<std::int64_t>&) {
                       return index_scores(backend, table, stride, q_.data(), weights_.data(), 4, 24);
                     }});
    out.push_back({low_rank_geometry(2, 24, 10), [this](Backend& backend, const RowTable& table, std::int64_t stride,
                                                        const std::vector<std::int64_t>&) {
                     return low_rank_scores(backend, table, stride, q_.data(), basis_, shape_);
                   }});
    for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16})
      for (const HeadCombine combine : {HeadCombine::kMax, HeadCombine::kMean, HeadCombine::kSoftmax})
        out.push_back({bounds_geometry(2, 24, 8, dtype),
                       [this, combine](Backend& backend, const RowTable& table, std::int64_t stride,
                                       const std::vector<std::int64_t>& lengths) {
                         std::vector<std::int64_t> last;
                         for (const std::int64_t length : lengths) last.push_back(ceil_div(length, 8));
                         return block_scores(backend, table, stride, q_.data(), shape_, combine,
                                             std::vector<std::int64_t>(lengths.size(), 0), last);
                       }});
    return out;
  }
};

TEST_F(EveryKind, DirtBehindTheNewestTokenIsNeverSeen) {
  const auto backend = make_cpu_backend(2);
  for (const Kind& kind : kinds())
    for (const std::int64_t length : {1, 63, 64, 65, 129}) {
      std::vector<std::vector<float>> results;
      const std::vector<float> keys = random_.normals(length * kind.geometry.kv_heads * 24);
      for (const int dirt : {0xff, 0x7f, 0x00}) {
        SelectionBed bed(kind.geometry, basis_, static_cast<unsigned char>(dirt));
        bed.append(*backend, keys);
        RowTable table;
        table.add(bed, 0, length);
        results.push_back(kind.scores(*backend, table, length, {length}));
      }
      EXPECT_TRUE(same_bits(results[0], results[1])) << length;
      EXPECT_TRUE(same_bits(results[0], results[2])) << length;
    }
}

TEST_F(EveryKind, TokensAppendedOneByOneEqualOnesAppendedAtOnce) {
  const auto backend = make_cpu_backend(2);
  for (const Kind& kind : kinds()) {
    const std::int64_t width = kind.geometry.kv_heads * 24;
    const std::vector<float> keys = random_.normals(150 * width);
    SelectionBed at_once(kind.geometry, basis_);
    at_once.append(*backend, keys);
    SelectionBed grown(kind.geometry, basis_);
    for (std::int64_t length = 1; length <= 150; ++length) {
      grown.append(*backend, slice(keys, (length - 1) * width, width));
      if (length % 7 != 0 && length != 150) continue;
      // The fresh token is there at once. Blocks of `at_once` hold later tokens too, so only full lengths compare.
      SelectionBed whole(kind.geometry, basis_);
      whole.append(*backend, slice(keys, 0, length * width));
      RowTable a;
      RowTable b;
      a.add(grown, 0, length);
      b.add(whole, 0, length);
      EXPECT_TRUE(same_bits(kind.scores(*backend, a, length, {length}), kind.scores(*backend, b, length, {length})));
    }
  }
}

TEST_F(EveryKind, ARowDoesNotDependOnItsNeighbours) {
  for (const Kind& kind : kinds()) {
    const auto backend = make_cpu_backend(3);
    const std::int64_t width = kind.geometry.kv_heads * 24;
    SelectionBed first(kind.geometry, basis_);
    SelectionBed second(kind.geometry, basis_);
    first.append(*backend, random_.normals(700 * width));
    second.append(*backend, random_.normals(90 * width));
    const std::vector<std::int64_t> lengths = {700, 640, 90, 1, 333};
    const SelectionBed* beds[] = {&first, &first, &second, &second, &first};
    RowTable together;
    for (std::size_t row = 0; row < lengths.size(); ++row)
      together.add(*beds[row], static_cast<std::int64_t>(row), lengths[row]);
    const std::vector<float> all = kind.scores(*backend, together, 700, lengths);
    for (std::size_t row = 0; row < lengths.size(); ++row) {
      RowTable alone;
      alone.add(*beds[row], static_cast<std::int64_t>(row), lengths[row]);
      EXPECT_TRUE(same_bits(kind.scores(*backend, alone, 700, {lengths[row]}),
                            slice(all, static_cast<std::int64_t>(row) * 700, 700)));
    }
  }
}

// More head logits than one batch holds.
TEST(LowRankScores, ManyLongRowsAreDoneInBatches) {
  Random random;
  const auto backend = make_cpu_backend(2);
  const reference::Shape shape{16, 1, 8};
  const std::vector<float> basis = random.normals(8 * 4);
  SelectionBed bed(low_rank_geometry(1, 8, 4), basis);
  bed.append(*backend, random.normals(20'000 * 8));
  const std::int64_t rows = 20;
  const std::vector<float> q = random.normals(rows * 128);
  RowTable together;
  for (std::int64_t row = 0; row < rows; ++row) together.add(bed, row, 20'000 - row);
  const std::vector<float> all = low_rank_scores(*backend, together, 20'000, q.data(), basis, shape);
  for (const std::int64_t row : {0, 12, 13, 19}) {
    RowTable alone;
    alone.add(bed, row, 20'000 - row);
    EXPECT_TRUE(
        same_bits(low_rank_scores(*backend, alone, 20'000, q.data(), basis, shape), slice(all, row * 20'000, 20'000)));
  }
}

}  // namespace
}  // namespace hotset::kernels
