#include "model/float_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace hotset::model {

float half_to_float(std::uint16_t bits) {
  const bool negative = (bits & 0x8000) != 0;
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  float value = 0.0F;
  if (exponent == 31) {
    value = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return negative ? -value : value;
}

float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

std::optional<std::vector<float>> to_float32(kernels::WeightType type, std::span<const std::byte> data) {
  using kernels::WeightType;
  if (type == WeightType::kF32) {
    std::vector<float> out(data.size() / sizeof(float));
    if (!out.empty()) std::memcpy(out.data(), data.data(), out.size() * sizeof(float));
    return out;
  }
  if (type != WeightType::kF16 && type != WeightType::kBF16) return std::nullopt;
  std::vector<float> out(data.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, data.data() + 2 * i, sizeof bits);
    out[i] = type == WeightType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
  return out;
}

}  // namespace hotset::model
