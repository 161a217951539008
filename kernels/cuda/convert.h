// Rows copied from one element type or distance to another on the device. float32 to bfloat16 rounds to nearest even.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's; strides in elements, 0: the width. Rows of the two do not overlap.
struct ConvertRowsParams {
  const void* in = nullptr;  // [rows, width] of in_type
  ActivationType in_type = ActivationType::kF32;
  std::int64_t in_stride = 0;
  void* out = nullptr;  // [rows, width] of out_type
  ActivationType out_type = ActivationType::kF32;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

void launch_convert_rows(const ConvertRowsParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
