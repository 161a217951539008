// FP8 weights and rows as the device kernels take them, with what they stand for.
#pragma once

#include <algorithm>
#include <vector>

#include "core/fp8.h"
#include "tests/kernels/kernel_fixture.h"

namespace hotset::kernels::cuda {

// Random codes and scales for each 128 x 128.
struct Fp8Weight {
  std::int64_t rows, cols;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;  // [ceil(rows / 128)][cols / 128]

  Fp8Weight(std::int64_t rows_given, std::int64_t cols_given, Random& random) : rows(rows_given), cols(cols_given) {
    for (std::int64_t i = 0; i < rows * cols; ++i) codes.push_back(f32_to_e4m3(100.0F * random.normal()));
    for (std::int64_t i = 0; i < (rows + 127) / 128 * (cols / 128); ++i) {
      scales.push_back(static_cast<float>(random.uniform(0.5, 1.5)) * 1e-3F);
    }
  }
  [[nodiscard]] double value(std::int64_t row, std::int64_t col) const {
    return double{e4m3_to_f32(codes[static_cast<std::size_t>(row * cols + col)])} *
           double{scales[static_cast<std::size_t>(row / 128 * (cols / 128) + col / 128)]};
  }
};

// One row as launch_quantised_copies() rounds it.
inline std::vector<double> quantised(const std::vector<float>& row) {
  std::vector<double> out(row.size());
  for (std::size_t first = 0; first < row.size(); first += 128) {
    float largest = 0.0F;
    for (std::size_t i = first; i < first + 128; ++i) largest = std::max(largest, std::abs(row[i]));
    const float scale = largest / kE4m3Max;
    for (std::size_t i = first; i < first + 128; ++i) {
      out[i] = scale == 0.0F ? 0.0 : double{e4m3_to_f32(f32_to_e4m3(row[i] / scale))} * double{scale};
    }
  }
  return out;
}

}  // namespace hotset::kernels::cuda
