// Index scores of FP8 keys on tensor cores (index_pages.cuh): a lane turns its part of the keys from e4m3 into float16
// in registers, every code once. It takes the 16 channels from 16 p and those from 64 + 16 p (p = lane % 4), which are
// two 16-byte loads of a key.
#include <cuda_fp16.h>

#include "kernels/cuda/selection/index_pages.cuh"
#include "kernels/cuda/selection/index_scores_fp8.h"

namespace hotset::kernels::cuda {
namespace {

using index_pages::kDim;
using index_pages::kSteps;

__device__ __forceinline__ std::uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// A power of two that brings `largest` to 2^14 ... 2^15: float16 then keeps 11 bits of numbers 2^-28 as large.
__device__ __forceinline__ int query_shift(float largest) {
  const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
  return exponent > 127 ? 0 : max(-126, min(126, 14 - exponent));
}
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

__device__ __forceinline__ std::uint32_t f16_pair(std::uint32_t two_codes) {
  std::uint32_t out = 0;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<std::uint16_t>(two_codes)));
#endif
  return out;
}

struct Fp8Keys {
  static constexpr int kKeyBytes = static_cast<int>(kPageTokens) * kDim;
  static constexpr int kPageBytes = kKeyBytes + 4 * static_cast<int>(kPageTokens);  // keys, scales
  static constexpr int kGroups = 4;
  static constexpr int kStages = 5;
  static constexpr int kParts = 1;
  static constexpr bool kBf16 = false;
  static constexpr bool kScaled = true;

  static __device__ __forceinline__ index_pages::QueryPlace query_place(int lane) {
    return {lane / 16 * 4 + lane % 4, lane % 16 / 4};
  }

  static __device__ __forceinline__ float encode_query(const float4& x, std::uint32_t (&words)[kParts][2]) {
    // As unsigned numbers magnitudes compare like their bits, NaN and infinity the largest.
    std::uint32_t largest = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                                max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
    largest = __reduce_max_sync(kAllLanes, largest);
    const int shift = query_shift(__uint_as_float(largest));
    const float factor = power_of_two(shift);
    words[0][0] = pack_f16(x.x * factor, x.y * factor);
    words[0][1] = pack_f16(x.z * factor, x.w * factor);
    return power_of_two(-shift);
  }

  static __device__ __forceinline__ float page_scale(const unsigned char* page, int token) {
    return reinterpret_cast<const float*>(page + kKeyBytes)[token];
  }

  static __device__ __forceinline__ void load_keys(const unsigned char* page, std::uint32_t (&keys)[kSteps][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int token = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    const int odd = token % 2;  // odd tokens load their halves in the other order: eight lanes touch all banks once
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto* const key = reinterpret_cast<const uint4*>(page + (token + 8 * upper) * kDim);
      const uint4 first = key[lane % 4 + 4 * odd];
      const uint4 second = key[lane % 4 + 4 * (1 - odd)];
      const std::uint32_t words[kSteps] = {odd ? second.x : first.x, odd ? second.y : first.y, odd ? second.z : first.z,
                                           odd ? second.w : first.w, odd ? first.x : second.x, odd ? first.y : second.y,
                                           odd ? first.z : second.z, odd ? first.w : second.w};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        keys[step][upper] = f16_pair(words[step] & 0xffffU);
        keys[step][2 + upper] = f16_pair(words[step] >> 16);
      }
    }
  }
};

}  // namespace

bool index_scores_fp8_fits(const IndexScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  return geometry.dtype == KvDType::kFp8 && geometry.dim == kDim && (params.heads == 32 || params.heads == 64);
}

void launch_index_scores_fp8(const IndexScoresDeviceParams& params, Stream stream) {
  HS_CHECK(index_scores_fp8_fits(params), "not the tuned form's shape");
  index_pages::launch_index_pages<Fp8Keys>(params, stream);
}

}  // namespace hotset::kernels::cuda
