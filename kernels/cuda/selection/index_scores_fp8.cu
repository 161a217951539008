// Index scores of FP8 keys on tensor cores: rows of a product are tokens, columns are heads.
//
// A block takes a share of all rows' pages. For each row in it, the query lies in shared memory as float16. Each group
// of four warps streams its own pages through a private ring of bulk copies; a lane turns its part of the keys from
// e4m3 into float16 in registers, every code once, and the four warps multiply the page's 64 tokens with all heads.
// Scores leave by a fixed tree over the heads.
//
// The order of channels in a product is free: a lane takes 16 channels from 16 p and 16 from 64 + 16 p (p = lane % 4),
// which are two 16-byte loads of a key.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/dependent_launch.cuh"
#include "kernels/cuda/selection/index_scores_fp8.h"
#include "kernels/cuda/selection/launch_limits.h"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kGroups = kThreads / 128;
constexpr int kDim = 128;
constexpr int kSteps = kDim / 16;
constexpr int kStages = 5;
constexpr int kKeyBytes = static_cast<int>(kPageTokens) * kDim;
constexpr int kPageBytes = kKeyBytes + 4 * static_cast<int>(kPageTokens);  // keys, scales
constexpr unsigned kAll = 0xffffffffU;

template <int kHeads>
struct alignas(1024) Shared {
  unsigned char q[2][kHeads][128];  // [half of the channels][head], its eight pieces of 16 bytes xor head % 8
  alignas(128) unsigned char ring[kGroups][kStages][kPageBytes];
  std::uint64_t filled[kGroups][kStages];
  RowUnits units;
  float weights[kHeads];
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
template <int kHeads>
__device__ void load_query(Shared<kHeads>& shared, const float* q, const float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pair = lane % 16 / 4;
  const int piece = 2 * (lane % 4);
#pragma unroll
  for (int head = static_cast<int>(threadIdx.x) / 32; head < kHeads; head += kWarps) {
    const float4 x = reinterpret_cast<const float4*>(q + head * kDim)[lane];
    // As unsigned numbers magnitudes compare like their bits, NaN and infinity the largest.
    std::uint32_t largest = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                                max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
    largest = __reduce_max_sync(kAll, largest);
    const int shift = query_shift(__uint_as_float(largest));
    const float factor = power_of_two(shift);
    unsigned char* const to = shared.q[lane / 16][head] + 4 * pair;
    *reinterpret_cast<std::uint32_t*>(to + (piece ^ head % 8) * 16) = pack_f16(x.x * factor, x.y * factor);
    *reinterpret_cast<std::uint32_t*>(to + ((piece + 1) ^ head % 8) * 16) = pack_f16(x.z * factor, x.w * factor);
    if (lane == 0) shared.weights[head] = weights[head] * power_of_two(-shift);
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read it
#endif
}

__device__ __forceinline__ std::uint32_t f16_pair(std::uint32_t two_codes) {
  std::uint32_t out = 0;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<std::uint16_t>(two_codes)));
#endif
  return out;
}

