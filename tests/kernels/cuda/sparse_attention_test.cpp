#include "kernels/cuda/sparse_attention.h"

#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/sparse_attention_bed.h"

namespace hotset::kernels::cuda {
namespace {

class SparseAttention : public GpuTest {
 protected:
  Random random_;
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(8);

  // Of every (row, head): |out - reference| <= tolerance |reference|.
  void expect_close(const AttentionCase& given, double tolerance, const CallOptions& options = {}) {
    const std::vector<float> reference = run_cpu(*cpu_, given);
    const std::vector<float> out = run_gpu(given, options);
    const std::int64_t dim = given.geometry.value_dim;
    double worst = 0.0;
    for (std::int64_t i = 0; i < given.rows() * given.heads; ++i) {
      double error = 0.0;
      double norm = 0.0;
      std::int64_t first_bad = -1;
      for (std::int64_t c = 0; c < dim; ++c) {
        const double expected = reference[static_cast<std::size_t>(i * dim + c)];
        const double got = out[static_cast<std::size_t>(i * dim + c)];
        error += (got - expected) * (got - expected);
        norm += expected * expected;
        const bool far = !(std::abs(got - expected) <= 0.1 * std::abs(expected) + 0.01);
        if (far && first_bad < 0) first_bad = c;
      }
      const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
      worst = std::max(worst, relative);
      if (relative <= tolerance) continue;
      const std::int64_t row = i / given.heads;
      const std::int64_t shown = std::max<std::int64_t>(first_bad, 0);
      ADD_FAILURE() << given.name() << ": row " << row << " (" << given.lists[static_cast<std::size_t>(row)].size()
                    << " entries), head " << i % given.heads << ": relative error " << relative << " > " << tolerance
                    << "; channel " << shown << " is " << out[static_cast<std::size_t>(i * dim + shown)]
                    << ", expected " << reference[static_cast<std::size_t>(i * dim + shown)];
      return;
    }
    worst_ = std::max(worst_, worst);
  }

  void TearDown() override {
    if (worst_ > 0.0) std::cout << "largest relative error " << worst_ << '\n';
  }

