#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/matmul/few_rows.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {
namespace {

using MatmulDevice = GpuTest;

struct Case {
  std::int64_t m, n, k, more_x, more_y;
  ActivationType type, y_type;
  bool bias, accumulate;
  bool library = true;
};

// Against sums in double. float32 sums of k products err by less than k * 2^-24 of the sum of magnitudes; TF32 or
// bfloat16 factors would err by 2^-11 or more of single products, which is far outside for small k.
void expect_product(const MatmulLibrary& library, const Case& c, Random& random) {
  const std::int64_t x_stride = c.k + c.more_x;
  const std::int64_t y_stride = c.n + c.more_y;
  const std::vector<float> x = rounded(random.normals(c.m * x_stride), c.type);
  const std::vector<float> weight = rounded(random.normals(c.n * c.k), c.type);
  const std::vector<float> bias = rounded(random.normals(c.n), c.y_type);
  const std::vector<float> before = rounded(random.normals(c.m * y_stride), c.y_type);
  MatmulShape shape;
  shape.m = c.m;
  shape.n = c.n;
  shape.k = c.k;
  shape.x_stride = x_stride;
  shape.y_stride = y_stride;
  shape.type = c.type;
  shape.y_type = c.y_type;
  shape.bias = c.bias;
  shape.accumulate = c.accumulate;
  shape.library = c.library;
  Matmul matmul(library, shape);
  const DeviceValues device_x(x, c.type);
  const DeviceValues device_weight(weight, c.type);
  const DeviceValues device_bias(bias, c.y_type);
  const DeviceBuffer<std::byte> workspace(matmul.workspace_bytes() + 1);
  std::vector<float> first;
  for (int again = 0; again < 2; ++again) {
    const DeviceValues y(before, c.y_type);
    matmul.launch(
        {device_x.data(), device_weight.data(), c.bias ? device_bias.data() : nullptr, y.data(), workspace.data()},
        nullptr);
    const std::vector<float> got = y.values();
    if (again == 1) {
      ASSERT_TRUE(same_bits(got, first)) << "the same product twice";
      break;
    }
    first = got;
    for (std::int64_t row = 0; row < c.m; ++row)
      for (std::int64_t col = 0; col < y_stride; ++col) {
        const auto at = static_cast<std::size_t>(row * y_stride + col);
        if (col >= c.n) {
          ASSERT_EQ(got[at], before[at]) << "written between rows, row " << row << ", column " << col;
          continue;
        }
        const double start = c.accumulate ? before[at] : 0.0;
        double sum = (c.bias ? bias[static_cast<std::size_t>(col)] : 0.0F) + start;
        double magnitude = std::abs(sum);
        for (std::int64_t i = 0; i < c.k; ++i) {
          const double product = double{x[static_cast<std::size_t>(row * x_stride + i)]} *
                                 double{weight[static_cast<std::size_t>(col * c.k + i)]};
          sum += product;
          magnitude += std::abs(product);
        }
        // Tensor cores cut the aligned products of a step: 2^-22 of the magnitude has room for that.
        const double unit = c.type == ActivationType::kF32 ? 0x1p-22 : 0x1p-19;
        // A bf16 result is rounded once, or twice where the product was rounded before it was added.
        const double rounded = std::abs(sum) + (c.accumulate ? std::abs(sum - start) : 0.0);
        const double bound = magnitude * unit * std::max(1.0, std::sqrt(static_cast<double>(c.k)) / 4) +
                             (c.y_type == ActivationType::kBF16 ? rounded * 0x1p-8 + magnitude * 0x1p-16 : 0.0) + 1e-6;
        ASSERT_LE(std::abs(got[at] - sum), bound)
            << c.m << " x " << c.n << " x " << c.k << (c.type == ActivationType::kF32 ? ", f32" : ", bf16")
            << (c.y_type == ActivationType::kF32 ? " to f32" : " to bf16") << (c.library ? ", cuBLASLt" : "")
            << (c.bias ? ", bias" : "") << (c.accumulate ? ", accumulate" : "") << ", row " << row << ", column " << col
            << ": got " << got[at] << ", expected " << sum;
      }
  }
}

TEST_F(MatmulDevice, ProductsAsInDouble) {
  Random random;
  const MatmulLibrary library;
  struct Size {
    std::int64_t m, n, k, more_x, more_y;
  };
  for (const Size& s : {Size{1, 256, 512, 0, 0}, Size{3, 40, 64, 16, 8}, Size{16, 1000, 256, 0, 0},
                        Size{17, 64, 128, 0, 0}, Size{64, 128, 1024, 0, 64}, Size{130, 72, 2048, 8, 0}})
    for (int i = 0; i < 8; ++i) {
      const bool bias = i % 2 == 1, accumulate = i / 2 % 2 == 1, of_library = i / 4 == 1;
      if (s.m > kMostFewRows && !of_library) continue;
      for (const auto& [type, y_type] : {std::pair{ActivationType::kF32, ActivationType::kF32},
                                         std::pair{ActivationType::kBF16, ActivationType::kF32},
                                         std::pair{ActivationType::kBF16, ActivationType::kBF16}}) {
        ASSERT_NO_FATAL_FAILURE(expect_product(
            library, {s.m, s.n, s.k, s.more_x, s.more_y, type, y_type, bias, accumulate, of_library}, random));
      }
    }
}

// Sizes around the kernel's tiles (16 channels, 8 rows), items (256 bytes of k), warps (8 items) and multiprocessors.
TEST_F(MatmulDevice, FewRowsAsInDouble) {
  Random random;
  const MatmulLibrary library;
  constexpr ActivationType kF32 = ActivationType::kF32, kBF16 = ActivationType::kBF16;
  for (const auto& [n, k] :
       {std::pair{1, 64}, std::pair{15, 64}, std::pair{37, 72}, std::pair{17, 192}, std::pair{64, 576},
        std::pair{37, 1088}, std::pair{2200, 256}, std::pair{4500, 64}, std::pair{9000, 128}, std::pair{300, 2112}}) {
    for (const std::int64_t m : {1, 2, 7, 8, 9, 15, 16}) {
      const bool odd = m % 2 == 1;
      ASSERT_NO_FATAL_FAILURE(
          expect_product(library, {m, n, k, odd ? 8 : 0, odd ? 3 : 0, kBF16, kF32, odd, !odd, false}, random));
      ASSERT_NO_FATAL_FAILURE(expect_product(library, {m, n, k, 0, 0, kBF16, kBF16, !odd, odd, false}, random));
      ASSERT_NO_FATAL_FAILURE(expect_product(library, {m, n, k + 32, 4, 1, kF32, kF32, odd, odd, false}, random));
    }
  }
}

MatmulShape shape_of(std::int64_t m, std::int64_t n, std::int64_t k, ActivationType type, bool gated = false) {
  MatmulShape shape;
  shape.m = m;
  shape.n = n;
  shape.k = k;
  shape.x_stride = k;
  shape.y_stride = n;
  shape.type = type;
  shape.gated = gated;
  return shape;
}

// For any number of rows, in any place, by any number of tiles at once.
TEST_F(MatmulDevice, FewRowsGiveTheBitsOfOne) {
  if (!few_rows_takes(shape_of(1, 8, 64, ActivationType::kBF16))) GTEST_SKIP() << "no Hopper GPU here";
  Random random;
  constexpr std::int64_t kN = 2192;
  for (const std::int64_t k : {320, 1600})
    for (const auto& [type, most, gated] :
         {std::tuple{ActivationType::kBF16, kMostFewRows, false}, std::tuple{ActivationType::kBF16, kMostFewRows, true},
          std::tuple{ActivationType::kF32, kMostFewRowsF32, false}}) {
      const std::vector<float> x = rounded(random.normals(most * k), type);
      const DeviceValues device_x(x, type);
      const DeviceValues weight(rounded(random.normals((gated ? 2 * kN : kN) * k), type), type);
      const std::int64_t element = type == ActivationType::kF32 ? 4 : 2;
      const auto product = [&](std::int64_t first, std::int64_t m, int tiles) {
        const DeviceValues y(std::vector<float>(static_cast<std::size_t>(m * kN), NAN), ActivationType::kF32);
        launch_few_rows(shape_of(m, kN, k, type, gated),
                        {static_cast<const std::byte*>(device_x.data()) + first * k * element, weight.data(), nullptr,
                         y.data(), nullptr},
                        nullptr, tiles);
        return y.values();
      };
      const std::vector<float> all = product(0, most, 0);
      for (std::int64_t m = 1; m <= most; ++m) {
        const std::int64_t first = most - m;
        const std::vector<float> expected(all.begin() + first * kN, all.end());
        ASSERT_TRUE(same_bits(product(first, m, static_cast<int>(m % 3)), expected))
            << m << " rows from row " << first << ", tiles " << m % 3 << ", k " << k
            << (type == ActivationType::kF32 ? ", f32" : ", bf16") << (gated ? ", gated" : "");
      }
      ASSERT_TRUE(same_bits(product(0, most, 1), product(0, most, 2)));
    }
}

// float32 rows are rounded as they are read.
TEST_F(MatmulDevice, WideRowsGiveTheBitsOfRoundedOnes) {
  if (!few_rows_takes(shape_of(1, 8, 64, ActivationType::kBF16))) GTEST_SKIP() << "no Hopper GPU here";
  Random random;
  constexpr std::int64_t kN = 600;
  for (const std::int64_t k : {128, 192, 1600})
    for (const std::int64_t m : {1, 3, 8, 11, 16})
      for (const int tiles : {1, 2}) {
        const std::vector<float> x = random.normals(m * k);
        const DeviceValues wide(x, ActivationType::kF32);
        const DeviceValues narrow(rounded(x, ActivationType::kBF16), ActivationType::kBF16);
        const DeviceValues weight(rounded(random.normals(kN * k), ActivationType::kBF16), ActivationType::kBF16);
        const std::vector<float> poison(static_cast<std::size_t>(m * kN), NAN);
        const DeviceValues y(poison, ActivationType::kF32), expected(poison, ActivationType::kF32);
        MatmulShape shape = shape_of(m, kN, k, ActivationType::kBF16);
        launch_few_rows(shape, {narrow.data(), weight.data(), nullptr, expected.data(), nullptr}, nullptr, tiles);
        shape.wide_x = true;
        launch_few_rows(shape, {wide.data(), weight.data(), nullptr, y.data(), nullptr}, nullptr, tiles);
        ASSERT_TRUE(same_bits(y.values(), expected.values())) << m << " rows, k " << k << ", tiles " << tiles;
      }
}

TEST_F(MatmulDevice, GatedProductsAsInDouble) {
  if (!few_rows_takes(shape_of(1, 8, 64, ActivationType::kBF16))) GTEST_SKIP() << "no Hopper GPU here";
  Random random;
  for (const ActivationType type : {ActivationType::kF32, ActivationType::kBF16})
    for (const ActivationType y_type : {ActivationType::kF32, ActivationType::kBF16}) {
      if (type == ActivationType::kF32 && y_type != type) continue;
      for (const auto& [m, n, k] : {std::tuple{1, 8, 64}, std::tuple{3, 1000, 320}, std::tuple{8, 2200, 576}}) {
        const std::vector<float> x = rounded(random.normals(m * k), type);
        const std::vector<float> weight = rounded(random.normals(2 * n * k), type);
        const DeviceValues device_x(x, type), device_weight(weight, type);
        const DeviceValues y(std::vector<float>(static_cast<std::size_t>(m * n), NAN), y_type);
        MatmulShape shape = shape_of(m, n, k, type, true);
        shape.y_type = y_type;
        launch_few_rows(shape, {device_x.data(), device_weight.data(), nullptr, y.data(), nullptr}, nullptr);
        const std::vector<float> got = y.values();
        for (int at = 0; at < m * n; ++at) {
          const auto sum = [&](int channel) {
            double total = 0;
            for (int i = 0; i < k; ++i)
              total += double{x[static_cast<std::size_t>(at / n * k + i)]} *
                       double{weight[static_cast<std::size_t>(channel * k + i)]};
            return total;
          };
          const double gate = sum(at % n), up = sum(n + at % n);
          const double expected = gate / (1 + std::exp(-gate)) * up;
          // The gate's slope is at most 1.1; sums err by 2^-19 of the magnitudes, about k.
          const double sums = (type == ActivationType::kF32 ? 0x1p-22 : 0x1p-19) * k;
          const double bound = sums * (1.1 * std::abs(up) + std::abs(gate) + 1) + std::abs(expected) * 0x1p-20 +
                               (y_type == ActivationType::kBF16 ? 0x1p-8 * std::abs(expected) : 0.0);
          ASSERT_LE(std::abs(got[static_cast<std::size_t>(at)] - expected), bound)
              << m << " x " << n << " x " << k << ", row " << at / n << ", channel " << at % n << ": got "
              << got[static_cast<std::size_t>(at)] << ", expected " << expected;
        }
      }
    }
}

// Widths that are no multiples of anything, as small float32 models have them.
TEST_F(MatmulDevice, OddFloatShapes) {
  Random random;
  const MatmulLibrary library;
  for (const std::int64_t m : {1, 2, 5})
    ASSERT_NO_FATAL_FAILURE(
        expect_product(library, {m, 37, 61, 1, 3, ActivationType::kF32, ActivationType::kF32, true, m == 2}, random));
}

// As latent attention multiplies each head's queries with that head's matrix: heads interleave in x and y, and y has
// channels between them that stay.
TEST_F(MatmulDevice, ProductsSideBySide) {
  Random random;
  const MatmulLibrary library;
  constexpr std::int64_t kHeads = 5, kRope = 16, kRank = 48;
  for (const auto& [type, m, width] :
       {std::tuple{ActivationType::kF32, 1, 32}, std::tuple{ActivationType::kF32, 3, 96},
        std::tuple{ActivationType::kF32, 8, 544}, std::tuple{ActivationType::kF32, 70, 32},
        std::tuple{ActivationType::kBF16, 1, 32}, std::tuple{ActivationType::kBF16, 1, 64},
        std::tuple{ActivationType::kBF16, 3, 192}, std::tuple{ActivationType::kBF16, 16, 576},
        std::tuple{ActivationType::kBF16, 70, 32}}) {
    MatmulShape shape;
    shape.m = m;
    shape.n = kRank;
    shape.k = width;
    shape.type = type;
    shape.y_type = type;
    shape.batch = kHeads;
    shape.x_step = width + kRope;
    shape.x_stride = kHeads * shape.x_step;
    shape.weight_step = kRank * width;
    shape.y_step = kRank + kRope;
    shape.y_stride = kHeads * shape.y_step;
    const std::vector<float> x = rounded(random.normals(m * shape.x_stride), type);
    const std::vector<float> weight = rounded(random.normals(kHeads * shape.weight_step), type);
    const std::vector<float> before = rounded(random.normals(m * shape.y_stride), type);
    Matmul matmul(library, shape);
    const DeviceValues device_x(x, type), device_weight(weight, type), y(before, type);
    const DeviceBuffer<std::byte> workspace(matmul.workspace_bytes() + 1);
    matmul.launch({device_x.data(), device_weight.data(), nullptr, y.data(), workspace.data()}, nullptr);
    const std::vector<float> got = y.values();
    for (std::int64_t at = 0; at < m * shape.y_stride; ++at) {
      const std::int64_t row = at / shape.y_stride, head = at % shape.y_stride / shape.y_step;
      const std::int64_t channel = at % shape.y_step;
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        const double product =
            double{x[static_cast<std::size_t>(row * shape.x_stride + head * shape.x_step + i)]} *
            double{weight[static_cast<std::size_t>(head * shape.weight_step + channel % kRank * width + i)]};
        sum += product;
        magnitude += std::abs(product);
      }
      const bool between = channel >= kRank;
      if (between) sum = before[static_cast<std::size_t>(at)];
      const double bound =
          between ? 0.0 : magnitude * 0x1p-19 + (type == ActivationType::kBF16 ? 0x1p-8 * std::abs(sum) : 0);
      ASSERT_LE(std::abs(got[static_cast<std::size_t>(at)] - sum), bound)
          << "rows " << m << ", row " << row << ", head " << head << ", channel " << channel;
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
