#include "kernels/cuda/fp8_matmul.h"

#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/fp8_values.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

class Fp8MatmulDevice : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    int major = 0;
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) GTEST_SKIP() << "no Hopper GPU here";
  }
};

struct Case {
  std::int64_t m, n, k;
  ActivationType x_type, y_type;
  bool accumulate;
  std::int64_t more = 0;  // elements between rows
  bool bias = false;
};

struct Operands {
  Operands(const Case& c, Random& random)
      : weight(c.n, c.k, random),
        x(rounded(random.normals(c.m * (c.k + c.more)), c.x_type)),
        bias(random.normals(c.n)) {
    for (std::int64_t row = 0; row < c.m; ++row) {
      const float size = row % 3 == 0 ? 0.01F : 30.0F;
      for (std::int64_t i = 0; i < c.k + c.more; ++i) x[static_cast<std::size_t>(row * (c.k + c.more) + i)] *= size;
    }
    x = rounded(std::move(x), c.x_type);
    codes = DeviceBuffer<std::uint8_t>(weight.codes.size());
    codes.upload(weight.codes.data(), weight.codes.size());
    scales = DeviceBuffer<float>(weight.scales.size());
    scales.upload(weight.scales.data(), weight.scales.size());
  }
  Fp8Weight weight;
  std::vector<float> x;
  std::vector<float> bias;
  DeviceBuffer<std::uint8_t> codes;
  DeviceBuffer<float> scales;
};

std::vector<float> multiply(const Case& c, const Operands& operands, const std::vector<float>& x,
                            const std::vector<float>& before, std::int64_t m) {
  const DeviceValues device_x(x, c.x_type), bias(operands.bias, ActivationType::kF32);
  const DeviceValues y(before, c.y_type);
  const DeviceBuffer<std::byte> workspace(fp8_matmul_workspace_bytes(m, c.k));
  launch_fp8_matmul({.x = device_x.data(),
                     .x_type = c.x_type,
                     .x_stride = c.k + c.more,
                     .weight = operands.codes.data(),
                     .weight_scales = operands.scales.data(),
                     .bias = c.bias ? static_cast<const float*>(bias.data()) : nullptr,
                     .y = y.data(),
                     .y_type = c.y_type,
                     .y_stride = c.n + c.more,
                     .accumulate = c.accumulate,
                     .m = m,
                     .n = c.n,
                     .k = c.k,
                     .workspace = workspace.data()},
                    nullptr);
  return y.values();
}

void expect_product(const Case& c, Random& random) {
  const Operands operands(c, random);
  const std::vector<float> before = rounded(random.normals(c.m * (c.n + c.more)), c.y_type);
  const std::vector<float> got = multiply(c, operands, operands.x, before, c.m);
  double worst = 0;
  for (std::int64_t row = 0; row < c.m; ++row) {
    const std::vector<double> x = quantised(slice(operands.x, row * (c.k + c.more), c.k));
    for (std::int64_t col = 0; col < c.n + c.more; ++col) {
      const auto at = static_cast<std::size_t>(row * (c.n + c.more) + col);
      if (col >= c.n) {
        ASSERT_EQ(got[at], before[at]) << "written between rows, row " << row << ", column " << col;
        continue;
      }
      const double start = c.accumulate ? before[at] : 0.0;
      const double added = c.bias ? operands.bias[static_cast<std::size_t>(col)] : 0.0;
      double sum = start + added;
      double magnitude = std::abs(start) + std::abs(added);
      for (std::int64_t i = 0; i < c.k; ++i) {
        const double product = x[static_cast<std::size_t>(i)] * operands.weight.value(col, i);
        sum += product;
        magnitude += std::abs(product);
      }
      worst = std::max(worst, std::abs(got[at] - sum) / magnitude);
      const double bound = magnitude * 0x1p-12 + (c.y_type == ActivationType::kBF16 ? std::abs(sum) * 0x1p-8 : 0.0);
      ASSERT_LE(std::abs(got[at] - sum), bound) << c.m << " x " << c.n << " x " << c.k << ", row " << row << ", column "
                                                << col << ": got " << got[at] << ", expected " << sum;
    }
  }
  std::printf("%4lld x %4lld x %5lld: worst error 2^%.1f of the magnitudes\n", static_cast<long long>(c.m),
              static_cast<long long>(c.n), static_cast<long long>(c.k), std::log2(worst + 1e-30));
}

TEST_F(Fp8MatmulDevice, ProductsAsInDouble) {
  Random random;
  constexpr auto kF32 = ActivationType::kF32;
  constexpr auto kBF16 = ActivationType::kBF16;
  for (const Case& c :
       {Case{1, 64, 128, kF32, kF32, false}, Case{5, 136, 384, kF32, kF32, true, 8},
        Case{9, 1000, 256, kBF16, kBF16, false, 16}, Case{33, 256, 1024, kBF16, kF32, true},
        Case{64, 8, 512, kF32, kF32, false}, Case{65, 520, 256, kF32, kBF16, true},
        Case{130, 264, 1792, kBF16, kF32, true, 8}, Case{700, 200, 256, kBF16, kBF16, false},
        Case{17, 200, 256, kBF16, kF32, true, 8, true}, Case{70, 72, 128, kF32, kBF16, false, 0, true}}) {
    ASSERT_NO_FATAL_FAILURE(expect_product(c, random));
  }
}

// Each row alone, in other numbers of rows (which take other tiles) and at another place: the same bits.
TEST_F(Fp8MatmulDevice, ARowHasItsOwnBits) {
  Random random;
  const Case c = {600, 264, 1024, ActivationType::kBF16, ActivationType::kF32, false};
  const Operands operands(c, random);
  const auto zeros = [&](std::int64_t m) { return std::vector<float>(static_cast<std::size_t>(m * c.n)); };
  const std::vector<float> all = multiply(c, operands, operands.x, zeros(c.m), c.m);
  ASSERT_TRUE(same_bits(multiply(c, operands, operands.x, zeros(c.m), c.m), all)) << "the same product twice";
  for (const std::int64_t m : {1, 2, 9, 17, 33, 48, 49, 65, 129, 193, 257}) {
    const std::int64_t first = m * 5 % (c.m - m);
    const std::vector<float> some = multiply(c, operands, slice(operands.x, first * c.k, m * c.k), zeros(m), m);
    ASSERT_TRUE(same_bits(some, slice(all, first * c.n, m * c.n))) << m << " rows";
  }
}

TEST_F(Fp8MatmulDevice, ZeroRowsGiveZeros) {
  Random random;
  const Case c = {3, 64, 256, ActivationType::kF32, ActivationType::kF32, false};
  Operands operands(c, random);
  for (float& x : operands.x) x = 0.0F;
  const std::vector<float> got = multiply(c, operands, operands.x, random.normals(c.m * c.n), c.m);
  ASSERT_TRUE(same_bits(got, std::vector<float>(got.size())));
}

}  // namespace
}  // namespace hotset::kernels::cuda