  double worst_ = 0.0;
};

const std::vector<std::int64_t> kEdgeCounts = {0, 1, 15, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 2048};

// What each form promises (kernels/cuda/sparse_attention.h): f32 arithmetic; two bf16 halves of q and weights; bf16.
constexpr double kPlainTolerance = 1e-5;
constexpr double kHalvesTolerance = 1e-4;
constexpr double kBf16Tolerance = 6e-3;  // at most 0.0041 seen
constexpr double kLatentTolerance =
    1.6e-2;  // at most 0.0112 seen: the query and FP8 rows are rounded to bf16 too, and so are scores

double tolerance_of(ActivationType activation) {
  return activation == ActivationType::kF32 ? kHalvesTolerance : kBf16Tolerance;
}

TEST_F(SparseAttention, GroupedWidths) {
  for (const std::int32_t dim : {64, 80, 96, 128}) {
    for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
      for (const ActivationType activation : {ActivationType::kF32, ActivationType::kBF16}) {
        for (const std::int32_t group : {4, 12}) {
          ASSERT_EQ(sparse_attention_form(grouped(dtype, 2, dim, dim), 2 * group, 9), AttentionForm::kGrouped);
          expect_close(random_case(random_, grouped(dtype, 2, dim, dim), 2 * group, activation, kEdgeCounts),
                       tolerance_of(activation));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(SparseAttention, GroupSizes) {
  for (const std::int32_t group : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 32, 72}) {
    for (const ActivationType activation : {ActivationType::kF32, ActivationType::kBF16}) {
      expect_close(random_case(random_, grouped(KvDType::kBF16, 3, 128, 128), 3 * group, activation, {0, 70, 300, 600}),
                   tolerance_of(activation));
      expect_close(random_case(random_, grouped(KvDType::kFp8, 1, 64, 64), group, activation, {1, 70, 300, 600}),
                   tolerance_of(activation));
      if (HasFailure()) return;
    }
  }
}

// Lists of whole sequences beside short ones: neither their neighbours nor the bound of the counts shows in the bits.
TEST_F(SparseAttention, GroupedLongLists) {
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    const AttentionCase given = random_case(random_, grouped(dtype, 4, 64, 64), 8, ActivationType::kF32,
                                            {8191, 8192, 8193, 130, 8300, 0, 20000, 1, 33000});
    expect_close(given, kHalvesTolerance);
    const std::vector<float> whole = run_gpu(given);
    EXPECT_TRUE(same_bits(whole, run_gpu(given, {.slot_type = SlotType::kInt32, .extra_max_count = 100'000})))
        << given.name() << ": another bound of the counts";
    for (const auto& [first, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 2}, {2, 1}, {3, 3}, {6, 1}}) {
      EXPECT_TRUE(same_bits(slice(whole, first * given.out_width(), count * given.out_width()),
                            run_gpu(given.part(first, count))))
          << given.name() << ": rows " << first << " to " << first + count;
    }
  }
}

// Queries in float32, results in bfloat16: those of the float32 call, rounded.
TEST_F(SparseAttention, ResultsOfAnotherType) {
  for (const KvGeometry& geometry : {grouped(KvDType::kBF16, 2, 128, 128), grouped(KvDType::kF32, 2, 48, 32),
                                     latent(KvDType::kBF16, 576, 512), latent(KvDType::kFp8, 576, 512)}) {
    AttentionCase given = random_case(random_, geometry, geometry.kv_heads * 16, ActivationType::kF32, kEdgeCounts);
    std::vector<float> expected = run_gpu(given);
    for (float& x : expected) x = bf16_to_f32(f32_to_bf16(x));
    given.out_type = ActivationType::kBF16;
    const std::vector<float> out = run_gpu(given);
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], expected[i]) << given.name() << ", number " << i << " of all results";
    }
  }
}

TEST_F(SparseAttention, PlainShapes) {
  const std::vector<std::int64_t> counts = {0, 1, 63, 64, 65, 127, 300};
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    for (const KvGeometry& geometry :
         {grouped(dtype, 1, 16, 16), grouped(dtype, 2, 16, 16), grouped(dtype, 3, 48, 32), grouped(dtype, 1, 256, 144),
          latent(dtype, 48, 32), latent(dtype, 304, 272), latent(dtype, 576, 512)}) {
      for (const std::int32_t group : {1, 3, 8}) {
        AttentionCase given = random_case(random_, geometry, geometry.kv_heads * group, ActivationType::kF32, counts);
        expect_close(given, kPlainTolerance, {.plain = true});
        given = random_case(random_, geometry, geometry.kv_heads * group, ActivationType::kBF16, counts);
        expect_close(given, kBf16Tolerance, {.plain = true});
        if (HasFailure()) return;
      }
    }
  }
  for (const std::int32_t dim : {64, 128}) {
    expect_close(random_case(random_, grouped(KvDType::kF32, 2, dim, dim), 8, ActivationType::kF32, kEdgeCounts),
                 kPlainTolerance);
  }
}

TEST_F(SparseAttention, LatentHeads) {
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    for (const std::int32_t heads : {16, 24, 64, 65, 80, 128, 192}) {
      for (const ActivationType activation : {ActivationType::kF32, ActivationType::kBF16}) {
        const bool all = heads == 64;
        expect_close(random_case(random_, latent(dtype, 576, 512), heads, activation,
                                 all ? kEdgeCounts : std::vector<std::int64_t>{0, 1, 64, 130, 600, 1025}),
                     kLatentTolerance);
        if (HasFailure()) return;
      }
    }
  }
}

// The tuned form looks for the largest score among products that are not scaled yet.
TEST_F(SparseAttention, LatentScaleOfAnySign) {
  for (const float scale : {-1.5F / 24.0F, 0.0F, 1e-30F}) {
    AttentionCase given =
        random_case(random_, latent(KvDType::kFp8, 576, 512), 128, ActivationType::kBF16, {0, 1, 70, 600, 1025});
    given.scale = scale;
    expect_close(given, kLatentTolerance);
  }
}

// Lists of two runs: joined by their blocks where there are many lists, afterwards where there are few.
TEST_F(SparseAttention, LatentTotalsOfFewHeads) {
  for (const std::int32_t heads : {16, 65}) {
    const AttentionCase given = random_case(random_, latent(KvDType::kFp8, 576, 512), heads, ActivationType::kBF16,
                                            std::vector<std::int64_t>(100, 600));
    const std::vector<float> whole = run_gpu(given);
    EXPECT_TRUE(same_bits(slice(whole, 7 * given.out_width(), 3 * given.out_width()), run_gpu(given.part(7, 3))))
        << given.name();
  }
}

// Prefill of DSA beyond index_topk: every query of a chunk is a row with the list of its own, ascending and up to its
// own position. Neighbours' lists differ in a few tokens, as selections do.
AttentionCase prefill_case(Random& random, const KvGeometry& geometry, std::int32_t heads, ActivationType activation,
                           std::int64_t first_position, std::int64_t queries, std::int64_t most_selected) {
  const std::int64_t tokens = first_position + queries;
  AttentionCase out = random_case(random, geometry, heads, activation, {tokens - 100});
  out.q = random.normals(queries * heads * geometry.key_dim);
  if (activation == ActivationType::kBF16) {
    for (float& x : out.q) x = bf16_to_f32(f32_to_bf16(x));
  }
  out.lists.clear();
  std::vector<std::int64_t> score = random_list(random, tokens, tokens, false);  // all different
  for (std::int64_t query = 0; query < queries; ++query) {
    for (int i = 0; i < 20; ++i) {
      std::swap(score[static_cast<std::size_t>(random.integer(0, tokens - 1))],
                score[static_cast<std::size_t>(random.integer(0, tokens - 1))]);
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(first_position + query + 1));
    std::iota(list.begin(), list.end(), 0);
    if (static_cast<std::int64_t>(list.size()) > most_selected) {
      std::ranges::nth_element(list, list.begin() + most_selected, std::greater{},
                               [&](std::int64_t token) { return score[static_cast<std::size_t>(token)]; });
      list.resize(static_cast<std::size_t>(most_selected));
      std::ranges::sort(list);
    }
    out.lists.push_back(std::move(list));
  }
  return out;
}

// Lists that reach most_selected within the chunk, and chunks cut elsewhere: same bits.
TEST_F(SparseAttention, PrefillWithAListForEveryQuery) {
  for (const KvDType dtype : {KvDType::kBF16, KvDType::kFp8}) {
    const AttentionCase given =
        prefill_case(random_, latent(dtype, 576, 512), 128, ActivationType::kBF16, 2015, 64, 2048);
    expect_close(given, kLatentTolerance);
    const std::vector<float> whole = run_gpu(given);
    for (const auto& [first, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {31, 9}, {40, 24}, {63, 1}}) {
      EXPECT_TRUE(same_bits(slice(whole, first * given.out_width(), count * given.out_width()),
                            run_gpu(given.part(first, count))))
          << given.name() << ": queries " << first << " to " << first + count;
    }
  }
  expect_close(prefill_case(random_, latent(KvDType::kBF16, 576, 512), 16, ActivationType::kBF16, 0, 256, 128),
               kLatentTolerance);
  for (const KvGeometry& geometry : {latent(KvDType::kF32, 48, 32), latent(KvDType::kF32, 304, 272)}) {
    const AttentionCase given = prefill_case(random_, geometry, 6, ActivationType::kF32, 150, 64, 160);
    expect_close(given, kPlainTolerance);
    EXPECT_TRUE(
        same_bits(slice(run_gpu(given), 20 * given.out_width(), 9 * given.out_width()), run_gpu(given.part(20, 9))))
        << given.name();
  }
}

struct BitsShape {
  KvGeometry geometry;
  std::int32_t heads;
  ActivationType activation;
  bool plain = false;
};
std::vector<BitsShape> bits_shapes() {
  return {{grouped(KvDType::kBF16, 8, 128, 128), 32, ActivationType::kBF16},
          {grouped(KvDType::kFp8, 2, 80, 80), 20, ActivationType::kF32},
          {grouped(KvDType::kBF16, 2, 64, 64), 6, ActivationType::kF32, true},
          {latent(KvDType::kF32, 304, 272), 6, ActivationType::kF32, true},
          {latent(KvDType::kFp8, 576, 512), 128, ActivationType::kBF16},
          {latent(KvDType::kFp8, 576, 512), 24, ActivationType::kF32},
          {latent(KvDType::kBF16, 576, 512), 16, ActivationType::kF32}};
}

TEST_F(SparseAttention, BitsDoNotDependOnTheCall) {
  for (const BitsShape& shape : bits_shapes()) {
    std::vector<std::int64_t> counts;
    for (int i = 0; i < 130; ++i) counts.push_back(i % 17 == 3 ? 1500 + i : random_.integer(0, 700));
    const AttentionCase given = random_case(random_, shape.geometry, shape.heads, shape.activation, counts);
    const std::vector<float> whole = run_gpu(given, {.plain = shape.plain});
    EXPECT_TRUE(same_bits(whole, run_gpu(given, {.plain = shape.plain}))) << given.name() << ": twice";
    EXPECT_TRUE(same_bits(whole, run_gpu(given, {.slot_type = SlotType::kInt32, .plain = shape.plain})))
        << given.name() << ": int32 slots";
    EXPECT_TRUE(same_bits(whole, run_gpu(given, {.extra_max_count = 3000, .plain = shape.plain})))
        << given.name() << ": another bound of the counts";
    EXPECT_TRUE(same_bits(whole, run_gpu(given, {.plain = shape.plain, .pool_shift_rows = 77})))
        << given.name() << ": other slots";
    for (const auto& [first, count] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {3, 1}, {20, 9}, {1, 64}}) {
      EXPECT_TRUE(same_bits(slice(whole, first * given.out_width(), count * given.out_width()),
                            run_gpu(given.part(first, count), {.plain = shape.plain})))
          << given.name() << ": rows " << first << " to " << first + count;
    }
  }
}

// In the plain form, so many lists that a block takes several runs of the longest.
TEST_F(SparseAttention, PlainBlocksOfSeveralRuns) {
  std::vector<std::int64_t> counts;
  for (int i = 0; i < 70; ++i) counts.push_back(i == 41 ? 5000 : random_.integer(0, 70));
  const AttentionCase given = random_case(random_, grouped(KvDType::kF32, 2, 64, 64), 8, ActivationType::kF32, counts);
  expect_close(given, kPlainTolerance);
  EXPECT_TRUE(same_bits(slice(run_gpu(given), 41 * given.out_width(), given.out_width()), run_gpu(given.part(41, 1))));
}

TEST_F(SparseAttention, WholeSequencesByTheirPages) {
  for (const BitsShape& shape : bits_shapes()) {
    if (!shape.plain && shape.geometry.layout == KvGeometry::Layout::kLatent) continue;
    const std::vector<std::int64_t> counts{1, 0, 63, 64, 65, 256, 257, 700, 2113};
    AttentionCase given = random_case(random_, shape.geometry, shape.heads, shape.activation, counts);
    const std::int64_t pages = static_cast<std::int64_t>(given.pool.size()) / given.geometry.row_bytes() / kPageTokens;
    for (std::size_t row = 0; row < counts.size(); ++row) {
      const std::vector<std::int64_t> order = random_list(random_, pages, pages, false);
      given.lists[row].clear();
      for (std::int64_t i = 0; i < counts[row]; ++i) {
        given.lists[row].push_back(order[static_cast<std::size_t>(i / kPageTokens)] * kPageTokens + i % kPageTokens);
      }
    }
    const std::vector<float> lists = run_gpu(given, {.plain = shape.plain});
    EXPECT_TRUE(same_bits(lists, run_gpu(given, {.plain = shape.plain, .whole = true}))) << given.name();
    EXPECT_TRUE(same_bits(lists, run_gpu(given, {.extra_max_count = 900, .plain = shape.plain, .whole = true})))
        << given.name() << ": another bound of the counts";
  }
}

TEST_F(SparseAttention, PoisonStaysWithItsReader) {
  for (const BitsShape& shape : bits_shapes()) {
    AttentionCase given = random_case(random_, shape.geometry, shape.heads, shape.activation, {300, 5, 0, 64, 200});
    const std::vector<float> clean = run_gpu(given, {.plain = shape.plain});
    const std::int64_t slots = static_cast<std::int64_t>(given.pool.size()) / given.geometry.row_bytes();
    std::vector<bool> read(static_cast<std::size_t>(slots));
    for (const auto& list : given.lists) {
      for (const std::int64_t slot : list) {
        if (slot >= 0) read[static_cast<std::size_t>(slot)] = true;
      }
    }
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      if (read[static_cast<std::size_t>(slot)]) continue;
      std::memset(given.pool.data() + slot * given.geometry.row_bytes(), 0xff,
                  static_cast<std::size_t>(given.geometry.row_bytes()));
    }
    EXPECT_TRUE(same_bits(clean, run_gpu(given, {.plain = shape.plain}))) << given.name() << ": dirty unselected rows";

    // A row of its own, with NaN in every channel, for the second query.
    const std::vector<float> bad(
        static_cast<std::size_t>(std::max(given.geometry.key_elements(), given.geometry.value_elements())), kNan);
    given.pool.resize(given.pool.size() + static_cast<std::size_t>(given.geometry.row_bytes()));
    encode_row(given.geometry, bad.data(), bad.data(), given.pool.data() + slots * given.geometry.row_bytes());
    given.lists[1][2] = slots;
    const std::vector<float> poisoned = run_gpu(given, {.plain = shape.plain});
    const std::int64_t width = given.out_width();
    for (std::int64_t row = 0; row < given.rows(); ++row) {
      const std::vector<float> got = slice(poisoned, row * width, width);
      if (row == 1) {
        EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float x) { return std::isnan(x); })) << given.name();
      } else {
        EXPECT_TRUE(same_bits(slice(clean, row * width, width), got)) << given.name() << ": row " << row;
      }
    }
  }
}

