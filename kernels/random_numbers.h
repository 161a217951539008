// Numbers of a dummy matrix: uniform, mean 0, from a seed and a number for each element, so that every backend makes
// the same ones, in any order, on its own device. Rounded as those of a checkpoint are: to bfloat16, or to E4M3.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fp8.h"
#include "core/splitmix.h"

namespace hotset::kernels {

constexpr float kSqrt3 = 1.7320508F;  // uniform numbers between +- it have the standard deviation 1

// Row r, column c of a matrix is number
//   first + r / group_rows * group_step + r % group_rows * row_step + c * col_step
// of the seed, so that one matrix may be a part of another one, or transposed.
struct RandomNumbers {
  std::uint64_t seed = 0;
  float deviation = 1.0F;  // standard deviation
  std::int64_t first = 0;
  std::int64_t group_rows = 1;
  std::int64_t group_step = 0;
  std::int64_t row_step = 0;
  std::int64_t col_step = 1;
  // To E4M3 where the backend keeps such a matrix in FP8 (DenseBackend::takes_fp8()), else to bfloat16.
  bool fp8 = false;

  [[nodiscard]] constexpr std::int64_t number(std::int64_t row, std::int64_t col) const {
    return first + row / group_rows * group_step + row % group_rows * row_step + col * col_step;
  }
  // Of every block in FP8: the largest number is the largest code.
  [[nodiscard]] constexpr float fp8_scale() const { return deviation * kSqrt3 / kE4m3Max; }
};

// Number r * cols + c at row r, column c.
[[nodiscard]] constexpr RandomNumbers random_rows(std::uint64_t seed, float deviation, std::int64_t cols) {
  return {.seed = seed, .deviation = deviation, .group_step = cols};
}

// What a device needs to make them; exact but for one product, so the same bits everywhere.
class RandomMaker {
 public:
  explicit RandomMaker(const RandomNumbers& numbers)
      : state_(splitmix64(numbers.seed)), scale_(numbers.deviation * kSqrt3 * 0x1p-23F) {}
  // Before it is rounded to bfloat16.
  [[nodiscard]] constexpr float operator()(std::int64_t number) const { return uniform(number) * scale_; }
  // Divided by fp8_scale(), before it is rounded to E4M3.
  [[nodiscard]] constexpr float fp8(std::int64_t number) const { return uniform(number) * (kE4m3Max * 0x1p-23F); }

 private:
  [[nodiscard]] constexpr float uniform(std::int64_t number) const {
    const std::uint64_t bits = splitmix64(state_ + static_cast<std::uint64_t>(number) * kSplitmixStep);
    return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (std::int32_t{1} << 23));
  }

  std::uint64_t state_;
  float scale_;
};

// [rows, cols] as bfloat16 bits.
[[nodiscard]] std::vector<std::uint16_t> random_matrix_bits(const RandomNumbers& numbers, std::int64_t rows,
                                                            std::int64_t cols);
// As E4M3 codes, all with fp8_scale().
[[nodiscard]] std::vector<std::uint8_t> random_matrix_codes(const RandomNumbers& numbers, std::int64_t rows,
                                                            std::int64_t cols);

}  // namespace hotset::kernels
