// The instructions of the tensor-core attention kernels: asynchronous copies, matrix fragments, products, conversions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace hotset::kernels::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void store_16(std::uint32_t to, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
// 16 bytes to shared memory; zeros instead when `present` is false (`from` must be a valid address all the same).
__device__ inline void copy_16_async(std::uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until at most kPending of this thread's groups are on their way.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ inline void load_matrices(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
// The other way; sm_90.
__device__ inline void store_matrices(std::uint32_t address, const std::uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(in[0]),
               "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}
// An 8 x 8 matrix of bf16 that lies over the warp (lane / 4: row, 2 (lane % 4): column), transposed.
__device__ inline std::uint32_t transpose_8x8(std::uint32_t rows) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(rows));
  return out;
}

// sum[16, 8] += a[16, 16] b[16, 8].
__device__ inline void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
// What rounding to bf16 left of two numbers, itself rounded: x = bf16(x) + rest within 2^-17 |x|.
__device__ inline std::uint32_t pack_bf16_rest(float low, float high) {
  const float low_rest = low - __bfloat162float(__float2bfloat16_rn(low));
  const float high_rest = high - __bfloat162float(__float2bfloat16_rn(high));
  return pack_bf16(low_rest, high_rest);
}

// Four e4m3 codes as bf16, exactly, times 2^-120: their fields are moved to those of bf16. `even`: codes 0 and 2,
// `odd`: 1 and 3. A NaN code gives a number: such groups have a NaN scale.
__device__ inline void lift_codes(std::uint32_t codes, std::uint32_t& even, std::uint32_t& odd) {
  even = (codes << 8 & 0x80008000U) | (codes << 4 & 0x07f007f0U);
  odd = (codes & 0x80008000U) | (codes >> 4 & 0x07f007f0U);
}
// The power of 2 of a number's exponent; 1 for zero.
__device__ inline float power_of_2_below(float x) {
  const std::uint32_t bits = __float_as_uint(x) & 0x7f800000U;
  return bits == 0 ? 1.0F : __uint_as_float(bits);
}

// Two e4m3 codes, in bits 0-7 and 16-23, as exact bf16: the code's fields moved to bf16's are the value times 2^-120.
// A NaN code gives 480: such groups have a NaN scale.
__device__ inline std::uint32_t e4m3_pair_to_bf16(std::uint32_t codes) {
  const std::uint32_t bits = (codes & 0x00800080U) << 8 | (codes & 0x007f007fU) << 4;
  const std::uint32_t power = 0x7b807b80U;  // 2^120
  const __nv_bfloat162 value =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&power));
  return *reinterpret_cast<const std::uint32_t*>(&value);
}
// Four codes: out[0] the lower two, out[1] the upper two.
__device__ inline void e4m3_to_bf16(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  low = e4m3_pair_to_bf16(__byte_perm(codes, 0, 0x4140));
  high = e4m3_pair_to_bf16(__byte_perm(codes, 0, 0x4342));
}

}  // namespace hotset::kernels::cuda
