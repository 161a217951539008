// FP8 E4M3 ("fn": no infinities, 0x7f and 0xff are NaN, the largest number is 448) <-> float32, the format of
// DeepSeek's weights and of FP8 rows. Layout: sign, 4 exponent bits with bias 7, 3 mantissa bits; the smallest normal
// number is 2^-6, the step below it 2^-9. Micikevicius et al., arXiv 2209.05433, table 1.
// `static`: each file keeps its own copy, so that code compiled for AVX never ends up in a plain path.
#pragma once

#include <bit>
#include <cstdint>

namespace hotset {

constexpr float kE4m3Max = 448.0F;

// Exact. 0x7f and 0xff give a NaN.
static constexpr float e4m3_to_f32(std::uint8_t code) {
  const std::uint32_t sign = (std::uint32_t{code} & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (magnitude < 8) {
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9F));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));  // 127 - 7
}

// To nearest, ties to even. Beyond +-448, infinities included: +-448. NaN stays NaN; the sign of zero is kept.
// Assumes the default rounding mode. The error is at most 1/16 of the value from 2^-6 to 448, 2^-10 below.
static constexpr std::uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t code = 0;
  if (magnitude > 0x7f800000U) {
    code = 0x7fU;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    code = 0x7eU;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(0x1p-6F)) {
    code = ((magnitude + 0x7ffffU + (magnitude >> 20 & 1U)) >> 20) - (120U << 3);
  } else {
    // Next to 2^14 a float's step is 2^-9: the sum rounds, and its lowest bits count the steps.
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14F) & 0xfU;
  }
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace hotset
