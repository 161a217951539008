#include "kernels/cpu/cpu_backend.h"

#include <cstring>

#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels {
namespace {

const std::vector<std::int64_t> kWidths = {1, 8, 15, 16, 17, 64, 80, 576, 1536};

TEST(RmsNorm, AgreesWithFloat64AndItsOwnBits) {
  Random random;
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 37;
    std::vector<float> in = random.normals(rows * width);
    for (std::int64_t c = 0; c < width; ++c) in[static_cast<std::size_t>(5 * width + c)] = 0.0F;
    const std::vector<float> weight = random.normals(width);
    std::vector<float> expected;
    for (const auto& backend : backends()) {
      std::vector<float> out = in;  // in place
      backend->rms_norm({out.data(), weight.data(), out.data(), rows, width, 1e-5F});
      std::vector<float> alone(static_cast<std::size_t>(width));
      backend->rms_norm({in.data() + 7 * width, weight.data(), alone.data(), 1, width, 1e-5F});
      EXPECT_TRUE(same_bits(alone, slice(out, 7 * width, width)));
      if (expected.empty()) {
        expected = out;
        for (std::int64_t r = 0; r < rows; ++r) {
          double squares = 0;
          for (std::int64_t c = 0; c < width; ++c)
            squares += std::pow(in[static_cast<std::size_t>(r * width + c)], 2.0);
          const double factor = 1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(1e-5F));
          for (std::int64_t c = 0; c < width; ++c) {
            const auto at = static_cast<std::size_t>(r * width + c);
            const double value = in[at] * factor * weight[static_cast<std::size_t>(c)];
            ASSERT_NEAR(out[at], value, 1e-6 * std::fabs(value) + 1e-12) << width;
          }
        }
      }
      ASSERT_TRUE(same_bits(out, expected)) << width << ' ' << backend->description();
    }
  }
}

TEST(Rope, AgreesWithFloat64AtLongPositionsAndLeavesTheRest) {
  Random random;
  struct Case {
    std::int32_t heads, head_dim, rotary_dim;
  };
  for (const Case& c : {Case{9, 64, 64}, Case{1, 16, 16}, Case{2, 80, 32}, Case{3, 128, 128}, Case{1, 6, 2}}) {
    const std::int64_t rows = 11;
    const std::int64_t stride = std::int64_t{c.heads} * c.head_dim + 5;
    std::vector<float> inv_freq;
    for (std::int32_t i = 0; i < c.rotary_dim / 2; ++i) {
      inv_freq.push_back(static_cast<float>(std::pow(100000.0, -2.0 * i / c.rotary_dim)));
    }
    std::vector<std::int64_t> positions = {0, 1, 2, 131072, 131071, 100000};
    while (static_cast<std::int64_t>(positions.size()) < rows) positions.push_back(random.integer(0, 131072));
    const std::vector<float> in = random.normals(rows * stride);
    std::vector<float> expected;
    for (const auto& backend : backends()) {
      std::vector<float> x = in;
      const RopeParams params{x.data(),     stride, positions.data(), inv_freq.data(), rows, c.heads, c.head_dim,
                              c.rotary_dim, 1.25F};
      backend->rope(params);
      if (expected.empty()) {
        expected = x;
        std::vector<double> wanted(in.begin(), in.end());
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int32_t h = 0; h < c.heads; ++h) {
            for (std::int32_t i = 0; i < c.rotary_dim / 2; ++i) {
              const auto a = static_cast<std::size_t>(r * stride + std::int64_t{h} * c.head_dim + i);
              const auto b = a + static_cast<std::size_t>(c.rotary_dim / 2);
              const double angle = static_cast<double>(positions[static_cast<std::size_t>(r)]) *
                                   static_cast<double>(inv_freq[static_cast<std::size_t>(i)]);
              wanted[a] = (in[a] * std::cos(angle) - in[b] * std::sin(angle)) * 1.25;
              wanted[b] = (in[b] * std::cos(angle) + in[a] * std::sin(angle)) * 1.25;
            }
          }
        }
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], wanted[i], 1.5e-6) << i;
      }
      ASSERT_TRUE(same_bits(x, expected)) << backend->description();
      // Other positions after these, then these again one by one: the kept table must follow.
      for (const std::int64_t row : {10, 3, 3, 0}) {
        std::vector<float> alone = slice(in, row * stride, stride);
        RopeParams one = params;
        one.x = alone.data();
        one.positions = positions.data() + row;
        one.rows = 1;
        backend->rope(one);
        ASSERT_TRUE(same_bits(alone, slice(expected, row * stride, stride)));
        one.attention_factor = 1.0F;
        backend->rope(one);
        ASSERT_FALSE(same_bits(alone, slice(expected, row * stride, stride)) &&
                     positions[static_cast<std::size_t>(row)] != 0);
      }
    }
  }
}

