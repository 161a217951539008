#include <algorithm>

#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/reference_blocks.h"

namespace hotset::kernels {
namespace {

struct Product {
  std::int64_t m = 0;
  const float* bias = nullptr;
  bool accumulate = false;
};

std::vector<float> run(Backend& backend, const PackedMatrix& weight, const std::vector<float>& x,
                       const Product& product, std::vector<float> y = {}) {
  if (y.empty()) y.assign(static_cast<std::size_t>(product.m * weight.rows()), kNan);
  MatmulParams params;
  params.x = x.data();
  params.weight = &weight;
  params.bias = product.bias;
  params.y = y.data();
  params.m = product.m;
  params.accumulate = product.accumulate;
  backend.matmul(params);
  return y;
}

// What rounding may cost, per output: activations to 16 bits in groups (quantised weights only), then float32 sums.
double bound(const TestMatrix& matrix, const double* w, const float* x) {
  const bool quantised = block_format(matrix.type).elements > 1;
  const std::int64_t group = !quantised ? 1 : matrix.type == WeightType::kQ6_K ? 16 : 32;
  double out = 0;
  double terms = 0;
  for (std::int64_t g = 0; g < matrix.cols; g += group) {
    double largest = 0;
    double weights = 0;
    for (std::int64_t k = g; k < g + group; ++k) {
      largest = std::max(largest, std::fabs(static_cast<double>(x[k])));
      weights += std::fabs(w[k]);
      terms += std::fabs(w[k] * x[k]);
    }
    if (quantised) out += largest / 65278 * weights * 1.01;
    // Offsets cancel against codes: their parts of the sum may be larger than the sum.
    if (quantised) terms += 64 * largest * weights / static_cast<double>(group);
  }
  return out + terms * static_cast<double>(matrix.cols / group + 4) * 0x1p-24 + 1e-30;
}

class MatmulTest : public ::testing::TestWithParam<WeightType> {
 protected:
  Random random_;
  std::vector<std::int64_t> widths() const {
    return block_format(GetParam()).elements == 256 ? std::vector<std::int64_t>{256, 768}
                                                    : std::vector<std::int64_t>{32, 96, 576};
  }
};

TEST_P(MatmulTest, AgreesWithFloat64) {
  const auto backend = make_cpu_backend(2);
  for (const std::int64_t cols : widths()) {
    for (const std::int64_t rows : {1, 15, 16, 17, 50}) {
      const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
      const std::vector<double> w = reference_values(matrix);
      const auto packed = backend->pack(matrix.view());
      EXPECT_EQ(packed->rows(), rows);
      EXPECT_EQ(packed->cols(), cols);
      EXPECT_GT(packed->bytes(), 0);
      for (const std::int64_t m : {1, 2, 3, 7, 8, 33}) {
        const std::vector<float> x = random_.normals(m * cols);
        const std::vector<float> y = run(*backend, *packed, x, {m});
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t n = 0; n < rows; ++n) {
            double expected = 0;
            for (std::int64_t k = 0; k < cols; ++k) {
              expected += w[static_cast<std::size_t>(n * cols + k)] * x[static_cast<std::size_t>(r * cols + k)];
            }
            ASSERT_NEAR(y[static_cast<std::size_t>(r * rows + n)], expected,
                        bound(matrix, w.data() + n * cols, x.data() + r * cols))
                << name_of(GetParam()) << " K " << cols << " N " << rows << " M " << m << " at " << r << ", " << n;
          }
        }
      }
    }
  }
}

TEST_P(MatmulTest, SameBitsOnEveryInstructionSetThreadCountAndBatch) {
  const std::int64_t cols = widths().back();
  const std::int64_t rows = 83;
  const std::int64_t m = 150;  // more than one row task
  const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
  const std::vector<float> x = random_.normals(m * cols);
  std::vector<float> expected;
  for (const auto& backend : backends()) {
    const auto packed = backend->pack(matrix.view());
    const std::vector<float> y = run(*backend, *packed, x, {m});
    if (expected.empty()) expected = y;
    ASSERT_TRUE(same_bits(y, expected)) << backend->description() << ' ' << name_of(GetParam());
    // A row alone, and rows at other places of other batches.
    for (const std::int64_t count : {1, 2, 3, 5, 9, 16, 31}) {
      const std::int64_t first = random_.integer(0, m - count);
      const std::vector<float> part = run(*backend, *packed, slice(x, first * cols, count * cols), {count});
      ASSERT_TRUE(same_bits(part, slice(expected, first * rows, count * rows))) << backend->description();
    }
  }
}

TEST_P(MatmulTest, NonFiniteActivationsStayInTheirRow) {
  const std::int64_t cols = widths().front();
  const std::int64_t rows = 20;
  const std::int64_t m = 6;
  const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
  std::vector<float> x = random_.normals(m * cols);
  for (const auto& backend : backends()) {
    const auto packed = backend->pack(matrix.view());
    const std::vector<float> clean = run(*backend, *packed, x, {m});
    std::vector<float> dirty = x;
    dirty[static_cast<std::size_t>(1 * cols + 3)] = kNan;
    dirty[static_cast<std::size_t>(4 * cols + cols - 1)] = kInfinity;
    const std::vector<float> y = run(*backend, *packed, dirty, {m});
    for (std::int64_t r = 0; r < m; ++r) {
      const std::vector<float> row = slice(y, r * rows, rows);
      if (r == 1 || r == 4) {
        for (const float value : row) EXPECT_FALSE(std::isfinite(value)) << backend->description();
      } else {
        EXPECT_TRUE(same_bits(row, slice(clean, r * rows, rows))) << backend->description();
      }
    }
  }
}

