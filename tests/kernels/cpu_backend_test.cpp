#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "core/kv_format.h"
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
      backend->rms_norm({out.data(), weight.data(), out.data(), rows, width, 0, 1e-5F});
      std::vector<float> alone(static_cast<std::size_t>(width));
      backend->rms_norm({in.data() + 7 * width, weight.data(), alone.data(), 1, width, 0, 1e-5F});
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

TEST(RmsNorm, RowsMayLieApart) {
  Random random;
  const std::int64_t rows = 9;
  const std::int64_t width = 21;
  const std::int64_t stride = 30;
  const std::vector<float> x = random.normals(rows * stride);
  const std::vector<float> weight = random.normals(width);
  for (const auto& backend : backends()) {
    std::vector<float> out = x;  // in place
    backend->rms_norm({out.data(), weight.data(), out.data(), rows, width, stride, 1e-5F});
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<float> expected = slice(x, r * stride, stride);
      backend->rms_norm({expected.data(), weight.data(), expected.data(), 1, width, 0, 1e-5F});
      EXPECT_TRUE(same_bits(slice(out, r * stride, stride), expected)) << backend->description();
    }
  }
}

TEST(LayerNorm, AgreesWithFloat64AndItsOwnBits) {
  Random random;
  for (const std::int64_t width : kWidths) {
    const std::int64_t rows = 37;
    std::vector<float> in = random.normals(rows * width);
    for (std::int64_t c = 0; c < width; ++c) {
      in[static_cast<std::size_t>(5 * width + c)] = 3.0F;      // no variance
      in[static_cast<std::size_t>(6 * width + c)] += 1000.0F;  // a mean far above the spread
    }
    const std::vector<float> weight = random.normals(width);
    const std::vector<float> bias = random.normals(width);
    std::vector<float> expected;
    for (const auto& backend : backends()) {
      std::vector<float> out = in;  // in place
      backend->layer_norm({out.data(), weight.data(), bias.data(), out.data(), rows, width, 1e-6F});
      std::vector<float> alone(static_cast<std::size_t>(width));
      backend->layer_norm({in.data() + 7 * width, weight.data(), bias.data(), alone.data(), 1, width, 1e-6F});
      EXPECT_TRUE(same_bits(alone, slice(out, 7 * width, width)));
      if (expected.empty()) {
        expected = out;
        for (std::int64_t r = 0; r < rows; ++r) {
          const float* const row = in.data() + r * width;
          double mean = 0;
          for (std::int64_t c = 0; c < width; ++c) mean += row[c] / static_cast<double>(width);
          double variance = 0;
          for (std::int64_t c = 0; c < width; ++c)
            variance += std::pow(row[c] - mean, 2.0) / static_cast<double>(width);
          const double factor = 1.0 / std::sqrt(variance + static_cast<double>(1e-6F));
          for (std::int64_t c = 0; c < width; ++c) {
            const auto channel = static_cast<std::size_t>(c);
            const double value = (row[c] - mean) * factor * weight[channel] + bias[channel];
            // The mean is rounded to float32: an error that small variances magnify.
            const double rounding = (2e-7 * std::fabs(mean) + 1e-9) * factor * std::fabs(weight[channel]);
            ASSERT_NEAR(out[static_cast<std::size_t>(r * width + c)], value, 3e-6 + rounding) << width << ' ' << r;
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

// ---- Rows: core/kv_format.h says what they hold ----

std::vector<KvGeometry> row_geometries() {
  using Layout = KvGeometry::Layout;
  std::vector<KvGeometry> out;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    out.push_back({1, 3, 64, 64, Layout::kGrouped, dtype});
    out.push_back({1, 2, 24, 7, Layout::kGrouped, dtype});
    out.push_back({1, 2, 150, 260, Layout::kGrouped, dtype});
    out.push_back({1, 1, 576, 512, Layout::kLatent, dtype});
    out.push_back({1, 1, 147, 144, Layout::kLatent, dtype});
    out.push_back({1, 1, 9, 9, Layout::kLatent, dtype});
  }
  return out;
}

TEST(StoreRows, WritesTheFormatsOfCore) {
  Random random;
  for (const KvGeometry& geometry : row_geometries()) {
    const std::int64_t rows = 70;
    const std::int64_t k_stride = geometry.key_elements() + 5;
    const std::int64_t v_stride = geometry.value_elements() + 3;
    const bool latent = geometry.layout == KvGeometry::Layout::kLatent;
    std::vector<float> k = random.normals(rows * k_stride);
    const std::vector<float> v = random.normals(rows * v_stride);
    k[static_cast<std::size_t>(3 * k_stride)] = kNan;
    k[static_cast<std::size_t>(4 * k_stride)] = -kInfinity;
    const auto row_bytes = static_cast<std::size_t>(geometry.row_bytes());
    std::vector<std::byte> expected(static_cast<std::size_t>(rows) * row_bytes);
    for (std::int64_t r = 0; r < rows; ++r) {
      encode_row(geometry, k.data() + r * k_stride, latent ? nullptr : v.data() + r * v_stride,
                 expected.data() + static_cast<std::size_t>(r) * row_bytes);
    }
    for (const auto& backend : backends()) {
      std::vector<std::byte> bytes(expected.size() + 1, std::byte{0x77});
      std::vector<std::byte*> targets;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) targets.push_back(bytes.data() + r * row_bytes);
      std::reverse(targets.begin() + 10, targets.end());
      backend->store_rows({geometry, k.data(), k_stride, latent ? nullptr : v.data(), v_stride, targets.data(), rows});
      for (std::size_t r = 0; r < targets.size(); ++r) {
        ASSERT_EQ(std::memcmp(targets[r], expected.data() + r * row_bytes, row_bytes), 0)
            << r << ' ' << backend->description();
      }
      EXPECT_EQ(bytes.back(), std::byte{0x77});
    }
  }
}

TEST(LoadKeys, ReadsTheFormatsOfCore) {
  Random random;
  for (const KvGeometry& geometry : row_geometries()) {
    const std::int64_t rows = 70;
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows * geometry.row_bytes()));
    for (std::int64_t r = 0; r < rows; ++r) {
      encode_row(geometry, random.normals(geometry.key_elements()).data(),
                 random.normals(geometry.value_elements()).data(), bytes.data() + r * geometry.row_bytes());
    }
    std::memset(bytes.data() + 5 * geometry.row_bytes(), 0xff, static_cast<std::size_t>(geometry.row_bytes()));
    std::vector<float> expected(static_cast<std::size_t>(rows * geometry.key_elements()));
    for (std::int64_t r = 0; r < rows; ++r) {
      decode_key(geometry, bytes.data() + r * geometry.row_bytes(), expected.data() + r * geometry.key_elements());
    }
    for (const auto& backend : backends()) {
      std::vector<float> out(expected.size() + 1, 7.0F);
      backend->load_keys({geometry, bytes.data(), rows, out.data()});
      EXPECT_EQ(out.back(), 7.0F);
      out.pop_back();
      ASSERT_TRUE(same_bits(out, expected)) << backend->description();
    }
  }
}

// Every code, NaN and subnormal ones included, under scales of all sizes.
TEST(LoadKeys, EveryFp8CodeIsExact) {
  for (const float scale : {1.0F, 0.3F, 1.7e-30F, 7e35F, 0.0F, kNan}) {
    for (const std::int32_t width : {128, 127, 16, 5}) {
      const KvGeometry geometry{1, 1, width, width, KvGeometry::Layout::kLatent, KvDType::kFp8};
      for (int first = 0; first < 256; first += width) {
        std::vector<std::byte> row(static_cast<std::size_t>(geometry.row_bytes()));
        for (int i = 0; i < width; ++i) row[static_cast<std::size_t>(i)] = static_cast<std::byte>(first + i);
        std::memcpy(row.data() + geometry.key_scales_offset_bytes(), &scale, sizeof scale);
        std::vector<float> expected(static_cast<std::size_t>(width));
        decode_key(geometry, row.data(), expected.data());
        for (const auto isa : isas()) {
          std::vector<float> out(expected.size());
          make_cpu_backend(1, isa)->load_keys({geometry, row.data(), 1, out.data()});
          ASSERT_TRUE(same_bits(out, expected)) << scale << ' ' << width << ' ' << static_cast<int>(isa);
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