TEST_F(SparseAttention, ListsWithoutValidEntriesGiveZeros) {
  for (const BitsShape& shape : bits_shapes()) {
    AttentionCase given = random_case(random_, shape.geometry, shape.heads, shape.activation, {0, 1, 64, 300, 1100});
    for (auto& list : given.lists) std::fill(list.begin(), list.end(), -1);
    const std::vector<float> out = run_gpu(given, {.plain = shape.plain});
    EXPECT_EQ(std::count(out.begin(), out.end(), 0.0F), static_cast<std::ptrdiff_t>(out.size())) << given.name();
  }
}

TEST_F(SparseAttention, SlotsBeyondFourGigabytes) {
  for (const BitsShape& shape : bits_shapes()) {
    const AttentionCase given = random_case(random_, shape.geometry, shape.heads, shape.activation, {200, 64, 600});
    const std::int64_t far = (std::int64_t{9} << 29) / shape.geometry.row_bytes();  // 4.5 GiB
    EXPECT_TRUE(same_bits(run_gpu(given, {.plain = shape.plain}),
                          run_gpu(given, {.plain = shape.plain, .pool_shift_rows = far})))
        << given.name();
  }
}

// Of lists of more than one run, a block of the latent form keeps the totals of 64 heads.
TEST(SparseAttentionWorkspace, HoldsTheTotalsOfLatentBlocks) {
  const KvGeometry geometry = latent(KvDType::kFp8, 576, 512);
  EXPECT_EQ(sparse_attention_workspace_bytes(geometry, 16, 100, 600), 4 * 100 * 64 * 512);
  EXPECT_EQ(sparse_attention_workspace_bytes(geometry, 16, 100, 512), 4 * 100 * 16 * 2 * 516);
  EXPECT_EQ(sparse_attention_workspace_bytes(geometry, 128, 64, 2048), 4 * 64 * 128 * 8 * 516);
  for (std::int32_t heads = 16; heads <= 200; ++heads) {
    EXPECT_GE(sparse_attention_workspace_bytes(geometry, heads, 100, 513), 4 * 100 * round_up(heads, 64) * 512)
        << heads;
  }
}

