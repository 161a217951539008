#include "kernels/cuda/matmul/few_rows_fp8.h"

#include <cmath>

#include "core/concat.h"
#include "kernels/cuda/experts/hopper.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/fp8_values.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

class FewRowsFp8 : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !is_hopper()) GTEST_SKIP() << "no Hopper GPU here";
  }
};

constexpr ActivationType kF32 = ActivationType::kF32, kBF16 = ActivationType::kBF16;

struct Case {
  std::int64_t m, n, k;
  ActivationType y_type = kF32;
  bool bias = false, accumulate = false, gated = false;
  std::int64_t more = 0;  // elements between rows
  int tiles = 0;
};

std::string name_of(const Case& c) {
  return concat(c.m, " x ", c.n, " x ", c.k, c.y_type == kF32 ? " to f32" : " to bf16", c.bias ? ", bias" : "",
                c.accumulate ? ", accumulate" : "", c.gated ? ", gated" : "", ", tiles ", c.tiles);
}

// Scales of a weight are laid out by halves where it is gated.
struct Operands {
  Operands(const Case& c, Random& random)
      : low(c.n, c.k, random),
        high(c.gated ? c.n : 0, c.k, random),
        x(rounded(random.normals(c.m * (c.k + c.more)), kBF16)),
        bias(random.normals(c.n)) {
    // Every code but NaN, subnormal ones too.
    for (Fp8Weight* weight : {&low, &high}) {
      for (std::size_t i = 0; i < weight->codes.size(); i += 3)
        weight->codes[i] = static_cast<std::uint8_t>(random.uniform(0, 127) + (i % 2 == 0 ? 128.0 : 0.0));
    }
    std::vector<std::uint8_t> codes = low.codes;
    codes.insert(codes.end(), high.codes.begin(), high.codes.end());
    std::vector<float> scales = low.scales;
    scales.insert(scales.end(), high.scales.begin(), high.scales.end());
    device_codes = DeviceBuffer<std::uint8_t>(codes.size());
    device_codes.upload(codes.data(), codes.size());
    device_scales = DeviceBuffer<float>(scales.size());
    device_scales.upload(scales.data(), scales.size());
  }
  Fp8Weight low, high;
  std::vector<float> x, bias;
  DeviceBuffer<std::uint8_t> device_codes;
  DeviceBuffer<float> device_scales;
};

std::vector<float> multiply(const Case& c, const Operands& operands, const std::vector<float>& x,
                            const std::vector<float>& before, std::int64_t m) {
  const DeviceValues device_x(x, kBF16), bias(operands.bias, kF32), y(before, c.y_type);
  launch_few_rows_fp8({.x = device_x.data(),
                       .x_stride = c.k + c.more,
                       .weight = operands.device_codes.data(),
                       .scales = operands.device_scales.data(),
                       .bias = c.bias ? static_cast<const float*>(bias.data()) : nullptr,
                       .y = y.data(),
                       .y_type = c.y_type,
                       .y_stride = c.n + c.more,
                       .accumulate = c.accumulate,
                       .gated = c.gated,
                       .m = m,
                       .n = c.n,
                       .k = c.k},
                      nullptr, c.tiles);
  return y.values();
}

struct Sum {
  double value = 0, magnitude = 0;
};
Sum sum_of(const Case& c, const Operands& operands, const Fp8Weight& weight, std::int64_t row, std::int64_t col) {
  Sum sum;
  for (std::int64_t i = 0; i < c.k; ++i) {
    const double product =
        double{operands.x[static_cast<std::size_t>(row * (c.k + c.more) + i)]} * weight.value(col, i);
    sum.value += product;
    sum.magnitude += std::abs(product);
  }
  return sum;
}

void expect_product(const Case& c, const Operands& operands, Random& random) {
  const std::vector<float> before = rounded(random.normals(c.m * (c.n + c.more)), c.y_type);
  const std::vector<float> got = multiply(c, operands, operands.x, before, c.m);
  for (std::int64_t row = 0; row < c.m; ++row)
    for (std::int64_t col = 0; col < c.n + c.more; ++col) {
      const auto at = static_cast<std::size_t>(row * (c.n + c.more) + col);
      if (col >= c.n) {
        ASSERT_EQ(got[at], before[at]) << name_of(c) << ": written between rows, row " << row << ", column " << col;
        continue;
      }
      const Sum low = sum_of(c, operands, operands.low, row, col);
      const double start = c.accumulate ? before[at] : 0.0;
      double expected = low.value + start + (c.bias ? operands.bias[static_cast<std::size_t>(col)] : 0.0F);
      double bound = 0x1p-19 * (low.magnitude + std::abs(expected));
      if (c.gated) {
        const Sum high = sum_of(c, operands, operands.high, row, col);
        expected = low.value / (1 + std::exp(-low.value)) * high.value;
        // The gate's slope is at most 1.1.
        bound = 0x1p-19 * (1.1 * low.magnitude * std::abs(high.value) + std::abs(low.value) * high.magnitude +
                           std::abs(expected)) +
                1e-6;
      }
      if (c.y_type == kBF16) bound += 0x1p-8 * std::abs(expected) + 0x1p-8 * std::abs(expected - start);
      ASSERT_LE(std::abs(got[at] - expected), bound)
          << name_of(c) << ", row " << row << ", column " << col << ": got " << got[at] << ", expected " << expected;
    }
}

