#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "core/check.h"
#include "core/fp8.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/row_copies.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;    // elements of a thread
constexpr int kBlock = 128;  // channels with one scale: a warp's

__device__ __forceinline__ float4 load_four(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ __forceinline__ float4 load_four(const __nv_bfloat16* from) {
  const auto pairs = *reinterpret_cast<const uint2*>(from);
  const auto low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pairs.x));
  const auto high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pairs.y));
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ void store_four(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ __forceinline__ void store_four(__nv_bfloat16* to, float4 x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  *reinterpret_cast<uint2*>(to) =
      make_uint2(*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high));
}

// write(row of out) for each of the row's places.
template <class Write>
__device__ __forceinline__ void for_places(const RowCopies& params, std::int64_t row, const Write& write) {
  if (params.places == nullptr) {
    write(row);
    return;
  }
  for (int i = 0; i < params.copies; ++i) {
    const std::int64_t place = params.places[row * params.copies + i];
    if (place >= 0) write(place);
  }
}

// blockIdx.x: the row.
template <class In, class Out>
__global__ void __launch_bounds__(kThreads) copy_kernel(const RowCopies params) {
  follow_kernels_before();
  const std::int64_t row = blockIdx.x;
  const std::int64_t at = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kGroup;
  if (at >= params.width || (params.count != nullptr && row >= *params.count)) return;
  const float4 x = load_four(static_cast<const In*>(params.x) + row * params.x_stride + at);
  for_places(params, row,
             [&](std::int64_t place) { store_four(static_cast<Out*>(params.out) + place * params.width + at, x); });
}

__device__ __forceinline__ std::uint32_t codes(float4 x, float scale) {
  if (scale == 0.0F) return 0;
  const auto low =
      __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(x.x, scale), __fdiv_rn(x.y, scale)), __NV_SATFINITE, __NV_E4M3);
  const auto high =
      __nv_cvt_float2_to_fp8x2(make_float2(__fdiv_rn(x.z, scale), __fdiv_rn(x.w, scale)), __NV_SATFINITE, __NV_E4M3);
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}

template <class In>
__global__ void __launch_bounds__(kThreads) quantise_kernel(const RowCopies params) {
  follow_kernels_before();
  const std::int64_t row = blockIdx.x;
  const std::int64_t at = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kGroup;
  // A warp leaves as one: it holds 128 channels.
  if (at >= params.width || (params.count != nullptr && row >= *params.count)) return;
  const float4 x = load_four(static_cast<const In*>(params.x) + row * params.x_stride + at);
  // Magnitudes compare like their bits, NaN and infinity the largest.
  const unsigned mine = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                            max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
  const float scale = __fdiv_rn(__uint_as_float(__reduce_max_sync(0xffffffffU, mine)), kE4m3Max);
  const std::uint32_t word = codes(x, scale);
  for_places(params, row, [&](std::int64_t place) {
    *reinterpret_cast<std::uint32_t*>(static_cast<unsigned char*>(params.out) + place * params.width + at) = word;
    if (threadIdx.x % 32 == 0) params.scales[at / kBlock * params.scale_stride + place] = scale;
  });
}

dim3 grid_of(const RowCopies& params) {
  constexpr std::int64_t kChannels = std::int64_t{kThreads} * kGroup;
  return {static_cast<unsigned>(params.rows), static_cast<unsigned>((params.width + kChannels - 1) / kChannels)};
}

}  // namespace

void launch_row_copies(const RowCopies& params, ActivationType out_type, Stream stream) {
  if (params.rows <= 0) return;
  HS_CHECK(params.width % kGroup == 0, "rows are copied in groups");
  const bool from_f32 = params.x_type == ActivationType::kF32;
  const bool to_f32 = out_type == ActivationType::kF32;
  const dim3 grid = grid_of(params);
  const auto launch = [&](auto kernel) { launch_dependent(kernel, grid, kThreads, 0, 0, stream, params); };
  if (from_f32 && to_f32) launch(copy_kernel<float, float>);
  if (from_f32 && !to_f32) launch(copy_kernel<float, __nv_bfloat16>);
  if (!from_f32 && to_f32) launch(copy_kernel<__nv_bfloat16, float>);
  if (!from_f32 && !to_f32) launch(copy_kernel<__nv_bfloat16, __nv_bfloat16>);
}

void launch_quantised_copies(const RowCopies& params, Stream stream) {
  if (params.rows <= 0) return;
  HS_CHECK(params.width % kBlock == 0, "a scale is that of 128 channels");
  if (params.x_type == ActivationType::kF32) {
    launch_dependent(quantise_kernel<float>, grid_of(params), kThreads, 0, 0, stream, params);
  } else {
    launch_dependent(quantise_kernel<__nv_bfloat16>, grid_of(params), kThreads, 0, 0, stream, params);
  }
}

}  // namespace hotset::kernels::cuda
