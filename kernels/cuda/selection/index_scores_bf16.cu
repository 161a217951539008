// Index scores of bf16 keys on tensor cores (index_pages.cuh). Keys are operands as they are; a query is two bf16
// numbers, the upper half of its bits and what is left. A lane takes the channels from 8 p, 32 + 8 p, 64 + 8 p and 96 +
// 8 p (p = lane % 4), which are four 16-byte loads of a key.
#include <cuda_bf16.h>

#include "kernels/cuda/selection/index_pages.cuh"
#include "kernels/cuda/selection/index_scores_bf16.h"

namespace hotset::kernels::cuda {
namespace {

using index_pages::kDim;
using index_pages::kSteps;

__device__ __forceinline__ float upper_half(float x) { return __uint_as_float(__float_as_uint(x) & 0xffff0000U); }

// Exact in float32. Nothing is left of an infinity; a NaN whose upper half is one comes back here.
__device__ __forceinline__ float rest_of(float x) { return upper_half(x) == x ? 0.0F : x - upper_half(x); }

__device__ __forceinline__ std::uint32_t pack_upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

struct Bf16Keys {
  static constexpr int kTokenBytes = 2 * kDim;
  static constexpr int kPageBytes = static_cast<int>(kPageTokens) * kTokenBytes;
  static constexpr int kGroups = 4;
  static constexpr int kStages = 2;
  static constexpr int kParts = 2;
  static constexpr bool kBf16 = true;
  static constexpr bool kScaled = false;

  static __device__ __forceinline__ index_pages::QueryPlace query_place(int lane) {
    return {lane / 8 * 2 + lane % 2, lane % 8 / 2};
  }

  static __device__ __forceinline__ float encode_query(const float4& x, std::uint32_t (&words)[kParts][2]) {
    words[0][0] = pack_upper_halves(x.x, x.y);
    words[0][1] = pack_upper_halves(x.z, x.w);
    words[1][0] = pack_bf16(rest_of(x.x), rest_of(x.y));
    words[1][1] = pack_bf16(rest_of(x.z), rest_of(x.w));
    return 1.0F;
  }

  static __device__ __forceinline__ void load_keys(const unsigned char* page, std::uint32_t (&keys)[kSteps][4]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int token = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    const int odd = token % 2;  // odd tokens load pairs in the other order: eight lanes touch all banks once
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const auto* const key = reinterpret_cast<const uint4*>(page + (token + 8 * upper) * kTokenBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 first = key[8 * half + lane % 4 + 4 * odd];
        const uint4 second = key[8 * half + lane % 4 + 4 * (1 - odd)];
        const uint4 even_piece = odd ? second : first;
        const uint4 odd_piece = odd ? first : second;
        keys[4 * half][upper] = even_piece.x;
        keys[4 * half][2 + upper] = even_piece.y;
        keys[4 * half + 1][upper] = even_piece.z;
        keys[4 * half + 1][2 + upper] = even_piece.w;
        keys[4 * half + 2][upper] = odd_piece.x;
        keys[4 * half + 2][2 + upper] = odd_piece.y;
        keys[4 * half + 3][upper] = odd_piece.z;
        keys[4 * half + 3][2 + upper] = odd_piece.w;
      }
    }
  }
};

}  // namespace

bool index_scores_bf16_fits(const IndexScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  return geometry.dtype == KvDType::kBF16 && geometry.dim == kDim && (params.heads == 32 || params.heads == 64);
}

void launch_index_scores_bf16(const IndexScoresDeviceParams& params, Stream stream) {
  HS_CHECK(index_scores_bf16_fits(params), "not the tuned form's shape");
  index_pages::launch_index_pages<Bf16Keys>(params, stream);
}

}  // namespace hotset::kernels::cuda