void expect_product(const Case& c, Random& random) { expect_product(c, Operands(c, random), random); }

// Sizes around tiles (16 channels), scale blocks (128), warps (8 blocks of k, 16 of narrow weights; 32 blocks of each)
// and multiprocessors.
TEST_F(FewRowsFp8, ProductsAsInDouble) {
  Random random;
  for (const auto& [n, k] : {std::pair{1, 128}, std::pair{15, 256}, std::pair{37, 1024}, std::pair{136, 1152},
                             std::pair{300, 2176}, std::pair{40, 65'792}, std::pair{2100, 1152}, std::pair{9000, 128}})
    for (const std::int64_t m : {1, 2, 7, 8, 9, 16})
      for (const int tiles : {1, 2, 4}) {
        if ((n > 1000 || k > 10'000) && m != 7 && m != 16) continue;  // takes long in double
        const bool odd = m % 2 == 1;
        ASSERT_NO_FATAL_FAILURE(expect_product({.m = m,
                                                .n = n,
                                                .k = k,
                                                .y_type = m == 2 ? kBF16 : kF32,
                                                .bias = odd,
                                                .accumulate = m > 7,
                                                .more = odd ? 8 : 0,
                                                .tiles = tiles},
                                               random));
      }
}

TEST_F(FewRowsFp8, GatedProductsAsInDouble) {
  Random random;
  for (const auto& [m, n, k] : {std::tuple{1, 8, 128}, std::tuple{3, 136, 384}, std::tuple{16, 1000, 256}})
    for (const int tiles : {0, 1, 2, 4})
      for (const ActivationType y_type : {kF32, kBF16}) {
        ASSERT_NO_FATAL_FAILURE(
            expect_product({.m = m, .n = n, .k = k, .y_type = y_type, .gated = true, .tiles = tiles}, random));
      }
}

// A weight of a few thousandths of the largest code.
TEST_F(FewRowsFp8, SubnormalCodesCount) {
  Random random;
  for (const int tiles : {1, 2, 4}) {
    const Case c{.m = 9, .n = 2100, .k = 256, .tiles = tiles};
    Operands operands(c, random);
    for (std::uint8_t& code : operands.low.codes) code &= 0x87U;
    operands.device_codes.upload(operands.low.codes.data(), operands.low.codes.size());
    ASSERT_NO_FATAL_FAILURE(expect_product(c, operands, random));
  }
}

// x of any size that bfloat16 has below 2^68, and weights of any size.
TEST_F(FewRowsFp8, NumbersOfAnySize) {
  Random random;
  for (const float size : {0x1p-60F, 0x1p-30F, 0x1p30F, 0x1p60F}) {
    const Case c{.m = 3, .n = 40, .k = 256};
    Operands operands(c, random);
    for (float& x : operands.x) x *= size;
    ASSERT_NO_FATAL_FAILURE(expect_product(c, operands, random)) << size;
  }
}

// For any number of rows, in any place, by any number of tiles at once; twice.
TEST_F(FewRowsFp8, ARowHasItsOwnBits) {
  Random random;
  for (const auto& [n, k] : {std::pair{2192, 384}, std::pair{2192, 1536}, std::pair{1000, 2304}})
    for (const bool gated : {false, true}) {
      Case c{.m = kMostFewRowsFp8, .n = n, .k = k, .gated = gated};
      const Operands operands(c, random);
      const auto poison = [&](std::int64_t m) { return std::vector<float>(static_cast<std::size_t>(m * c.n), NAN); };
      const std::vector<float> all = multiply(c, operands, operands.x, poison(c.m), c.m);
      for (std::int64_t m = 1; m <= c.m; ++m) {
        c.tiles = m % 4 == 3 ? 0 : static_cast<int>(1U << (m % 4));
        const std::int64_t first = (c.m - m) / 2;
        const std::vector<float> x(operands.x.begin() + first * k, operands.x.begin() + (first + m) * k);
        const std::vector<float> expected(all.begin() + first * c.n, all.begin() + (first + m) * c.n);
        ASSERT_TRUE(same_bits(multiply(c, operands, x, poison(m), m), expected))
            << m << " rows from row " << first << ": " << name_of(c);
      }
    }
}

}  // namespace
}  // namespace hotset::kernels::cuda
