// Tensors of a file as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace hotset::model {

// nullopt: a block format. `data` may have any alignment.
[[nodiscard]] std::optional<std::vector<float>> to_float32(kernels::WeightType type, std::span<const std::byte> data);

// [rows, cols] E4M3 codes times the scale of their block of 128 x 128, as bytes of float32. `scales`:
// [ceil(rows / 128), ceil(cols / 128)]; the last row and column of blocks may be partial. NaN codes stay NaN.
[[nodiscard]] std::vector<std::byte> fp8_to_float32(std::span<const std::byte> codes, std::int64_t rows,
                                                    std::int64_t cols, std::span<const float> scales);

}  // namespace hotset::model
