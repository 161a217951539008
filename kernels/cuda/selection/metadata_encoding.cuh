// How metadata of single keys is encoded, and where it goes: core/kv_metadata_format.cpp on the device. Shared by the
// launcher of metadata alone and by the launch that writes rows.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/selection/store_metadata.h"

namespace hotset::kernels::cuda {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;

// Where a row's metadata goes; no page: nowhere.
struct MetadataPlace {
  std::byte* page;
  std::int64_t offset;
};
__device__ inline MetadataPlace metadata_place(const MetadataTarget& target, std::int64_t page_bytes,
                                               std::int64_t row) {
  const std::int64_t position = target.positions[row];
  if (position < 0) return {nullptr, 0};
  const std::int64_t page = target.pages[row * target.page_stride + position / kPageTokens];
  return {target.pool + page * page_bytes, position % kPageTokens};
}

// By bits: the sign of NaN stays as on the CPU.
__device__ inline std::uint16_t bf16_below(std::uint32_t bits) {
  if ((bits & 0x7fffffffU) > kInfinityBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  const bool away_from_zero = bits >> 31 != 0 && (bits & 0xffffU) != 0;
  return static_cast<std::uint16_t>((bits >> 16) + (away_from_zero ? 1U : 0U));
}
__device__ inline std::uint16_t bf16_below(float value) { return bf16_below(__float_as_uint(value)); }
__device__ inline std::uint16_t bf16_above(float value) {
  return bf16_below(__float_as_uint(value) ^ 0x80000000U) ^ 0x8000U;
}

// Of the block that position `offset` of a page lies in: the number of the head's first minimum among the page's
// bounds. Maxima lie geometry.dim behind.
__device__ inline std::int64_t first_bound(const MetadataGeometry& geometry, std::int64_t offset, std::int64_t head) {
  return (offset / geometry.block_tokens * geometry.kv_heads + head) * 2 * geometry.dim;
}

// The step of a low-rank key's codes, from the largest magnitude of its numbers, as bits.
struct LowRankStep {
  static constexpr float kMostCode = 7.0F;
  bool nan;
  std::uint16_t bits;  // float16
  float divisor;

  __device__ explicit LowRankStep(std::uint32_t largest_bits) {
    constexpr float kMostF16 = 65504.0F;
    constexpr std::uint16_t kNanF16 = 0x7e00;
    nan = largest_bits > kInfinityBits;
    const float wanted = fminf(__fdiv_rn(__uint_as_float(largest_bits), kMostCode), kMostF16);
    bits = nan ? kNanF16 : __half_as_ushort(__float2half_rn(wanted));
    divisor = __half2float(__ushort_as_half(bits));
  }
  [[nodiscard]] __device__ unsigned code(float value) const {
    if (nan || divisor == 0.0F) return 8U;
    const float rounded = rintf(__fdiv_rn(value, divisor));
    return static_cast<unsigned>(fminf(fmaxf(rounded, -kMostCode), kMostCode) + 8.0F);
  }
};

// A warp quantises the projected key x [rank] of a KV head.
__device__ inline void write_low_rank_key(const MetadataGeometry& geometry, const MetadataPlace& place,
                                          std::int64_t kv_head, const float* x, int lane) {
  const int rank = geometry.rank;
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int i = lane; i < rank; i += 32) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffU);
  const LowRankStep step(__reduce_max_sync(0xffffffffU, bits));
  std::byte* const part = place.page + kv_head * geometry.low_rank_head_bytes();
  auto* const codes = reinterpret_cast<std::uint8_t*>(part) + place.offset * (rank / 2);
#pragma unroll 1  // of most ranks one turn
  for (int i = lane; i < rank / 2; i += 32) {
    codes[i] = static_cast<std::uint8_t>(step.code(x[2 * i]) | step.code(x[2 * i + 1]) << 4);
  }
  if (lane == 0) reinterpret_cast<std::uint16_t*>(part + kPageTokens * (rank / 2))[place.offset] = step.bits;
}

}  // namespace hotset::kernels::cuda
