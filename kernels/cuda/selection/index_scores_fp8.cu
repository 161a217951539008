// Index scores of FP8 keys on tensor cores: rows of a product are heads, columns are tokens.
//
// A block takes a share of all rows' pages. For each row in it, the query goes through shared memory into the registers
// of every warp as float16 fragments (all heads, all channels). Each warp then streams its own tokens, 16 at a time,
// through a private ring of asynchronous copies, so that no barrier stands between memory and the tensor cores: e4m3
// becomes float16 in one instruction per two codes, every key once. Scores leave by a fixed tree over the heads.
//
// The order of channels in a product is free: a lane takes 16 channels from 16 p and 16 from 64 + 16 p (p = lane % 4),
// which are two 16-byte loads of a key.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/index_scores_fp8.h"
#include "kernels/cuda/selection/launch_limits.h"
#include "kernels/cuda/selection/mma.cuh"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDim = 128;
constexpr int kSteps = kDim / 16;
constexpr int kTile = 16;  // tokens of a warp's step
constexpr int kStages = 6;
constexpr int kKeyBytes = kTile * kDim;
constexpr int kStageBytes = kKeyBytes + 4 * kTile;  // keys, scales
constexpr int kTilesPerPage = kPageTokens / kTile;
constexpr int kPageStep = kWarps / kTilesPerPage;  // pages that the warps take together
constexpr unsigned kAll = 0xffffffffU;

template <int kHeadTiles>
struct Shared {
  RowUnits units;
  float weights[16 * kHeadTiles];
  alignas(16) std::uint32_t q[kHeadTiles][kSteps][32][4];  // fragments
  alignas(16) unsigned char ring[kWarps][kStages][kStageBytes];
};

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

// q [heads][128] of one row, and its weights, which take over the heads' powers of two. A warp takes a head: lane l the
// channels 4 l ... 4 l + 3.
template <int kHeadTiles>
__device__ void load_query(Shared<kHeadTiles>& shared, const float* q, const float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int step = lane / 16 * 4 + lane % 4;
  const int pair = lane % 16 / 4;
  for (int head = static_cast<int>(threadIdx.x) / 32; head < 16 * kHeadTiles; head += kWarps) {
    float4 x = reinterpret_cast<const float4*>(q + head * kDim)[lane];
    // As unsigned numbers magnitudes compare like their bits, NaN and infinity the largest.
    std::uint32_t largest = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                                max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
    largest = __reduce_max_sync(kAll, largest);
    const int shift = query_shift(__uint_as_float(largest));
    const float factor = power_of_two(shift);
    std::uint32_t* const to = shared.q[head / 16][step][head % 8 * 4 + pair];
    to[head % 16 / 8] = pack_f16(x.x * factor, x.y * factor);
    to[2 + head % 16 / 8] = pack_f16(x.z * factor, x.w * factor);
    if (lane == 0) shared.weights[head] = weights[head] * power_of_two(-shift);
  }
}

__device__ __forceinline__ std::uint32_t f16_pair(std::uint32_t two_codes) {
  std::uint32_t out = 0;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<std::uint16_t>(two_codes)));
#endif
  return out;
}

// Key t's 16-byte unit u lies at unit u ^ 4 (t & 1): eight lanes of a load touch all banks once.
__device__ __forceinline__ int unit_offset(int token, int unit) {
  return token * kDim + (unit ^ ((token & 1) << 2)) * 16;
}

// Starts the copy of tokens 16 * tile ... of a page.
__device__ __forceinline__ void start_copy(unsigned char* stage, const std::byte* page, int tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::byte* const keys = page + tile * kKeyBytes;
#pragma unroll
  for (int i = 0; i < kKeyBytes / 16 / 32; ++i) {
    const int piece = i * 32 + lane;
    copy_async_16(stage + unit_offset(piece / 8, piece % 8), keys + piece * 16);
  }
  if (lane < 4 * kTile / 16) {
    copy_async_16(stage + kKeyBytes + lane * 16, page + kPageTokens * kDim + tile * 4 * kTile + lane * 16);
  }
}

// Of the tile's token 8 (lane / 16) + 2 (lane % 4) + lane / 8 % 2, without the key's scale.
template <int kHeadTiles>
__device__ __forceinline__ float tile_score(const unsigned char* stage, const std::uint32_t (&q)[kHeadTiles][kSteps][4],
                                            const float (&weights)[kHeadTiles][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[2][2];  // [half of the tile][column]
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = half * 8 + lane / 4;
    const uint4 low = *reinterpret_cast<const uint4*>(stage + unit_offset(token, lane % 4));
    const uint4 high = *reinterpret_cast<const uint4*>(stage + unit_offset(token, lane % 4 + 4));
    const std::uint32_t words[kSteps] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float products[kHeadTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint32_t b0 = f16_pair(words[step] & 0xffffU);
      const std::uint32_t b1 = f16_pair(words[step] >> 16);
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) mma_f16(products[tile], q[tile][step], b0, b1);
    }
    sums[half][0] = sums[half][1] = 0.0F;
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float product = products[tile][i] < 0.0F ? 0.0F : products[tile][i];  // NaN stays
        sums[half][i % 2] = fmaf(weights[tile][i / 2], product, sums[half][i % 2]);
      }
    }
  }
  // Over the eight lanes that hold other heads; each step leaves a lane half of the tokens.
  const bool second = (lane & 16) != 0;
  float keep[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float other = __shfl_xor_sync(kAll, second ? sums[0][i] : sums[1][i], 16);
    keep[i] = (second ? sums[1][i] : sums[0][i]) + other;
  }
  const bool odd = (lane & 8) != 0;
  const float other = __shfl_xor_sync(kAll, odd ? keep[0] : keep[1], 8);
  const float score = (odd ? keep[1] : keep[0]) + other;
  return score + __shfl_xor_sync(kAll, score, 4);
}

