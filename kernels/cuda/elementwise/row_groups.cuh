// Rows as groups of eight elements: one 16-byte access of bfloat16, two of float32. A row that is not aligned goes
// element by element, in the same groups, so that sums are the same.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/activation_type.h"

namespace hotset::kernels::cuda {

inline constexpr int kGroup = 8;

struct Group {
  float values[kGroup];
};

[[nodiscard]] constexpr std::int64_t groups_of(std::int64_t width) { return (width + kGroup - 1) / kGroup; }

// Elements [at, at + 8) of a row that ends at `end`; zeros behind it.
template <bool kAligned, class T>
__device__ __forceinline__ Group load_group(const T* row, std::int64_t at, std::int64_t end) {
  Group group;
  if constexpr (kAligned && std::is_same_v<T, float>) {
    const float4 low = *reinterpret_cast<const float4*>(row + at);
    const float4 high = *reinterpret_cast<const float4*>(row + at + 4);
    group = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  } else if constexpr (kAligned) {
    const uint4 bits = *reinterpret_cast<const uint4*>(row + at);
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      group.values[2 * i] = __uint_as_float(words[i] << 16);
      group.values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group.values[i] = at + i < end ? static_cast<float>(row[at + i]) : 0.0F;
  }
  return group;
}

template <bool kAligned, class T>
__device__ __forceinline__ void store_group(T* row, std::int64_t at, std::int64_t end, const Group& group) {
  const float* const v = group.values;
  if constexpr (kAligned && std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(row + at) = {v[0], v[1], v[2], v[3]};
    *reinterpret_cast<float4*>(row + at + 4) = {v[4], v[5], v[6], v[7]};
  } else if constexpr (kAligned) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(v[2 * i]))} |
                 std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(v[2 * i + 1]))} << 16;
    }
    *reinterpret_cast<uint4*>(row + at) = {words[0], words[1], words[2], words[3]};
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (at + i < end) row[at + i] = static_cast<T>(v[i]);
    }
  }
}

// The value as it comes back from memory.
template <class T>
__device__ __forceinline__ float rounded(float value) {
  return static_cast<float>(static_cast<T>(value));
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  return value;
}

// Sum over the threads of a row: blockDim.x of them, one warp or, with blockDim.y = 1, more. All get it.
__device__ __forceinline__ float row_sum(float value) {
  value = warp_sum(value);
  if (blockDim.x == 32) return value;
  __shared__ float sums[32];
  const unsigned lane = threadIdx.x % 32;
  __syncthreads();  // the last sum has been read
  if (lane == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < blockDim.x / 32 ? sums[lane] : 0.0F);
}

__device__ __forceinline__ float square_sum(float sum, const Group& group) {
#pragma unroll
  for (int i = 0; i < kGroup; ++i) sum = __fmaf_rn(group.values[i], group.values[i], sum);
  return sum;
}

// 1 / sqrt(sum / width + epsilon), each step rounded as on the CPU.
__device__ __forceinline__ float norm_factor(float sum, std::int64_t width, float epsilon) {
  return __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(width)), epsilon)));
}

[[nodiscard]] inline bool aligned_rows(const void* data, ActivationType type, std::int64_t stride) {
  const std::int64_t bytes = type == ActivationType::kF32 ? 4 : 2;
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * bytes % 16 == 0;
}

// body(In, Out, aligned) with a value of each type.
template <class Body>
void with_types(ActivationType in, ActivationType out, bool aligned, const Body& body) {
  const auto with_out = [&](auto in_value) {
    const auto with_alignment = [&](auto out_value) {
      if (aligned) {
        body(in_value, out_value, std::true_type{});
      } else {
        body(in_value, out_value, std::false_type{});
      }
    };
    if (out == ActivationType::kF32) {
      with_alignment(float{});
    } else {
      with_alignment(__nv_bfloat16{});
    }
  };
  if (in == ActivationType::kF32) {
    with_out(float{});
  } else {
    with_out(__nv_bfloat16{});
  }
}

}  // namespace hotset::kernels::cuda
