// y = x W^T for few rows of x, as decode steps have them: the weights are read once, at the memory's bandwidth, by a
// kernel of our own (Hopper). Its first copies of weights are under way before the kernels ahead of it in the stream
// have ended: nothing but copies that were waited for may write weights (programmatic dependent launch).
//
// A row's bits depend on its own x, the weights, n and k: they are the same for every m that is taken here, in every
// place, on any grid. bfloat16: exact products, float32 sums of the tensor cores: two of a warp, over all its pieces of
// 128 of k, added; then the warps in order. float32: fused multiply-adds in float32.
#pragma once

#include "kernels/cuda/matmul.h"

namespace hotset::kernels::cuda {

inline constexpr std::int64_t kMostFewRows = 16;    // bfloat16
inline constexpr std::int64_t kMostFewRowsF32 = 8;  // float32

// Whether launch_few_rows() multiplies such a shape on the current device: a Hopper; rows of W of a multiple of 128
// bytes, strides and steps of x and W that are multiples of 16.
[[nodiscard]] bool few_rows_takes(const MatmulShape& shape);

// The strides are not 0. No workspace. `tiles`: of 16 channels that a block multiplies at once, 1 or 2; 0: as measured
// to be best; the bits are the same.
void launch_few_rows(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles = 0);

}  // namespace hotset::kernels::cuda
