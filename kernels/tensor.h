// Element and block formats of weights, and views of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hotset::kernels {

// File formats of a weight. Quantised formats are the GGUF ones, blocks along the last (input) dimension, and
// kFp8Block: E4M3 codes with a scale for each 128 x 128 (the constant kFp8Block, DeepSeek's FP8), which only backends
// that say so take (DenseBackend::takes_fp8()).
enum class WeightType { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kFp8Block };

inline constexpr std::int64_t kFp8Block = 128;  // rows, and columns, that share a scale in FP8

struct BlockFormat {
  std::int32_t elements;  // of one block
  std::int32_t bytes;     // of one block
};
[[nodiscard]] constexpr BlockFormat block_format(WeightType type) {
  switch (type) {
    case WeightType::kF32: return {1, 4};
    case WeightType::kF16: return {1, 2};
    case WeightType::kBF16: return {1, 2};
    case WeightType::kQ4_0: return {32, 18};
    case WeightType::kQ4_1: return {32, 20};
    case WeightType::kQ8_0: return {32, 34};
    case WeightType::kQ4_K: return {256, 144};
    case WeightType::kQ5_K: return {256, 176};
    case WeightType::kQ6_K: return {256, 210};
    case WeightType::kFp8Block: return {1, 1};  // without the scales
  }
  return {0, 0};
}

// A matrix as it lies in a file: `rows` output channels of `cols` inputs, row-major, no padding. cols is a multiple of
// the block's elements and `data` holds exactly rows * cols / elements * bytes (the readers have checked both).
struct MatrixView {
  WeightType type = WeightType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::span<const std::byte> data;
  std::span<const float> scales;  // kFp8Block: [ceil(rows / kFp8Block), ceil(cols / kFp8Block)]; no code is NaN
};

}  // namespace hotset::kernels
