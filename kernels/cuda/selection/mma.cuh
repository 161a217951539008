// Tensor core products of 16 x 8 x 32 or 16 bytes, unsigned times signed, as thin names over PTX.
// Fragments of a lane, with row = lane / 4 and four = lane % 4: a[0], a[1]: rows `row` and `row + 8`, columns 4 four to
// 4 four + 3; a[2], a[3] (x 32): the same, columns 16 on. b[0], b[1]: column `row`, the same rows of k. c[0], c[1]: row
// `row`, columns 2 four and the next; c[2], c[3]: row + 8. The order of k may be any, if it is the same in a and b.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

__device__ __forceinline__ void mma_u8_s8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                          std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_u8_s8(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

}  // namespace hotset::kernels::cuda
