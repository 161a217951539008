// How single numbers of a row are encoded, as core/kv_format.cpp does it.
#pragma once

#include "kernels/cuda/attention/row_view.cuh"

namespace hotset::kernels::cuda {

__device__ inline std::uint16_t round_to_bf16(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

// Of the magnitudes of a group's numbers, which compare like their bits; infinity and NaN are the largest.
__device__ inline std::uint32_t magnitude_bits(float value) { return __float_as_uint(value) & 0x7fffffffU; }

// A scale group, from its largest magnitude_bits.
struct Fp8Group {
  bool finite, tiny;
  float scale;

  __device__ explicit Fp8Group(std::uint32_t largest_bits) {
    constexpr float kTinyGroup = 0x1p-100F;
    const float largest = __uint_as_float(largest_bits);
    finite = largest_bits < 0x7f800000U;
    tiny = finite && largest < kTinyGroup;
    scale = !finite ? __uint_as_float(0x7fc00000U) : tiny ? 0.0F : __fdiv_rn(largest, kE4m3Max);
  }
  [[nodiscard]] __device__ std::uint8_t code(float value) const {
    return !finite ? 0x7f : tiny ? 0 : f32_to_e4m3(__fdiv_rn(value, scale));
  }
};

// Bytes of an FP8 row that belong to no group: `lanes` lanes share them.
__device__ inline void clear_padding(const RowView& view, std::byte* row, int lane, int lanes) {
  const std::int64_t codes =
      view.latent ? view.value_dim : std::int64_t{view.kv_heads} * (view.key_dim + view.value_dim);
  const std::int64_t end = view.latent ? view.rope_offset + 2 * (std::int64_t{view.key_dim} - view.value_dim)
                                       : view.value_scales_offset + 4 * std::int64_t{view.value_scales} * view.kv_heads;
  for (std::int64_t at = codes + lane; at < view.key_scales_offset; at += lanes) row[at] = std::byte{0};
  for (std::int64_t at = end + lane; at < view.row_bytes; at += lanes) row[at] = std::byte{0};
}

}  // namespace hotset::kernels::cuda
