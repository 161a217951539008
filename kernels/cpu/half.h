#pragma once

#include "core/half.h"

namespace hotset::kernels {
using hotset::bf16_to_f32;
using hotset::bits_from_float;
using hotset::f16_to_f32;
using hotset::f32_to_bf16;
using hotset::f32_to_f16_exact;
using hotset::float_from_bits;
}  // namespace hotset::kernels
