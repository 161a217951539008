#include "core/kv_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/fp8.h"
#include "core/half.h"

namespace hotset {
namespace {

constexpr float kTinyGroup = 0x1p-100F;

void encode_group(const float* x, std::int64_t count, std::byte* codes, std::byte* scale_out) {
  // Magnitudes compare like their bits; infinity and NaN are the largest.
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i) bits = std::max(bits, bits_from_float(x[i]) & 0x7fffffffU);
  const float largest = float_from_bits(bits);
  float scale = 0.0F;
  if (!std::isfinite(largest)) {
    scale = std::numeric_limits<float>::quiet_NaN();
    std::memset(codes, 0x7f, static_cast<std::size_t>(count));
  } else if (largest < kTinyGroup) {
    std::memset(codes, 0, static_cast<std::size_t>(count));
  } else {
    scale = largest / kE4m3Max;
    for (std::int64_t i = 0; i < count; ++i) codes[i] = static_cast<std::byte>(f32_to_e4m3(x[i] / scale));
  }
  std::memcpy(scale_out, &scale, sizeof scale);
}

void encode_plain(const float* x, std::int64_t count, KvDType dtype, std::byte* out) {
  if (dtype == KvDType::kF32) {
    std::memcpy(out, x, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t half = f32_to_bf16(x[i]);
    std::memcpy(out + 2 * i, &half, sizeof half);
  }
}

void decode_plain(const std::byte* from, std::int64_t count, KvDType dtype, float* x) {
  if (dtype == KvDType::kF32) {
    std::memcpy(x, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * i, sizeof half);
    x[i] = bf16_to_f32(half);
  }
}

// One head after the other: no group of channels reaches into the next head.
void encode_heads_fp8(const float* x, std::int64_t heads, std::int64_t dim, std::byte* codes, std::byte* scales) {
  for (std::int64_t head = 0; head < heads; ++head) {
    encode_fp8(x + head * dim, dim, codes + head * dim, scales + head * 4 * fp8_scales(dim));
  }
}
void decode_heads_fp8(const std::byte* codes, const std::byte* scales, std::int64_t heads, std::int64_t dim, float* x) {
  for (std::int64_t head = 0; head < heads; ++head) {
    decode_fp8(codes + head * dim, scales + head * 4 * fp8_scales(dim), dim, x + head * dim);
  }
}

void encode_row_fp8(const KvGeometry& geometry, const float* key, const float* value, std::byte* row) {
  std::memset(row, 0, static_cast<std::size_t>(geometry.row_bytes()));
  std::byte* const key_scales = row + geometry.key_scales_offset_bytes();
  if (geometry.layout == KvGeometry::Layout::kLatent) {
    encode_fp8(key, geometry.value_dim, row, key_scales);
    encode_plain(key + geometry.value_dim, geometry.key_dim - geometry.value_dim, KvDType::kBF16,
                 row + geometry.rope_offset_bytes());
    return;
  }
  encode_heads_fp8(key, geometry.kv_heads, geometry.key_dim, row, key_scales);
  encode_heads_fp8(value, geometry.kv_heads, geometry.value_dim, row + geometry.value_offset_bytes(),
                   row + geometry.value_scales_offset_bytes());
}

}  // namespace

void encode_fp8(const float* x, std::int64_t channels, std::byte* codes, std::byte* scales) {
  for (std::int64_t group = 0; group < fp8_scales(channels); ++group) {
    const std::int64_t at = group * kFp8ScaleChannels;
    encode_group(x + at, std::min(kFp8ScaleChannels, channels - at), codes + at, scales + 4 * group);
  }
}

void decode_fp8(const std::byte* codes, const std::byte* scales, std::int64_t channels, float* x) {
  for (std::int64_t i = 0; i < channels; ++i) {
    float scale;
    std::memcpy(&scale, scales + 4 * (i / kFp8ScaleChannels), sizeof scale);
    x[i] = e4m3_to_f32(static_cast<std::uint8_t>(codes[i])) * scale;
  }
}

void encode_row(const KvGeometry& geometry, const float* key, const float* value, std::byte* row) {
  if (geometry.dtype == KvDType::kFp8) return encode_row_fp8(geometry, key, value, row);
  encode_plain(key, geometry.key_elements(), geometry.dtype, row);
  if (geometry.layout == KvGeometry::Layout::kLatent) return;
  encode_plain(value, geometry.value_elements(), geometry.dtype, row + geometry.value_offset_bytes());
}

void decode_key(const KvGeometry& geometry, const std::byte* row, float* key) {
  if (geometry.dtype != KvDType::kFp8) return decode_plain(row, geometry.key_elements(), geometry.dtype, key);
  const std::byte* const scales = row + geometry.key_scales_offset_bytes();
  if (geometry.layout == KvGeometry::Layout::kGrouped) {
    return decode_heads_fp8(row, scales, geometry.kv_heads, geometry.key_dim, key);
  }
  decode_fp8(row, scales, geometry.value_dim, key);
  decode_plain(row + geometry.rope_offset_bytes(), geometry.key_dim - geometry.value_dim, KvDType::kBF16,
               key + geometry.value_dim);
}

void decode_value(const KvGeometry& geometry, const std::byte* row, float* value) {
  const std::byte* const from = row + geometry.value_offset_bytes();
  if (geometry.dtype != KvDType::kFp8) return decode_plain(from, geometry.value_elements(), geometry.dtype, value);
  decode_heads_fp8(from, row + geometry.value_scales_offset_bytes(), geometry.kv_heads, geometry.value_dim, value);
}

}  // namespace hotset
