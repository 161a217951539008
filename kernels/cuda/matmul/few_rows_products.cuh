// Products of few_rows.cuh: an item in shared memory, multiplied and added to the sums of a warp's lanes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/matmul/few_rows_form.cuh"

namespace hotset::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void multiply_16x8(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes of a line of 128 in a slot, as the copies swizzle them.
__device__ __forceinline__ const uint4& chunk_of(const unsigned char* lines, int line, int chunk) {
  return *reinterpret_cast<const uint4*>(lines + line * 128 + ((chunk ^ (line & 7)) * 16));
}
__device__ __forceinline__ std::uint32_t rounded_pair(std::uint32_t low, std::uint32_t high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(__uint_as_float(low), __uint_as_float(high));
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// Eight elements of k of a token, in bfloat16: chunk `chunk` of W's line `line`.
template <class Form>
__device__ __forceinline__ uint4 token_chunk(const unsigned char* x, int m, int token, int line, int chunk) {
  if constexpr (Form::kWide) {
    const int at = (2 * line + chunk / 4) * m + token;
    const uint4 low = chunk_of(x, at, chunk % 4 * 2);
    const uint4 high = chunk_of(x, at, chunk % 4 * 2 + 1);
    return make_uint4(rounded_pair(low.x, low.y), rounded_pair(low.z, low.w), rounded_pair(high.x, high.y),
                      rounded_pair(high.z, high.w));
  } else {
    return chunk_of(x, line * m + token, chunk);
  }
}

// Sums of a lane, row = lane / 4, token = lane % 4 * 2: [.][.][0 ... 3] are (row, token), (row, token + 1),
// (row + 8, token), (row + 8, token + 1).
template <class Form>
using TileSums = float[Form::kTiles][Form::kTokenTiles][4];

// Two sets that are added up in the end: half as many products that wait for one another.
template <class Form>
struct ProductSums {
  TileSums<Form> halves[2];
};

template <class Form>
__device__ __forceinline__ void multiply_item(ProductSums<Form>& sums, const unsigned char* item, int m, int lane) {
  const int row = lane / 4;
#pragma unroll
  for (int step = 0; step < 2 * Form::kLines; ++step) {
    const int line = step / 2;
    const int chunk = lane % 4 * 2 + step % 2;
    uint4 x[Form::kTokenTiles];
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
      x[j] = token_chunk<Form>(item + Form::kWeightBytes, m, 8 * j + row, line, chunk);
    }
#pragma unroll
    for (int tile = 0; tile < Form::kTiles; ++tile) {
      const int first = (line * Form::kTiles + tile) * 16 + row;
      const uint4 low = chunk_of(item, first, chunk);
      const uint4 high = chunk_of(item, first + 8, chunk);
#pragma unroll
      for (int j = 0; j < Form::kTokenTiles; ++j) {
        multiply_16x8(sums.halves[0][tile][j], low.x, high.x, low.y, high.y, x[j].x, x[j].y);
        multiply_16x8(sums.halves[1][tile][j], low.z, high.z, low.w, high.w, x[j].z, x[j].w);
      }
    }
  }
}

template <class Form>
__device__ __forceinline__ void finish_sums(const ProductSums<Form>& from, TileSums<Form>& sums, int) {
#pragma unroll
  for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][j][i] = from.halves[0][tile][j][i] + from.halves[1][tile][j][i];
    }
  }
}

// float32: a lane sums a quarter of k for rows `row`, `row + 8` and eight tokens.
template <class Form>
struct LaneSums {
  float parts[Form::kTiles][2][8];
};

__device__ __forceinline__ float add_products(float sum, uint4 w, uint4 x) {
  sum = fmaf(__uint_as_float(w.x), __uint_as_float(x.x), sum);
  sum = fmaf(__uint_as_float(w.y), __uint_as_float(x.y), sum);
  sum = fmaf(__uint_as_float(w.z), __uint_as_float(x.z), sum);
  return fmaf(__uint_as_float(w.w), __uint_as_float(x.w), sum);
}

template <class Form>
__device__ __forceinline__ void multiply_item(LaneSums<Form>& sums, const unsigned char* item, int m, int lane) {
  const int row = lane / 4;
#pragma unroll
  for (int step = 0; step < 2 * Form::kLines; ++step) {
    const int line = step / 2;
    const int chunk = lane % 4 * 2 + step % 2;
    uint4 x[8];
#pragma unroll
    for (int token = 0; token < 8; ++token) x[token] = chunk_of(item + Form::kWeightBytes, line * m + token, chunk);
#pragma unroll
    for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const uint4 w = chunk_of(item, (line * Form::kTiles + tile) * 16 + 8 * side + row, chunk);
#pragma unroll
        for (int token = 0; token < 8; ++token) {
          sums.parts[tile][side][token] = add_products(sums.parts[tile][side][token], w, x[token]);
        }
      }
    }
  }
}

// Adds up the four lanes of a row.
template <class Form>
__device__ __forceinline__ void finish_sums(const LaneSums<Form>& from, TileSums<Form>& sums, int lane) {
#pragma unroll
  for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int token = 0; token < 8; ++token) {
        float sum = from.parts[tile][side][token];
        sum += __shfl_xor_sync(0xffffffffU, sum, 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        if (lane % 4 == token / 2) sums[tile][0][2 * side + token % 2] = sum;
      }
    }
  }
}

#endif

}  // namespace hotset::kernels::cuda
