// How numbers are written into rows of the KV cache: the one definition, which every backend follows bit for bit.
// core/kv_geometry.h says where they lie.
//
// - f32: as they are. bf16: rounded to nearest even, |x - x'| <= |x| / 256 (from 2^-126 on); NaN stays NaN, values
//   beyond the largest become infinite.
// - FP8: per group of kFp8ScaleChannels channels of one head (the last group may be smaller)
//     scale = max|x| / 448, any float32 (not a power of two);   code = e4m3(x / scale);   x' = e4m3 value * scale,
//   each operation rounded once in float32. So, with m = max|x| of the group,
//     |x - x'| <= max(|x| / 16, m / 458752) (1 + 2^-20)
//   from e4m3's 3 mantissa bits (2^-4) and its smallest step (2^-9, half of it is scale / 1024). Nothing saturates.
//   m < 2^-100 (zeros too): scale 0 and codes 0, which decode to 0; x / scale would lose digits.
//   NaN or infinity: the whole group decodes to NaN (scale NaN, codes 0x7f), all other groups stay as they are. So a
//   poisoned row shows as NaN to those who read it, never as a plausible number.
//
// Rows are encoded from float32 that nothing has rounded before. Padding is written as zeros: equal inputs give equal
// bytes. Rows need no alignment here. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"

namespace hotset {

// codes [channels] bytes, scales [fp8_scales(channels)] float32; neither needs alignment.
void encode_fp8(const float* x, std::int64_t channels, std::byte* codes, std::byte* scales);
void decode_fp8(const std::byte* codes, const std::byte* scales, std::int64_t channels, float* x);

// key [kv_heads * key_dim]; value [kv_heads * value_dim], not read in latent rows; row: geometry.row_bytes().
void encode_row(const KvGeometry& geometry, const float* key, const float* value, std::byte* row);

// key [kv_heads * key_dim], value [kv_heads * value_dim]; a latent row's value is its key's first channels.
void decode_key(const KvGeometry& geometry, const std::byte* row, float* key);
void decode_value(const KvGeometry& geometry, const std::byte* row, float* value);

}  // namespace hotset
