#include "core/kv_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/seed.h"

namespace hotset {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kWidths[] = {1, 16, 64, 80, 96, 127, 128, 129, 144, 512};

class KvFormat : public ::testing::Test {
 protected:
  std::vector<float> normals(std::int64_t count, float factor = 1.0F) {
    std::normal_distribution<float> normal;
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = normal(random_) * factor;
    return out;
  }
  // Magnitudes spread evenly over the powers of ten from `low` to `high`, both signs.
  std::vector<float> spread(std::int64_t count, double low, double high) {
    std::uniform_real_distribution<double> exponent(low, high);
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) {
      x = static_cast<float>(std::pow(10.0, exponent(random_)) * (random_() % 2 == 0 ? 1 : -1));
    }
    return out;
  }
  std::mt19937_64 random_{test_seed()};
};

struct Coded {
  std::vector<std::byte> codes, scales;
  explicit Coded(const std::vector<float>& x)
      : codes(x.size()), scales(static_cast<std::size_t>(4 * fp8_scales(static_cast<std::int64_t>(x.size())))) {
    encode_fp8(x.data(), static_cast<std::int64_t>(x.size()), codes.data(), scales.data());
  }
  [[nodiscard]] float scale(std::size_t group) const {
    float out;
    std::memcpy(&out, scales.data() + 4 * group, 4);
    return out;
  }
  [[nodiscard]] std::vector<float> decoded() const {
    std::vector<float> out(codes.size(), kNan);
    decode_fp8(codes.data(), scales.data(), static_cast<std::int64_t>(codes.size()), out.data());
    return out;
  }
};

// The bound that kv_format.h states.
void expect_within_bound(const std::vector<float>& x, const std::vector<float>& decoded, const char* what) {
  for (std::size_t begin = 0; begin < x.size(); begin += 128) {
    const std::size_t end = std::min(x.size(), begin + 128);
    double largest = 0;
    for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
    for (std::size_t i = begin; i < end; ++i) {
      const double value = x[i];
      const double bound =
          largest < 0x1p-100 ? std::fabs(value) : std::max(std::fabs(value) / 16, largest / 458752) * (1 + 0x1p-20);
      ASSERT_LE(std::fabs(static_cast<double>(decoded[i]) - value), bound)
          << what << ", channel " << i << " of " << x.size() << ": " << x[i] << " became " << decoded[i];
    }
  }
}

TEST_F(KvFormat, Fp8RoundTripStaysWithinTheStatedBound) {
  for (const std::int64_t width : kWidths) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      const auto check = [&](const std::vector<float>& x, const char* what) {
        expect_within_bound(x, Coded(x).decoded(), what);
      };
      check(normals(width), "normals");
      check(normals(width, 1e-20F), "small normals");
      check(spread(width, -6, 4), "1e-6 ... 1e4");
      check(spread(width, -45, 38), "every float32");
      std::vector<float> x = normals(width, 1e-3F);
      x[random_() % x.size()] = 1e4F;
      check(x, "an outlier among small values");
      x = normals(width);
      x[random_() % x.size()] = std::numeric_limits<float>::max();
      check(x, "the largest float");
    }
  }
}

// A bound that nothing comes near would hide a coarser format.
TEST_F(KvFormat, Fp8BoundIsReached) {
  double worst = 0;
  double worst_small = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<float> x = spread(128, -6, 0);
    x[0] = 448.0F;  // scale 1
    const std::vector<float> decoded = Coded(x).decoded();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double error = std::fabs(static_cast<double>(decoded[i]) - x[i]);
      if (std::fabs(x[i]) >= 0x1p-6F) worst = std::max(worst, error / std::fabs(static_cast<double>(x[i])));
      worst_small = std::max(worst_small, std::fabs(x[i]) < 0x1p-6F ? error : 0);
    }
  }
  EXPECT_GT(worst, 0.9 / 17);  // the mid-point of 1 and 1.125 is wrong by 1/17
  EXPECT_GT(worst_small, 0.9 * 0x1p-10);
}

TEST_F(KvFormat, Fp8ScalesAreAnyFloatOnePerGroupAndTheLargestValueComesBack) {
  std::vector<float> x = normals(300);
  x[7] = -30.0F;
  x[128] = 1e-3F;
  for (std::size_t i = 129; i < 256; ++i) x[i] = 0.0F;
  x[299] = 7e5F;
  const Coded coded(x);
  EXPECT_EQ(coded.scale(0), 30.0F / 448.0F);
  EXPECT_EQ(coded.scale(1), 1e-3F / 448.0F);
  EXPECT_EQ(coded.scale(2), 7e5F / 448.0F);
  const std::vector<float> decoded = coded.decoded();
  EXPECT_NEAR(decoded[7], -30.0F, 30.0F * 0x1p-22F);
  EXPECT_NEAR(decoded[128], 1e-3F, 1e-3F * 0x1p-22F);
  EXPECT_NEAR(decoded[299], 7e5F, 7e5F * 0x1p-22F);
}