template <int kHeadTiles>
__device__ void score_pages(Shared<kHeadTiles>& shared, const ScoredPages& rows, std::int64_t row, std::int64_t begin,
                            std::int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t q[kHeadTiles][kSteps][4];
  float weights[kHeadTiles][2];
#pragma unroll
  for (int tile = 0; tile < kHeadTiles; ++tile) {
    weights[tile][0] = shared.weights[16 * tile + lane / 4];
    weights[tile][1] = shared.weights[16 * tile + 8 + lane / 4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 part = *reinterpret_cast<const uint4*>(shared.q[tile][step][lane]);
      q[tile][step][0] = part.x;
      q[tile][step][1] = part.y;
      q[tile][step][2] = part.z;
      q[tile][step][3] = part.w;
    }
  }

  // Step n of the warp: page begin + warp / 4 + 2 n, tokens 16 (warp % 4) on.
  const int tile = warp % kTilesPerPage;
  const std::int64_t first_page = begin + warp / kTilesPerPage;
  const auto count = static_cast<int>(first_page < end ? (end - first_page + kPageStep - 1) / kPageStep : 0);
  const std::int32_t* const pages = rows.pages + row * rows.page_stride;
  const std::int64_t page_bytes = kPageTokens * (kDim + 4);
  std::int32_t ids = 0;  // of the warp's 32 steps from a multiple of 32 on, one in each lane
  const auto start = [&](int step) {
    if (step < count) {
      if (step % 32 == 0) ids = step + lane < count ? pages[first_page + std::int64_t{kPageStep} * (step + lane)] : 0;
      const std::int64_t id = __shfl_sync(kAll, ids, step % 32);
      start_copy(shared.ring[warp][step % kStages], rows.pool + id * page_bytes, tile);
    }
    copy_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) start(step);
  const std::int64_t length = rows.lengths[row];
  float* const scores = rows.scores + row * rows.stride;
  const int place = lane / 16 * 8 + 2 * (lane % 4) + lane / 8 % 2;
  for (int step = 0; step < count; ++step) {
    copy_async_wait<kStages - 2>();
    __syncwarp();  // all lanes' copies of this step are there, and all lanes are done with the stage that is filled
                   // next
    start(step + kStages - 1);
    const unsigned char* const stage = shared.ring[warp][step % kStages];
    const float score = tile_score<kHeadTiles>(stage, q, weights);
    const std::int64_t token = (first_page + std::int64_t{kPageStep} * step) * kPageTokens + tile * kTile + place;
    const float scale = reinterpret_cast<const float*>(stage + kKeyBytes)[place];
    if ((lane & 4) == 0 && token < length) scores[token] = score * scale;
  }
  copy_async_wait<0>();
}

template <int kHeadTiles>
__global__ void __launch_bounds__(kThreads, 1) fp8_kernel(const IndexScoresDeviceParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kHeadTiles>*>(memory);
  const ScoredPages& rows = params.rows;
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t query = query_row(rows, row);
    __syncthreads();  // the row before is done with the query
    load_query<kHeadTiles>(shared, params.q + query * params.q_stride, params.weights + query * params.heads);
    __syncthreads();
    score_pages<kHeadTiles>(shared, rows, row, begin, end);
  });
}

template <int kHeadTiles>
void launch(const IndexScoresDeviceParams& params, unsigned blocks, Stream stream) {
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(fp8_kernel<kHeadTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Shared<kHeadTiles>))));
    return true;
  }();
  static_cast<void>(ready);
  fp8_kernel<kHeadTiles><<<blocks, kThreads, sizeof(Shared<kHeadTiles>), stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace

bool index_scores_fp8_fits(const IndexScoresDeviceParams& params) {
  const MetadataGeometry& geometry = params.rows.geometry;
  return geometry.dtype == KvDType::kFp8 && geometry.dim == kDim && (params.heads == 32 || params.heads == 64);
}

void launch_index_scores_fp8(const IndexScoresDeviceParams& params, Stream stream) {
  HS_CHECK(index_scores_fp8_fits(params) && params.rows.rows <= kMostLaunchRows, "not the tuned form's shape");
  HS_CHECK(params.q_stride % 4 == 0, "queries are read 16 bytes at a time");
  const std::int64_t pages = params.rows.rows * pages_for_tokens(params.rows.max_length);
  const std::int64_t chosen = std::clamp<std::int64_t>(ceil_div(pages, kPageStep), 1, launch_limits().multiprocessors);
  const auto blocks = static_cast<unsigned>(params.grid_blocks > 0 ? params.grid_blocks : chosen);
  if (params.heads == 32) {
    launch<2>(params, blocks, stream);
  } else {
    launch<4>(params, blocks, stream);
  }
}

}  // namespace hotset::kernels::cuda