__device__ __forceinline__ float positive_part(float x) {  // NaN stays
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// d (+)= keys [64 tokens, 16] q [16, heads]
__device__ __forceinline__ void multiply([[maybe_unused]] float (&d)[32], [[maybe_unused]] const std::uint32_t (&a)[4],
                                         [[maybe_unused]] std::uint64_t b, [[maybe_unused]] int add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
}
__device__ __forceinline__ void multiply([[maybe_unused]] float (&d)[16], [[maybe_unused]] const std::uint32_t (&a)[4],
                                         [[maybe_unused]] std::uint64_t b, [[maybe_unused]] int add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
#endif
}
__device__ __forceinline__ void begin_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void end_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

// Of q's half: rows of 128 bytes, eight of them 1,024 bytes, pieces of 16 bytes swizzled over them.
__device__ __forceinline__ std::uint64_t query_descriptor(const void* half) {
  return (std::uint64_t{shared_address(half)} & 0x3ffffU) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 |
         std::uint64_t{1} << 62;
}

// A lane's part of a page: tokens 16 warp + lane / 4 and 8 further, as operands of the products.
__device__ __forceinline__ void load_keys(const unsigned char* page, std::uint32_t (&keys)[kSteps][4]) {
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

// A group of four warps and its ring.
template <int kHeads>
struct Group {
  Shared<kHeads>& shared;
  const ScoredPages& rows;
  const int index = static_cast<int>(threadIdx.x) / 128;
  int stage = 0;  // of the next page to be used
  std::uint32_t parity = 0;
  // Of one row:
  const std::int32_t* pages = nullptr;  // of the group's first
  int count = 0;                        // its pages: every kGroups-th
  std::int32_t ids = 0;                 // of 32 pages from a multiple of 32 on, one in each lane of the first warp

  // All lanes of the group's first warp; the ring has room.
  __device__ void start_copy(int page, int to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (page % 32 == 0) ids = page + lane < count ? pages[std::int64_t{kGroups} * (page + lane)] : 0;
    const std::int64_t id = __shfl_sync(kAll, ids, page % 32);
    if (lane == 0) {
      start_bulk_copy(shared.ring[index][to], rows.pool + id * kPageBytes, kPageBytes, &shared.filled[index][to]);
    }
  }
  __device__ bool first_warp() const { return threadIdx.x / 32 % 4 == 0; }

  __device__ void begin_row(std::int64_t row, std::int64_t begin, std::int64_t end) {
    pages = rows.pages + row * rows.page_stride + begin + index;
    count = static_cast<int>((max(end - begin - index, std::int64_t{0}) + kGroups - 1) / kGroups);
    if (!first_warp()) return;
    for (int page = 0; page < min(count, kStages); ++page) start_copy(page, (stage + page) % kStages);
  }

  __device__ void score_row(std::int64_t row, std::int64_t begin) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float weights[kHeads / 8][2];
#pragma unroll
    for (int i = 0; i < kHeads / 8; ++i) {
      weights[i][0] = shared.weights[8 * i + 2 * (lane % 4)];
      weights[i][1] = shared.weights[8 * i + 2 * (lane % 4) + 1];
    }
    const std::uint64_t q[2] = {query_descriptor(shared.q[0]), query_descriptor(shared.q[1])};
    const std::int64_t length = rows.lengths[row];
    float* const scores = rows.scores + row * rows.stride;
    const int place = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4 + lane % 2 * 8;  // lanes p = 0, 1
    for (int page = 0; page < count; ++page) {
      const unsigned char* const keys_at = shared.ring[index][stage];
      wait_bulk_copy(&shared.filled[index][stage], parity);
      std::uint32_t keys[kSteps][4];
      load_keys(keys_at, keys);
      const float scale = reinterpret_cast<const float*>(keys_at + kKeyBytes)[place];
      float products[kHeads / 2];
      begin_products();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) multiply(products, keys[step], q[step / 4] + step % 4 * 2, step);
      end_products();
      asm volatile("bar.sync %0, 128;" ::"r"(index + 1) : "memory");  // all are done with the stage
      if (first_warp() && page + kStages < count) start_copy(page + kStages, stage);
      float sums[2] = {0.0F, 0.0F};
#pragma unroll
      for (int i = 0; i < kHeads / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[j / 2] = fmaf(weights[i][j % 2], positive_part(products[4 * i + j]), sums[j / 2]);
        }
      }
      // Lane p = 0 keeps the first token, p = 1 the second.
      const float other = __shfl_xor_sync(kAll, lane % 2 == 0 ? sums[1] : sums[0], 1);
      float score = (lane % 2 == 0 ? sums[0] : sums[1]) + other;
      score += __shfl_xor_sync(kAll, score, 2);
      const std::int64_t token = (begin + index + std::int64_t{kGroups} * page) * kPageTokens + place;
      if (lane % 4 < 2 && token < length) scores[token] = score * scale;
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1U;
      }
    }
  }
};

template <int kHeads>
__global__ void __launch_bounds__(kThreads, 1) fp8_kernel(const IndexScoresDeviceParams params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kHeads>*>(memory);
  const ScoredPages& rows = params.rows;
  if (threadIdx.x < kGroups * kStages) init_copy_barrier(&shared.filled[0][0] + threadIdx.x);
  let_next_kernel_start();
  wait_for_kernels_before();
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  Group<kHeads> group{shared, rows};
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t query = query_row(rows, row);
    group.begin_row(row, begin, end);
    __syncthreads();  // the row before is done with the query
    load_query<kHeads>(shared, params.q + query * params.q_stride, params.weights + query * params.heads);
    __syncthreads();
    group.score_row(row, begin);
  });
}

template <int kHeads>
void launch(const IndexScoresDeviceParams& params, unsigned blocks, Stream stream) {
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(fp8_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Shared<kHeads>))));
    return true;
  }();
  static_cast<void>(ready);
  launch_dependent(fp8_kernel<kHeads>, dim3(blocks), kThreads, sizeof(Shared<kHeads>), 0, stream, params);
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
  const std::int64_t chosen = std::clamp<std::int64_t>(ceil_div(pages, kGroups), 1, launch_limits().multiprocessors);
  const auto blocks = static_cast<unsigned>(params.grid_blocks > 0 ? params.grid_blocks : chosen);
  if (params.heads == 32) {
    launch<32>(params, blocks, stream);
  } else {
    launch<64>(params, blocks, stream);
  }
}

}  // namespace hotset::kernels::cuda
