// Element types of activations on the device.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

enum class ActivationType : std::uint8_t { kF32, kBF16 };

}  // namespace hotset::kernels::cuda
