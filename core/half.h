// float16 and bfloat16 <-> float32, without instructions that a plain processor lacks.
// `static`: each file keeps its own copy, so that code compiled for AVX never ends up in a plain path.
#pragma once

#include <cstdint>

namespace hotset {

static inline float float_from_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
static inline std::uint32_t bits_from_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = (std::uint32_t{half} & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  if (magnitude >= 0x7c00U) {
    const std::uint32_t quiet = magnitude > 0x7c00U ? 0x00400000U : 0U;
    return float_from_bits(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13 | quiet);
  }
  // Shifted, the exponent is too small by 112; the product makes up for it, and normalises subnormals on the way.
  return float_from_bits(sign | bits_from_float(float_from_bits(magnitude << 13) * 0x1p112F));
}

// Rounds towards zero; only for values that f16 holds exactly (packed_matrix.cpp checks by converting back).
static inline std::uint16_t f32_to_f16_exact(float value) {
  const std::uint32_t bits = bits_from_float(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  return static_cast<std::uint16_t>(sign | bits_from_float(float_from_bits(magnitude) * 0x1p-112F) >> 13);
}

static inline float bf16_to_f32(std::uint16_t value) { return float_from_bits(std::uint32_t{value} << 16); }

// To nearest, ties to even; NaN stays NaN.
static inline std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = bits_from_float(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace hotset
