// Numbers of a dummy matrix, made on the device: the bits of random_matrix_bits() and random_matrix_codes()
// (kernels/random_numbers.h).
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

struct RandomFp8FillParams {
  RandomNumbers numbers;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint8_t* codes = nullptr;  // [rows, cols] e4m3; the device's
  float* scales = nullptr;        // [scale_count]: fp8_scale() in all of them
  std::int64_t scale_count = 0;
};

void launch_random_fp8_fill(const RandomFp8FillParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
