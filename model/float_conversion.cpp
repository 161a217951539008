#include "model/float_conversion.h"

#include <array>
#include <cstring>

#include "core/fp8.h"
#include "core/half.h"

namespace hotset::model {

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
    out[i] = type == WeightType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return out;
}

std::vector<std::byte> fp8_to_float32(std::span<const std::byte> codes, std::int64_t rows, std::int64_t cols,
                                      std::span<const float> scales) {
  static constexpr auto kValues = [] {
    std::array<float, 256> values{};
    for (std::size_t code = 0; code < values.size(); ++code)
      values[code] = e4m3_to_f32(static_cast<std::uint8_t>(code));
    return values;
  }();
  const std::int64_t blocks = (cols + kernels::kFp8Block - 1) / kernels::kFp8Block;
  std::vector<std::byte> out(codes.size() * sizeof(float));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto index = static_cast<std::size_t>(row * cols + col);
      const float scale =
          scales[static_cast<std::size_t>(row / kernels::kFp8Block * blocks + col / kernels::kFp8Block)];
      const float value = kValues[std::to_integer<std::size_t>(codes[index])] * scale;
      std::memcpy(&out[index * sizeof value], &value, sizeof value);
    }
  }
  return out;
}

}  // namespace hotset::model
