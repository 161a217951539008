// Numbers of a dummy matrix, made on the device: the bits of random_matrix_bits() (kernels/random_numbers.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"
#include "kernels/random_numbers.h"

namespace hotset::kernels::cuda {

struct RandomFillParams {
  RandomNumbers numbers;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  void* out = nullptr;  // [rows, cols] of type; the device's. float32: the bfloat16 number, widened
  ActivationType type = ActivationType::kF32;
};

void launch_random_fill(const RandomFillParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
