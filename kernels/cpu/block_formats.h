// Reads the blocks of quantised GGUF formats in one common form: value[i] = scale[i / group] * code[i] + offset[i /
// group] with an unsigned code. Scale and offset are exact in float32: they are products of an f16 (11 bits) and at
// most 8 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"

namespace hotset::kernels {

struct AffineFormat {
  int code_bits = 0;  // 4 or 8; 0 for the float formats
  int group = 0;      // elements that share a scale: 32 or 16
};
[[nodiscard]] AffineFormat affine_format(WeightType type);

inline constexpr int kMaxBlockElements = 256;

struct AffineBlock {
  std::uint8_t codes[kMaxBlockElements];
  float scales[kMaxBlockElements / 16];
  float offsets[kMaxBlockElements / 16];
};

// `bytes`: block_format(type).bytes of one block. Quantised types only.
void read_block(WeightType type, const std::byte* bytes, AffineBlock& block);

}  // namespace hotset::kernels
