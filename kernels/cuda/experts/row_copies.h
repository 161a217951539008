// Copies of rows in the type that a product reads, to where each row's experts find them.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// Device pointers, rows on 16 bytes.
struct RowCopies {
  const void* x = nullptr;  // [rows][width] of x_type
  ActivationType x_type = ActivationType::kF32;
  std::int64_t x_stride = 0;  // elements
  std::int64_t rows = 0;
  std::int64_t width = 0;  // a multiple of 4
  // [rows][copies]: the rows of out that row r is written to, negative: none. Null: row r.
  const std::int32_t* places = nullptr;
  int copies = 1;
  const std::int32_t* count = nullptr;  // null, or how many rows there are: those from there on are left out
  void* out = nullptr;                  // [*][width]
  float* scales = nullptr;              // [width / 128][scale_stride], launch_quantised_copies() only
  std::int64_t scale_stride = 0;
};

// Without a change, or rounded to nearest even.
void launch_row_copies(const RowCopies& params, ActivationType out_type, Stream stream);

// e4m3 with a scale for each row and 128 channels: largest magnitude / 448; code = e4m3(x / scale), 0 where the scale
// is. width: a multiple of 128. A NaN or an infinity makes its 128 channels NaN or 0.
void launch_quantised_copies(const RowCopies& params, Stream stream);

}  // namespace hotset::kernels::cuda
