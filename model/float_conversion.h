// Small tensors of a file as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace hotset::model {

[[nodiscard]] float half_to_float(std::uint16_t bits);      // IEEE binary16
[[nodiscard]] float bfloat16_to_float(std::uint16_t bits);  // the upper half of a float32

// nullopt: a block format. `data` may have any alignment.
[[nodiscard]] std::optional<std::vector<float>> to_float32(kernels::WeightType type, std::span<const std::byte> data);

}  // namespace hotset::model