TEST_P(MatmulTest, BiasAccumulateAndStride) {
  const std::int64_t cols = widths().front();
  const std::int64_t rows = 19;
  const std::int64_t m = 5;
  const std::int64_t stride = 23;
  const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
  const std::vector<float> x = random_.normals(m * cols);
  const std::vector<float> bias = random_.normals(rows);
  const std::vector<float> old = random_.normals(m * stride);
  for (const auto& backend : backends()) {
    const auto packed = backend->pack(matrix.view());
    const std::vector<float> plain = run(*backend, *packed, x, {m});
    std::vector<float> y = old;
    MatmulParams params{x.data(), 0, packed.get(), bias.data(), y.data(), stride, m, true};
    backend->matmul(params);
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t n = 0; n < stride; ++n) {
        const auto at = static_cast<std::size_t>(r * stride + n);
        const float expected =
            n >= rows ? old[at]
                      : plain[static_cast<std::size_t>(r * rows + n)] + bias[static_cast<std::size_t>(n)] + old[at];
        ASSERT_EQ(y[at], expected);
      }
    }
  }
}

// What lies between the rows of x is never read.
TEST_P(MatmulTest, RowsOfXMayLieApart) {
  const std::int64_t cols = widths().back();
  const std::int64_t rows = 35;
  const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
  for (const std::int64_t m : {1, 2, 9, 33}) {
    const std::int64_t stride = cols + 13;
    const std::vector<float> x = random_.normals(m * cols);
    std::vector<float> apart(static_cast<std::size_t>(m * stride), kNan);
    for (std::int64_t r = 0; r < m; ++r) std::copy_n(x.data() + r * cols, cols, apart.data() + r * stride);
    for (const auto& backend : backends()) {
      const auto packed = backend->pack(matrix.view());
      std::vector<float> y(static_cast<std::size_t>(m * rows), kNan);
      MatmulParams params;
      params.x = apart.data();
      params.x_stride = stride;
      params.weight = packed.get();
      params.y = y.data();
      params.m = m;
      backend->matmul(params);
      ASSERT_TRUE(same_bits(y, run(*backend, *packed, x, {m}))) << backend->description();
    }
  }
}

TEST_P(MatmulTest, EmbedReadsRowsExactly) {
  const std::int64_t cols = widths().back();
  const std::int64_t rows = 37;
  const TestMatrix matrix = random_matrix(random_, GetParam(), rows, cols);
  const std::vector<double> w = reference_values(matrix);
  const std::vector<std::int32_t> tokens = {0, 36, 16, 15, 17, 36, 1};
  for (const auto& backend : backends()) {
    const auto packed = backend->pack(matrix.view());
    std::vector<float> out(tokens.size() * static_cast<std::size_t>(cols), kNan);
    EmbedParams params{packed.get(), tokens.data(), static_cast<std::int64_t>(tokens.size()), out.data()};
    backend->embed(params);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::int64_t k = 0; k < cols; ++k) {
        // One rounding of the exact value.
        ASSERT_EQ(out[t * static_cast<std::size_t>(cols) + static_cast<std::size_t>(k)],
                  static_cast<float>(w[static_cast<std::size_t>(tokens[t] * cols + k)]));
      }
    }
  }
}

TEST_P(MatmulTest, HugeAndTinyActivations) {
  const std::int64_t cols = widths().front();
  const TestMatrix matrix = random_matrix(random_, GetParam(), 16, cols);
  for (const float magnitude : {1e30F, 1e-20F, 1e-42F, 0.0F}) {
    std::vector<float> x = random_.normals(cols);
    for (float& value : x) value *= magnitude;
    std::vector<float> expected;
    for (const auto& backend : backends()) {
      const auto packed = backend->pack(matrix.view());
      const std::vector<float> y = run(*backend, *packed, x, {1});
      for (const float value : y) ASSERT_TRUE(std::isfinite(value)) << magnitude;
      if (expected.empty()) expected = y;
      ASSERT_TRUE(same_bits(y, expected)) << magnitude << ' ' << backend->description();
    }
  }
}

TEST_P(MatmulTest, NoRowsDoNothing) {
  const auto backend = make_cpu_backend(2);
  const auto packed = backend->pack(random_matrix(random_, GetParam(), 16, widths().front()).view());
  MatmulParams params;
  params.weight = packed.get();
  backend->matmul(params);
}

INSTANTIATE_TEST_SUITE_P(Formats, MatmulTest, ::testing::ValuesIn(weight_types()),
                         [](const auto& info) { return name_of(info.param); });

// A scale whose -8 or -128 fold overflows f16 must not become infinite.
TEST(MatmulScales, LargeScalesStayFinite) {
  for (const WeightType type : {WeightType::kQ4_0, WeightType::kQ8_0}) {
    Random random;
    TestMatrix matrix = random_matrix(random, type, 16, 32);
    for (std::int64_t row = 0; row < 16; ++row) {
      matrix.data[static_cast<std::size_t>(row * block_format(type).bytes)] = std::byte{0xff};
      matrix.data[static_cast<std::size_t>(row * block_format(type).bytes + 1)] = std::byte{0x7b};  // 65504
    }
    const std::vector<double> w = reference_values(matrix);
    const auto backend = make_cpu_backend(1);
    const auto packed = backend->pack(matrix.view());
    const std::int32_t token = 5;
    std::vector<float> out(32);
    backend->embed({packed.get(), &token, 1, out.data()});
    for (std::size_t k = 0; k < 32; ++k) ASSERT_EQ(out[k], static_cast<float>(w[5 * 32 + k]));
  }
}

}  // namespace
}  // namespace hotset::kernels
