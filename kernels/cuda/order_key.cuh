// The order of scores as unsigned numbers: NaN is minus infinity, -0 is +0. As kernels/cpu/top_k.cpp.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

// 0x007fffff (minus infinity) is the smallest that a score gives: 0 is free to mean "no score".
__device__ __forceinline__ std::uint32_t order_key(float score) {
  std::uint32_t bits = __float_as_uint(score);
  bits = (bits & 0x7fffffffU) > 0x7f800000U ? 0xff800000U : bits;
  bits = bits == 0x80000000U ? 0U : bits;
  return bits ^ ((bits >> 31) != 0U ? 0xffffffffU : 0x80000000U);
}

}  // namespace hotset::kernels::cuda