TEST_F(KvFormat, Fp8ZerosAndTinyGroupsDecodeToZero) {
  for (const float value : {0.0F, 1e-45F, 0x1p-101F, -0x1p-101F}) {
    const Coded coded(std::vector<float>(130, value));
    EXPECT_EQ(coded.scale(0), 0.0F);
    EXPECT_EQ(coded.scale(1), 0.0F);
    for (const float x : coded.decoded()) EXPECT_EQ(std::bit_cast<std::uint32_t>(x), 0U);
  }
  EXPECT_EQ(Coded(std::vector<float>(3, 0x1p-100F)).decoded()[2], 0x1p-100F);
}

TEST_F(KvFormat, Fp8NonFiniteValuesPoisonTheirGroupOnly) {
  for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
    std::vector<float> x = normals(400);
    const std::vector<float> clean = Coded(x).decoded();
    x[130] = bad;
    const std::vector<float> decoded = Coded(x).decoded();
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / 128 == 1) {
        EXPECT_TRUE(std::isnan(decoded[i])) << i;
      } else {
        EXPECT_EQ(decoded[i], clean[i]) << i;
      }
    }
  }
}

// Equal rows must not depend on what rounding saw before: encoding a decoded group gives the same values again.
TEST_F(KvFormat, Fp8EncodingIsStable) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    const std::vector<float> once = Coded(spread(144, -6, 4)).decoded();
    const std::vector<float> twice = Coded(once).decoded();
    for (std::size_t i = 0; i < once.size(); ++i) {
      EXPECT_NEAR(twice[i], once[i], std::fabs(once[i]) * 0x1p-22F);
    }
  }
}

// ---- Whole rows ----

struct Case {
  KvGeometry geometry;
  const char* name;
};
std::vector<Case> cases() {
  using Layout = KvGeometry::Layout;
  std::vector<Case> out;
  for (const KvDType dtype : {KvDType::kF32, KvDType::kBF16, KvDType::kFp8}) {
    out.push_back({{1, 8, 128, 128, Layout::kGrouped, dtype}, "Llama 8B"});
    out.push_back({{1, 3, 64, 64, Layout::kGrouped, dtype}, "SmolLM2"});
    out.push_back({{1, 5, 24, 16, Layout::kGrouped, dtype}, "expanded MLA"});
    out.push_back({{1, 2, 9, 150, Layout::kGrouped, dtype}, "odd widths, two groups"});
    out.push_back({{1, 1, 576, 512, Layout::kLatent, dtype}, "DeepSeek-V3"});
    out.push_back({{1, 1, 40, 32, Layout::kLatent, dtype}, "tiny latent"});
    out.push_back({{1, 1, 147, 144, Layout::kLatent, dtype}, "two latent groups"});
    out.push_back({{1, 1, 64, 64, Layout::kLatent, dtype}, "no rope part"});
  }
  return out;
}
bool latent(const Case& c) { return c.geometry.layout == KvGeometry::Layout::kLatent; }

struct Decoded {
  std::vector<float> key, value;
  Decoded(const Case& c, const std::vector<std::byte>& row)
      : key(static_cast<std::size_t>(c.geometry.key_elements()), kNan),
        value(static_cast<std::size_t>(c.geometry.value_elements()), kNan) {
    decode_key(c.geometry, row.data(), key.data());
    if (latent(c)) {
      value.assign(key.begin(), key.begin() + c.geometry.value_dim);
    } else {
      decode_value(c.geometry, row.data(), value.data());
    }
  }
};

std::vector<std::byte> encoded(const Case& c, const std::vector<float>& key, const std::vector<float>& value,
                               std::byte dirt) {
  std::vector<std::byte> row(static_cast<std::size_t>(c.geometry.row_bytes()), dirt);
  encode_row(c.geometry, key.data(), latent(c) ? nullptr : value.data(), row.data());
  return row;
}

double relative_bound(KvDType dtype) { return dtype == KvDType::kF32 ? 0 : 0x1p-8; }

TEST_F(KvFormat, RowsComeBackInEveryFormat) {
  for (const Case& c : cases()) {
    const KvGeometry& g = c.geometry;
    const std::vector<float> key = spread(g.key_elements(), -6, 4);
    const std::vector<float> value = spread(g.value_elements(), -6, 4);
    const Decoded decoded(c, encoded(c, key, value, std::byte{0xff}));
    const auto check = [&](const std::vector<float>& from, const std::vector<float>& to, std::int64_t begin,
                           std::int64_t count, bool fp8) {
      const std::vector<float> x(from.begin() + begin, from.begin() + begin + count);
      const std::vector<float> y(to.begin() + begin, to.begin() + begin + count);
      if (fp8) return expect_within_bound(x, y, c.name);
      const double bound = relative_bound(g.dtype);
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_LE(std::fabs(static_cast<double>(y[i]) - x[i]), bound * std::fabs(static_cast<double>(x[i]))) << c.name;
      }
    };
    const bool fp8 = g.dtype == KvDType::kFp8;
    if (latent(c)) {
      check(key, decoded.key, 0, g.value_dim, fp8);
      check(key, decoded.key, g.value_dim, g.key_dim - g.value_dim, false);
      continue;
    }
    for (std::int64_t head = 0; head < g.kv_heads; ++head) {
      check(key, decoded.key, head * g.key_dim, g.key_dim, fp8);
      check(value, decoded.value, head * g.value_dim, g.value_dim, fp8);
    }
  }
}

