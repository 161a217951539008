#include "kernels/cuda/matmul.h"

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
        const double unit = c.type == ActivationType::kF32 ? 0x1p-23 : 0x1p-19;
        // A bf16 result is rounded once, or twice where the product was rounded before it was added.
        const double rounded = std::abs(sum) + (c.accumulate ? std::abs(sum - start) : 0.0);
        const double bound = magnitude * unit * std::max(1.0, std::sqrt(static_cast<double>(c.k)) / 4) +
                             (c.y_type == ActivationType::kBF16 ? rounded * 0x1p-8 + magnitude * 0x1p-16 : 0.0) + 1e-6;
        ASSERT_LE(std::abs(got[at] - sum), bound)
            << c.m << " x " << c.n << " x " << c.k << (c.type == ActivationType::kF32 ? ", f32" : ", bf16")
            << (c.y_type == ActivationType::kF32 ? " to f32" : " to bf16") << (c.bias ? ", bias" : "")
            << (c.accumulate ? ", accumulate" : "") << ", row " << row << ", column " << col << ": got " << got[at]
            << ", expected " << sum;
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
                        Size{64, 128, 1024, 0, 64}, Size{130, 72, 2048, 8, 0}})
    for (const bool bias : {false, true})
      for (const bool accumulate : {false, true}) {
        for (const auto& [type, y_type] : {std::pair{ActivationType::kF32, ActivationType::kF32},
                                           std::pair{ActivationType::kBF16, ActivationType::kF32},
                                           std::pair{ActivationType::kBF16, ActivationType::kBF16}}) {
          ASSERT_NO_FATAL_FAILURE(
              expect_product(library, {s.m, s.n, s.k, s.more_x, s.more_y, type, y_type, bias, accumulate}, random));
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
  constexpr std::int64_t kHeads = 5, kWidth = 32, kRope = 16, kRank = 48;
  for (const ActivationType type : {ActivationType::kF32, ActivationType::kBF16})
    for (const std::int64_t m : {1, 3, 70}) {
      MatmulShape shape;
      shape.m = m;
      shape.n = kRank;
      shape.k = kWidth;
      shape.type = type;
      shape.y_type = type;
      shape.batch = kHeads;
      shape.x_step = kWidth + kRope;
      shape.x_stride = kHeads * shape.x_step;
      shape.weight_step = kRank * kWidth;
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
        for (std::int64_t i = 0; i < kWidth; ++i) {
          const double product =
              double{x[static_cast<std::size_t>(row * shape.x_stride + head * shape.x_step + i)]} *
              double{weight[static_cast<std::size_t>(head * shape.weight_step + channel % kRank * kWidth + i)]};
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
