// Tensor core products of 16 x 8 x 16, as thin names over PTX.
// Fragments of a lane, with row = lane / 4 and pair = lane % 4: a[0], a[1]: rows `row` and `row + 8`, columns 2 pair
// and the next; a[2], a[3]: the same, columns 8 on. b[0], b[1]: column `row`, the same rows of k. c[0], c[1]: row
// `row`, columns 2 pair and the next; c[2], c[3]: row + 8. The order of k may be any, if it is the same in a and b.
#pragma once

#include <cstdint>

namespace hotset::kernels::cuda {

__device__ __forceinline__ void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace hotset::kernels::cuda