TEST(SiluGate, AgreesWithFloat64AndItsOwnBits) {
  Random random;
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 21;
    std::vector<float> gate = random.normals(rows * width);
    for (float& x : gate) x *= static_cast<float>(random.integer(1, 30));
    const std::vector<float> edges = {0.0F, -0.0F, 88.0F, -88.0F, 200.0F, -200.0F, 1e-30F, -1e30F, 86.1F, -86.1F};
    for (std::size_t i = 0; i < edges.size() && i < gate.size(); ++i) gate[i] = edges[i];
    const std::vector<float> up = random.normals(rows * width);
    std::vector<float> expected;
    for (const auto& backend : backends()) {
      std::vector<float> out = gate;  // in place
      backend->silu_gate({out.data(), up.data(), out.data(), rows, width});
      if (expected.empty()) {
        expected = out;
        for (std::size_t i = 0; i < out.size(); ++i) {
          const double x = gate[i];
          const double value = x / (1.0 + std::exp(-x)) * up[i];
          ASSERT_NEAR(out[i], value, 4e-7 * std::fabs(value) + 1e-33) << x;
        }
      }
      ASSERT_TRUE(same_bits(out, expected)) << backend->description();
    }
  }
}

TEST(SiluGate, NonFiniteInputs) {
  const std::vector<float> gate = {kNan, kInfinity, -kInfinity, 1.0F};
  const std::vector<float> up = {1.0F, 1.0F, 1.0F, kNan};
  for (const auto& backend : backends()) {
    std::vector<float> out(4);
    backend->silu_gate({gate.data(), up.data(), out.data(), 1, 4});
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], kInfinity);
    EXPECT_TRUE(std::isnan(out[2]));  // -inf / inf, as the formula says
    EXPECT_TRUE(std::isnan(out[3]));
  }
}

TEST(StoreRows, F32IsBytesAndBf16RoundsToNearestEven) {
  // Ties go to even; the largest finite value becomes infinity; NaN stays NaN even when its payload is low.
  const std::vector<std::pair<std::uint32_t, std::uint16_t>> cases = {
      {0x3f800000U, 0x3f80U}, {0x3f808000U, 0x3f80U}, {0x3f818000U, 0x3f82U}, {0x3f808001U, 0x3f81U},
      {0x7f7fffffU, 0x7f80U}, {0xff800000U, 0xff80U}, {0x80000000U, 0x8000U}, {0x00008000U, 0x0000U}};
  const auto width = static_cast<std::int64_t>(cases.size());
  std::vector<float> k;
  for (const auto& [bits, half] : cases) k.push_back(std::bit_cast<float>(bits));
  std::vector<float> v(k.rbegin(), k.rend());
  v[0] = std::bit_cast<float>(0x7f800001U);
  const auto backend = make_cpu_backend(2);
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16}) {
    const KvGeometry geometry{1, 2, static_cast<std::int32_t>(width / 2), dtype};
    std::vector<std::byte> row(static_cast<std::size_t>(geometry.row_bytes()));
    std::byte* target = row.data();
    backend->store_rows({geometry, k.data(), v.data(), width, &target, 1});
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (dtype == KvDType::kF32) {
        EXPECT_EQ(std::memcmp(row.data() + 4 * i, &k[i], 4), 0);
        EXPECT_EQ(std::memcmp(row.data() + geometry.value_offset_bytes() + 4 * i, &v[i], 4), 0);
      } else {
        std::uint16_t half;
        std::memcpy(&half, row.data() + 2 * i, 2);
        EXPECT_EQ(half, cases[i].second) << i;
        std::memcpy(&half, row.data() + geometry.value_offset_bytes() + 2 * i, 2);
        if (i == 0) {
          EXPECT_GT(half & 0x7fffU, 0x7f80U);
        } else {
          EXPECT_EQ(half, cases[cases.size() - 1 - i].second) << i;
        }
      }
    }
  }
}

TEST(Copy, MovesEveryPiece) {
  Random random;
  for (const auto& backend : backends()) {
    for (const auto& [count, bytes] :
         {std::pair<std::int64_t, std::int64_t>{0, 64}, {1, 1536}, {300, 1536}, {5, 200000}}) {
      std::vector<std::vector<std::byte>> from, to;
      std::vector<const std::byte*> sources;
      std::vector<std::byte*> targets;
      for (std::int64_t i = 0; i < count; ++i) {
        from.emplace_back(static_cast<std::size_t>(bytes), static_cast<std::byte>(random.integer(0, 255)));
        to.emplace_back(static_cast<std::size_t>(bytes));
      }
      for (auto& piece : from) sources.push_back(piece.data());
      for (auto& piece : to) targets.push_back(piece.data());
      backend->copy({sources.data(), targets.data(), count, bytes});
      EXPECT_EQ(from, to);
    }
  }
}

TEST(Backend, SaysWhatItIs) {
  EXPECT_EQ(make_cpu_backend(1, CpuIsa::kScalar)->description(), "CPU, 1 thread, scalar");
  EXPECT_EQ(make_cpu_backend(2, CpuIsa::kScalar)->description(), "CPU, 2 threads, scalar");
}

}  // namespace
}  // namespace hotset::kernels
