#include "kernels/random_numbers.h"

#include "core/fp8.h"
#include "core/half.h"

namespace hotset::kernels {

std::vector<std::uint16_t> random_matrix_bits(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols) {
  const RandomMaker maker(numbers);
  std::vector<std::uint16_t> out;
  out.reserve(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) out.push_back(f32_to_bf16(maker(numbers.number(row, col))));
  }
  return out;
}

std::vector<std::uint8_t> random_matrix_codes(const RandomNumbers& numbers, std::int64_t rows, std::int64_t cols) {
  const RandomMaker maker(numbers);
  std::vector<std::uint8_t> out;
  out.reserve(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) out.push_back(f32_to_e4m3(maker.fp8(numbers.number(row, col))));
  }
  return out;
}

}  // namespace hotset::kernels
