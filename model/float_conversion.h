// Small tensors of a file as float32.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace hotset::model {

// nullopt: a block format. `data` may have any alignment.
[[nodiscard]] std::optional<std::vector<float>> to_float32(kernels::WeightType type, std::span<const std::byte> data);

}  // namespace hotset::model