// What a form needs and no more: runs of 256 or 512 entries, and of the latent form, from 96 lists of 64 heads on,
// totals in place of the runs. Of fewer rows there is always enough.
TEST(SparseAttentionWorkspace, IsThatOfItsForm) {
  const KvGeometry rows = latent(KvDType::kFp8, 576, 512);
  const auto bytes = [&](AttentionForm form, std::int64_t count, std::int64_t entries) {
    return sparse_attention_workspace_bytes(rows, 128, count, entries, form);
  };
  EXPECT_EQ(bytes(AttentionForm::kPlain, 10, 2048), 4 * 10 * 128 * 8 * 516);
  EXPECT_EQ(bytes(AttentionForm::kPlain, 10, 256), 64);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 10, 512), 64);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 10, 2048), 4 * 10 * 128 * 4 * 516);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 47, 131072), std::int64_t{4} * 47 * 128 * 256 * 516);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 48, 131072), std::int64_t{4} * 47 * 128 * 256 * 516);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 256, 131072), std::int64_t{4} * 47 * 128 * 256 * 516);
  EXPECT_EQ(bytes(AttentionForm::kLatent, 256, 1024), std::int64_t{4} * 256 * 128 * 512);
  for (const std::int64_t entries : {1, 256, 257, 512, 513, 2048, 131072}) {
    std::int64_t fewer = 0;
    for (std::int64_t count = 1; count < 300; ++count) {
      const std::int64_t own = bytes(AttentionForm::kLatent, count, entries);
      EXPECT_GE(own, fewer) << count << " rows of " << entries;
      EXPECT_GE(sparse_attention_workspace_bytes(rows, 128, count, entries), own);
      EXPECT_GE(sparse_attention_workspace_bytes(rows, 128, count, entries),
                bytes(AttentionForm::kPlain, count, entries));
      fewer = own;
    }
  }
}

