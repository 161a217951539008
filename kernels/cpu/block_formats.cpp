#include "kernels/cpu/block_formats.h"

#include "core/check.h"
#include "core/half.h"

namespace hotset::kernels {
namespace {

const std::uint8_t* as_bytes(const std::byte* bytes) { return reinterpret_cast<const std::uint8_t*>(bytes); }

float read_f16(const std::uint8_t* bytes) { return f16_to_f32(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8)); }

// 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.
void read_nibbles(const std::uint8_t* packed, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = packed[i] & 15U;
    codes[i + 16] = packed[i] >> 4;
  }
}

// {f16 d, 16 bytes}: value = d * (code - 8).
void read_q4_0(const std::uint8_t* bytes, AffineBlock& block) {
  block.scales[0] = read_f16(bytes);
  block.offsets[0] = -8.0F * block.scales[0];
  read_nibbles(bytes + 2, block.codes);
}

// {f16 d, f16 m, 16 bytes}: value = d * code + m.
void read_q4_1(const std::uint8_t* bytes, AffineBlock& block) {
  block.scales[0] = read_f16(bytes);
  block.offsets[0] = read_f16(bytes + 2);
  read_nibbles(bytes + 4, block.codes);
}

// {f16 d, 32 signed bytes}: value = d * q.
void read_q8_0(const std::uint8_t* bytes, AffineBlock& block) {
  block.scales[0] = read_f16(bytes);
  block.offsets[0] = -128.0F * block.scales[0];
  for (int i = 0; i < 32; ++i) block.codes[i] = bytes[2 + i] ^ 0x80U;
}

// Q4_K and Q5_K: {f16 d, f16 dmin, 12 bytes of eight 6-bit scales and eight 6-bit minimums, ...};
// value = d * scale * code - dmin * minimum, in groups of 32.
void read_k_scales(const std::uint8_t* bytes, AffineBlock& block) {
  const float d = read_f16(bytes);
  const float dmin = read_f16(bytes + 2);
  const std::uint8_t* packed = bytes + 4;
  for (int j = 0; j < 8; ++j) {
    unsigned scale = packed[j] & 63U;
    unsigned minimum = packed[j + 4] & 63U;
    if (j >= 4) {
      scale = (packed[j + 4] & 15U) | (packed[j - 4] >> 6) << 4;
      minimum = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
    }
    block.scales[j] = d * static_cast<float>(scale);
    block.offsets[j] = -(dmin * static_cast<float>(minimum));
  }
}

// Four runs of 32 bytes; a run's low nibbles are one group of 32, its high nibbles the next.
void read_k_nibbles(const std::uint8_t* packed, std::uint8_t* codes) {
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < 32; ++i) {
      codes[64 * run + i] = packed[32 * run + i] & 15U;
      codes[64 * run + 32 + i] = packed[32 * run + i] >> 4;
    }
  }
}

void read_q4_k(const std::uint8_t* bytes, AffineBlock& block) {
  read_k_scales(bytes, block);
  read_k_nibbles(bytes + 16, block.codes);
}

// As Q4_K, with the fifth bit of group j in bit j of 32 bytes before the nibbles.
void read_q5_k(const std::uint8_t* bytes, AffineBlock& block) {
  read_k_scales(bytes, block);
  read_k_nibbles(bytes + 48, block.codes);
  for (int i = 0; i < 256; ++i) {
    const unsigned high = bytes[16 + i % 32] >> (i / 32) & 1U;
    block.codes[i] = static_cast<std::uint8_t>(block.codes[i] | high << 4);
  }
}

// {128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales, f16 d}: value = d * scale * (code - 32), in
// groups of 16. Each half of 128 elements: quarter 0 and 2 share 32 bytes of nibbles, quarter 1 and 3 the next 32.
void read_q6_k(const std::uint8_t* bytes, AffineBlock& block) {
  const float d = read_f16(bytes + 208);
  for (int j = 0; j < 16; ++j) {
    block.scales[j] = d * static_cast<float>(static_cast<std::int8_t>(bytes[192 + j]));
    block.offsets[j] = -32.0F * block.scales[j];
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int quarter = i % 128 / 32;
    const unsigned low = bytes[64 * half + 32 * (quarter % 2) + i % 32] >> (4 * (quarter / 2)) & 15U;
    const unsigned high = bytes[128 + 32 * half + i % 32] >> (2 * quarter) & 3U;
    block.codes[i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

}  // namespace

AffineFormat affine_format(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ4_K: return {4, 32};
    case WeightType::kQ8_0:
    case WeightType::kQ5_K: return {8, 32};
    case WeightType::kQ6_K: return {8, 16};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kFp8Block: break;
  }
  return {};
}

void read_block(WeightType type, const std::byte* bytes, AffineBlock& block) {
  switch (type) {
    case WeightType::kQ4_0: return read_q4_0(as_bytes(bytes), block);
    case WeightType::kQ4_1: return read_q4_1(as_bytes(bytes), block);
    case WeightType::kQ8_0: return read_q8_0(as_bytes(bytes), block);
    case WeightType::kQ4_K: return read_q4_k(as_bytes(bytes), block);
    case WeightType::kQ5_K: return read_q5_k(as_bytes(bytes), block);
    case WeightType::kQ6_K: return read_q6_k(as_bytes(bytes), block);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kFp8Block: break;
  }
  HS_CHECK(false, "not a quantised format");
}

}  // namespace hotset::kernels
