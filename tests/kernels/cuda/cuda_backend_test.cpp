// Products with FP8 weights through the backend: which of the two forms takes which rows, and that each gets what it
// needs.
#include "kernels/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/concat.h"
#include "tests/kernels/cuda/device_values.h"
#include "tests/kernels/cuda/fp8_values.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

class Fp8Backend : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<DeviceStream>();
    backend_ = make_cuda_backend(find_gpu().value(), *stream_, ElementType::kBF16);
    if (!backend_->takes_fp8(128, 128)) GTEST_SKIP() << "no Hopper GPU here";
  }

  static MatrixView view_of(const Fp8Weight& weight) {
    return {WeightType::kFp8Block, weight.rows, weight.cols, std::as_bytes(std::span(weight.codes)), weight.scales};
  }

  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DenseBackend> backend_;
};

ElementType element_of(ActivationType type) {
  return type == ActivationType::kF32 ? ElementType::kF32 : ElementType::kBF16;
}

TEST_F(Fp8Backend, TakesShapesThatItsProductsTake) {
  EXPECT_TRUE(backend_->takes_fp8(8, 128));
  EXPECT_TRUE(backend_->takes_fp8(576, 7168));
  EXPECT_FALSE(backend_->takes_fp8(12, 128));
  EXPECT_FALSE(backend_->takes_fp8(128, 192));
  EXPECT_FALSE(make_cuda_backend(find_gpu().value(), *stream_, ElementType::kBF16, false)->takes_fp8(128, 128));
  EXPECT_FALSE(make_cuda_backend(find_gpu().value(), *stream_, ElementType::kF32)->takes_fp8(128, 128));
}

// Up to 16 rows, of narrow weights 32 or 64, are rounded to bfloat16, more are quantised: the sums are those of inputs
// that were.
TEST_F(Fp8Backend, ProductsAsInDouble) {
  Random random;
  constexpr std::int64_t kK = 384;
  for (const std::int64_t n : {136, 576, 2056, 4104}) {
    const Fp8Weight weight(n, kK, random);
    const auto packed = backend_->pack(view_of(weight));
    ASSERT_EQ(packed->bytes(), n * kK + (n + 127) / 128 * 3 * 4);
    for (const std::int64_t m : {1, 16, 17, 32, 33, 64, 70})
      for (const ActivationType x_type : {ActivationType::kF32, ActivationType::kBF16}) {
        const bool odd = (m + n / 8) % 2 == 1;
        const bool exact = m <= (n <= 2048 ? 64 : n <= 4096 ? 32 : 16);
        const std::vector<float> x = rounded(random.normals(m * kK), x_type), bias = random.normals(n);
        const std::vector<float> before = random.normals(m * n);
        const DeviceValues device_x(x, x_type), device_bias(bias, ActivationType::kF32),
            y(before, ActivationType::kF32);
        backend_->matmul({.x = {device_x.data(), element_of(x_type)},
                          .weight = packed.get(),
                          .bias = odd ? static_cast<const float*>(device_bias.data()) : nullptr,
                          .y = static_cast<float*>(y.data()),
                          .m = m,
                          .accumulate = !odd});
        stream_->synchronize();
        const std::vector<float> got = y.values();
        for (std::int64_t row = 0; row < m; ++row) {
          const std::vector<float> own(x.begin() + row * kK, x.begin() + (row + 1) * kK);
          std::vector<double> inputs = quantised(own);
          if (exact) {
            const std::vector<float> narrow = rounded(own, ActivationType::kBF16);
            inputs.assign(narrow.begin(), narrow.end());
          }
          for (std::int64_t col = 0; col < n; ++col) {
            const auto at = static_cast<std::size_t>(row * n + col);
            double sum = odd ? bias[static_cast<std::size_t>(col)] : before[at];
            double magnitude = std::abs(sum);
            for (std::int64_t i = 0; i < kK; ++i) {
              const double product = inputs[static_cast<std::size_t>(i)] * weight.value(col, i);
              sum += product;
              magnitude += std::abs(product);
            }
            ASSERT_NEAR(got[at], sum, magnitude * (exact ? 0x1p-19 : 0x1p-12))
                << m << " x " << n << ", row " << row << ", column " << col;
          }
        }
      }
  }
}

// Few rows by one launch; of more the caller makes the product of both and gates it.
TEST_F(Fp8Backend, GatesOfJoinedMatrices) {
  Random random;
  constexpr std::int64_t kN = 256, kK = 256;
  const Fp8Weight gates(kN, kK, random), ups(kN, kK, random);
  const std::vector<MatrixView> views = {view_of(gates), view_of(ups)};
  const JoinedMatrices joined = backend_->pack_joined(views);
  ASSERT_NE(joined.all, nullptr);
  for (const std::int64_t m : {1, 16, 17}) {
    const std::vector<float> x = rounded(random.normals(m * kK), ActivationType::kBF16);
    const DeviceValues device_x(x, ActivationType::kBF16);
    const DeviceValues out(std::vector<float>(static_cast<std::size_t>(m * kN), NAN), ActivationType::kBF16);
    const bool done = backend_->gated_matmul({.x = {device_x.data(), ElementType::kBF16},
                                              .gate_up = joined.all.get(),
                                              .out = {out.data(), ElementType::kBF16},
                                              .m = m});
    stream_->synchronize();
    ASSERT_EQ(done, m <= 16);
    if (!done) continue;
    const std::vector<float> got = out.values();
    for (std::int64_t at = 0; at < m * kN; ++at) {
      const auto sum = [&](const Fp8Weight& weight) {
        double total = 0;
        for (std::int64_t i = 0; i < kK; ++i)
          total += double{x[static_cast<std::size_t>(at / kN * kK + i)]} * weight.value(at % kN, i);
        return total;
      };
      const double gate = sum(gates), up = sum(ups);
      const double expected = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(got[static_cast<std::size_t>(at)], expected, 0x1p-8 * std::abs(expected) + 1e-3)
          << m << " rows, row " << at / kN << ", channel " << at % kN;
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