class StoreRows : public GpuTest {
 protected:
  Random random_;
};

// Numbers where rounding and scales have edges.
void plant_edges(Random& random, std::vector<float>& x) {
  const std::vector<float> edges = {0.0F,    -0.0F,     1e-40F,    -3e-39F, 0x1p-100F, 0x1.fp-101F, 1e30F,
                                    -448.0F, 0x1.01p0F, 0x1.03p0F, 3.3e38F, kNan,      kInfinity,   -kInfinity};
  for (int i = 0; i < 24; ++i) {
    x[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(x.size()) - 1))] =
        edges[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(edges.size()) - 1))];
  }
  const auto zeros = static_cast<std::ptrdiff_t>(std::min<std::size_t>(x.size(), 300));
  std::fill(x.end() - zeros, x.end(), 0.0F);
}

TEST_F(StoreRows, BytesOfTheFormat) {
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    for (const KvGeometry& geometry :
         {grouped(dtype, 8, 128, 128), grouped(dtype, 3, 80, 80), grouped(dtype, 1, 16, 48),
          grouped(dtype, 2, 272, 144), latent(dtype, 576, 512), latent(dtype, 48, 32), latent(dtype, 464, 272)}) {
      for (const ActivationType activation : {ActivationType::kF32, ActivationType::kBF16}) {
        constexpr std::int64_t kRows = 37;
        const std::int64_t key_width = geometry.key_elements();
        const std::int64_t value_width = geometry.value_elements();
        std::vector<float> k = random_.normals(kRows * key_width);
        std::vector<float> v = random_.normals(kRows * value_width);
        plant_edges(random_, k);
        plant_edges(random_, v);
        if (activation == ActivationType::kBF16) {
          for (float& x : k) x = bf16_to_f32(f32_to_bf16(x));
          for (float& x : v) x = bf16_to_f32(f32_to_bf16(x));
        }
        const std::int64_t bytes = geometry.row_bytes();
        std::vector<std::byte> expected(static_cast<std::size_t>(2 * kRows * bytes), std::byte{0xcd});
        std::vector<std::int64_t> slots;
        DeviceBuffer<std::byte> pool(expected.size());
        std::vector<std::byte*> addresses;
        for (std::int64_t row = 0; row < kRows; ++row) {
          slots.push_back(row % 5 == 2 ? -1 : 2 * row + row % 2);
          addresses.push_back(slots.back() < 0 ? nullptr : pool.data() + slots.back() * bytes);
          if (slots.back() < 0) continue;
          encode_row(geometry, k.data() + row * key_width, v.data() + row * value_width,
                     expected.data() + slots.back() * bytes);
        }
        const auto device_k = to_device(activation_bytes(k, kRows, key_width, key_width + 3, activation));
        const auto device_v = to_device(activation_bytes(v, kRows, value_width, value_width + 1, activation));
        const auto device_slots = to_device(slots);
        const auto device_addresses = to_device(addresses);
        for (const bool by_slot : {true, false}) {
          pool.fill_bytes(0xcd);
          const OwnedStream stream;
          HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
          launch_store_rows({.geometry = geometry,
                             .activation = activation,
                             .k = device_k.data(),
                             .k_stride = key_width + 3,
                             .v = device_v.data(),
                             .v_stride = value_width + 1,
                             .pool = by_slot ? pool.data() : nullptr,
                             .slots = by_slot ? device_slots.data() : nullptr,
                             .rows_out = by_slot ? nullptr : device_addresses.data(),
                             .rows = kRows},
                            stream.get());
          stream.synchronize();
          std::vector<std::byte> got(expected.size());
          pool.download(got.data(), got.size());
          const auto different = std::mismatch(expected.begin(), expected.end(), got.begin());
          const auto at = different.first - expected.begin();
          ASSERT_TRUE(different.first == expected.end())
              << "type " << static_cast<int>(dtype) << ", widths " << geometry.key_dim << "/" << geometry.value_dim
              << ", KV heads " << geometry.kv_heads << ": slot " << at / bytes << ", byte " << at % bytes << " of "
              << bytes << " is " << static_cast<int>(*different.second) << ", expected "
              << static_cast<int>(*different.first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