TEST_F(KvFormat, EqualInputsGiveEqualBytesOnDirtyMemory) {
  for (const Case& c : cases()) {
    const std::vector<float> key = normals(c.geometry.key_elements());
    const std::vector<float> value = normals(c.geometry.value_elements());
    EXPECT_EQ(encoded(c, key, value, std::byte{0xff}), encoded(c, key, value, std::byte{0x5a})) << c.name;
  }
}

TEST_F(KvFormat, BytesLieWhereTheGeometrySays) {
  const Case latent_row{{1, 1, 576, 512, KvGeometry::Layout::kLatent, KvDType::kFp8}, "latent"};
  std::vector<float> key(576, 1.0F);
  for (std::size_t i = 384; i < 512; ++i) key[i] = 896.0F;
  key[511] = -448.0F;
  key[575] = -2.0F;
  std::vector<std::byte> row = encoded(latent_row, key, {}, std::byte{0xff});
  ASSERT_EQ(row.size(), 656U);
  EXPECT_EQ(row[0], std::byte{0x7e});    // 448
  EXPECT_EQ(row[511], std::byte{0xf6});  // -224
  float scale;
  std::memcpy(&scale, row.data() + 512 + 3 * 4, 4);
  EXPECT_EQ(scale, 2.0F);
  std::uint16_t half;
  std::memcpy(&half, row.data() + 528 + 63 * 2, 2);
  EXPECT_EQ(half, 0xc000U);

  const Case grouped{{1, 2, 16, 8, KvGeometry::Layout::kGrouped, KvDType::kFp8}, "grouped"};
  std::vector<float> keys(32, 448.0F), values(16, -448.0F);
  for (std::size_t i = 8; i < 16; ++i) values[i] = 1344.0F;
  row = encoded(grouped, keys, values, std::byte{0xff});
  ASSERT_EQ(row.size(), 64U);  // 32 + 16 codes, 2 + 2 scales
  EXPECT_EQ(row[31], std::byte{0x7e});
  EXPECT_EQ(row[32], std::byte{0xfe});
  EXPECT_EQ(row[47], std::byte{0x7e});
  std::memcpy(&scale, row.data() + 60, 4);
  EXPECT_EQ(scale, 3.0F);
}

TEST_F(KvFormat, Bf16RoundsToNearestEvenAndKeepsNan) {
  const Case c{{1, 1, 6, 6, KvGeometry::Layout::kGrouped, KvDType::kBF16}, "bf16"};
  const std::vector<float> key = {std::bit_cast<float>(0x3f808000U),
                                  std::bit_cast<float>(0x3f818000U),
                                  std::bit_cast<float>(0x3f808001U),
                                  std::bit_cast<float>(0x7f800001U),
                                  kInfinity,
                                  std::numeric_limits<float>::max()};
  const Decoded decoded(c, encoded(c, key, key, std::byte{0}));
  for (const std::vector<float>& x : {decoded.key, decoded.value}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(x[0]), 0x3f800000U);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(x[1]), 0x3f820000U);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(x[2]), 0x3f810000U);
    EXPECT_TRUE(std::isnan(x[3]));
    EXPECT_EQ(x[4], kInfinity);
    EXPECT_EQ(x[5], kInfinity);
  }
}

// A bad channel of one head leaves every other head, and V, alone.
TEST_F(KvFormat, NonFiniteValuesStayInTheirHead) {
  for (const Case& c : cases()) {
    if (latent(c)) continue;
    const KvGeometry& g = c.geometry;
    std::vector<float> key = normals(g.key_elements());
    const std::vector<float> value = normals(g.value_elements());
    const Decoded clean(c, encoded(c, key, value, std::byte{0}));
    key[static_cast<std::size_t>(g.key_dim)] = kNan;
    const Decoded dirty(c, encoded(c, key, value, std::byte{0}));
    EXPECT_EQ(dirty.value, clean.value) << c.name;
    EXPECT_TRUE(std::isnan(dirty.key[static_cast<std::size_t>(g.key_dim)])) << c.name;
    for (std::size_t i = 0; i < key.size(); ++i) {
      if (i / static_cast<std::size_t>(g.key_dim) == 1) continue;
      EXPECT_EQ(dirty.key[i], clean.key[i]) << c.name;
    }
  }
}

}  // namespace
}  // namespace hotset
