// Results of few_rows.cuh: the sums of a unit, added up over its warps, become channels of y.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matmul/few_rows_form.cuh"
#include "kernels/cuda/matmul/few_rows_products.cuh"

namespace hotset::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ float gated_product(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0F, expf(-gate))), up);
}

__device__ __forceinline__ void store_channel(const FewRowsArgs& args, int product, int token, std::int64_t channel,
                                              float sum) {
  if (channel >= args.n || token >= args.m) return;
  const std::int64_t at = product * args.y_step + token * args.y_stride + channel;
  if (args.y_f32) {
    float* const y = static_cast<float*>(args.y) + at;
    if (args.bias != nullptr) sum += static_cast<const float*>(args.bias)[channel];
    *y = args.accumulate ? *y + sum : sum;
  } else {
    __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(args.y) + at;
    if (args.bias != nullptr) sum += __bfloat162float(static_cast<const __nv_bfloat16*>(args.bias)[channel]);
    *y = __float2bfloat16_rn(args.accumulate ? __bfloat162float(*y) + sum : sum);
  }
}

// Where a unit's channels go.
struct UnitPlace {
  int product;
  std::int64_t first_channel;
  int tile_channels;
};
template <class Form>
__device__ __forceinline__ UnitPlace place_of(const FewRowsArgs& args, int unit) {
  const int product = unit / args.product_units;
  const int tile_channels = args.gated ? 8 : 16;
  return {product, std::int64_t{unit - product * args.product_units} * Form::kTiles * tile_channels, tile_channels};
}

// A unit of one warp.
template <class Form>
__device__ __forceinline__ void store_own_unit(const FewRowsArgs& args, int unit, const TileSums<Form>& sums,
                                               int lane) {
  const UnitPlace place = place_of<Form>(args, unit);
#pragma unroll
  for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * j + lane % 4 * 2 + i;
        const std::int64_t channel = place.first_channel + tile * place.tile_channels + lane / 4;
        const float low = sums[tile][j][i];
        const float high = sums[tile][j][2 + i];
        if (args.gated) {
          store_channel(args, place.product, token, channel, gated_product(low, high));
        } else {
          store_channel(args, place.product, token, channel, low);
          store_channel(args, place.product, token, channel + 8, high);
        }
      }
    }
  }
}

// A lane's sums of the tiles from `first` on, in the memory of its warp.
template <class Form, class Sums>
__device__ __forceinline__ void keep_tile_sums(float (&kept)[Form::kMergeTiles][Form::kTokens][Form::kMergeStride],
                                               const Sums& sums, int first) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < Form::kMergeTiles; ++i) {
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
      auto& to = kept[i];
      const auto& from = sums[first + i][j];
      to[8 * j + column][row] = from[0];
      to[8 * j + column + 1][row] = from[1];
      to[8 * j + column][row + 8] = from[2];
      to[8 * j + column + 1][row + 8] = from[3];
    }
  }
}

// Of all warps, in their order.
template <std::size_t kWarps, std::size_t kTiles, std::size_t kTokens, std::size_t kStride>
__device__ __forceinline__ float sum_of_warps(const float (&kept)[kWarps][kTiles][kTokens][kStride], int tile,
                                              int token, int channel) {
  float sum = kept[0][tile][token][channel];
#pragma unroll
  for (int w = 1; w < static_cast<int>(kWarps); ++w) sum += kept[w][tile][token][channel];
  return sum;
}

// A unit of all warps, by all of them: adds up their sums in their order.
template <class Form>
__device__ __forceinline__ void store_unit(FewRowsShared<Form>& shared, const FewRowsArgs& args, int unit,
                                           const TileSums<Form>& sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const UnitPlace place = place_of<Form>(args, unit);
#pragma unroll
  for (int first = 0; first < Form::kTiles; first += Form::kMergeTiles) {
    constexpr int kTiles = Form::kMergeTiles;
    __syncthreads();  // what was there has been read
    keep_tile_sums<Form>(shared.sums[warp], sums, first);
    __syncthreads();
    const int channels = kTiles * place.tile_channels;
    for (int i = thread; i < channels * args.m; i += kFewRowsThreads) {
      const int token = i / channels;
      const int local = i - token * channels;
      const int tile = local / place.tile_channels;
      const int of_tile = local - tile * place.tile_channels;
      const auto sum_of = [&](int channel) { return sum_of_warps(shared.sums, tile, token, channel); };
      float sum = sum_of(of_tile);
      if (args.gated) sum = gated_product(sum, sum_of(of_tile + 8));
      store_channel(args, place.product, token, place.first_channel + first * place.tile_channels + local, sum);
    }
  }
}

#endif

}  // namespace hotset::kernels::cuda
