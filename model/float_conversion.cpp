#include "model/float_conversion.h"

#include <cstring>

#include "kernels/cpu/half.h"

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
    out[i] = type == WeightType::kF16 ? kernels::f16_to_f32(bits) : kernels::bf16_to_f32(bits);
  }
  return out;
}

}  // namespace hotset::model
