// Groups of 8 channels, one for each lane of a head, written into a row.
#pragma once

#include "kernels/cuda/attention/row_encoding.cuh"
#include "kernels/cuda/elementwise/rotary_heads.cuh"
#include "kernels/cuda/new_rows.h"
#include "kernels/cuda/rows/row_places.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kGroupsOfScale = static_cast<int>(kFp8ScaleChannels) / kGroup;

// Row `at`: its position and its address in the pool; padding has none. The table is on its way with the position.
struct NewRow {
  std::int64_t position;
  std::byte* target;
};
__device__ inline NewRow new_row_at(const NewRowTargets& targets, std::int64_t at, std::int64_t row_bytes) {
  const HotRow table = targets.tables[at * targets.table_stride];
  const std::int64_t position = targets.positions[at];
  if (position < 0) return {position, nullptr};
  return {position, targets.pool + new_row(table, position) * row_bytes};
}

// body(std::integral_constant<KvDType, ...>)
template <class Body>
void with_row_type(KvDType dtype, const Body& body) {
  switch (dtype) {
    case KvDType::kF32: return body(std::integral_constant<KvDType, KvDType::kF32>{});
    case KvDType::kBF16: return body(std::integral_constant<KvDType, KvDType::kBF16>{});
    case KvDType::kFp8: return body(std::integral_constant<KvDType, KvDType::kFp8>{});
  }
}

// 4-byte aligned.
__device__ inline void write_bf16(std::byte* to, const Group& group) {
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = std::uint32_t{round_to_bf16(group.values[2 * i])} | std::uint32_t{round_to_bf16(group.values[2 * i + 1])}
                                                                       << 16;
  }
  if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = words[i];
}

// A group of 128 channels shares a scale; all lanes of the head call it.
template <int kLanes>
__device__ void write_fp8(const HeadLanes<kLanes>& lanes, std::byte* codes, std::byte* scales, std::int32_t at,
                          std::int32_t dim, const Group& group) {
  constexpr int kScaleLanes = kLanes < kGroupsOfScale ? kLanes : kGroupsOfScale;
  std::uint32_t bits = 0;
  if (at < dim) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) bits = max(bits, magnitude_bits(group.values[i]));
  }
#pragma unroll
  for (int step = kScaleLanes / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(lanes.mask, bits, step));
  if (at >= dim) return;
  const Fp8Group scaled(bits);
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kGroup; ++i) words[i / 4] |= std::uint32_t{scaled.code(group.values[i])} << (8 * (i % 4));
  *reinterpret_cast<uint2*>(codes + at) = make_uint2(words[0], words[1]);
  if (lanes.lane % kScaleLanes == 0) {
    *reinterpret_cast<float*>(scales + 4 * (at / static_cast<int>(kFp8ScaleChannels))) = scaled.scale;
  }
}

// Channels [at, at + 8) of a head for every lane with at < dim; all lanes of the head call it, with lane-contiguous
// `at`. `codes`: of channel 0 of the head in the row; `scales`: the head's, kFp8 only.
template <KvDType kDType, int kLanes>
__device__ void write_group(const HeadLanes<kLanes>& lanes, std::byte* codes, std::byte* scales, std::int32_t at,
                            std::int32_t dim, const Group& group) {
  if constexpr (kDType == KvDType::kF32) {
    if (at < dim) store_group<true>(reinterpret_cast<float*>(codes), at, dim, group);
  } else if constexpr (kDType == KvDType::kBF16) {
    if (at < dim) write_bf16(codes + 2 * at, group);
  } else {
    write_fp8(lanes, codes, scales, at, dim, group);
  }
}

}  // namespace hotset::kernels::cuda
