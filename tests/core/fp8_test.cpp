#include "core/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace hotset {
namespace {

static_assert(e4m3_to_f32(0x38) == 1.0F);
static_assert(f32_to_e4m3(-1.5F) == 0xbc);

// The number of a code by the definition, without bit tricks.
double number_of(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest of all 127 non-negative numbers, ties to the even code: slow and obvious.
int nearest_code(double value) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double now = std::abs(number_of(code) - value);
    const double before = std::abs(number_of(best) - value);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Fp8, AllCodesDecodeByTheDefinitionAndComeBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<std::uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, number_of(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    }
    EXPECT_EQ(f32_to_e4m3(value), code);
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), kE4m3Max);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6F);
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto low = static_cast<float>(number_of(code));
    const auto high = static_cast<float>(number_of(code + 1));
    const float middle = (low + high) / 2;  // exact: both have 4 bits
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(f32_to_e4m3(middle), even) << middle;
    EXPECT_EQ(f32_to_e4m3(-middle), even | 0x80) << middle;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 0.0F)), code) << middle;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, 1000.0F)), code + 1) << middle;
  }
  for (float value = 1e-4F; value < 500.0F; value *= 1.0137F) EXPECT_EQ(f32_to_e4m3(value), nearest_code(value));
}

TEST(Fp8, SaturatesAndKeepsNanAndTheSignOfZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0F, 449.0F, 464.0F, 480.0F, 1e30F, infinity}) {
    EXPECT_EQ(f32_to_e4m3(value), 0x7e) << value;
    EXPECT_EQ(f32_to_e4m3(-value), 0xfe) << value;
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(f32_to_e4m3(nan), 0x7f);
  EXPECT_EQ(f32_to_e4m3(std::copysign(nan, -1.0F)), 0xff);
  EXPECT_EQ(f32_to_e4m3(0.0F), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0.0F), 0x80);
  EXPECT_EQ(f32_to_e4m3(1e-40F), 0x00);
  EXPECT_EQ(f32_to_e4m3(-1e-40F), 0x80);
}

}  // namespace
}  // namespace hotset
