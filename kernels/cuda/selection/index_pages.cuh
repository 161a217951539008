// Index scores over paged keys on tensor cores, whatever form the keys have: rows of a product are tokens, columns are
// heads.
//
// A block takes a share of all rows' pages. For each row in it, the query lies in shared memory as operands of
// products. Each group of four warps streams its own pages through a private ring of bulk copies; a lane turns its part
// of the keys into operands in registers, and the four warps multiply the page's 64 tokens with all heads. Scores leave
// by a fixed tree over the heads.
//
// `Keys` is the form of the keys:
//   kPageBytes            of a page, keys first
//   kGroups, kStages      groups of warps of a block, and pages of each one's ring
//   kParts                numbers of 16 bits that are one number of the query; their products are summed
//   kBf16                 the operands' type; else float16
//   kScaled               scores are multiplied by page_scale(page, token of the page)
//   encode_query(x, words)  x: channels 4 lane ... 4 lane + 3 of a head; words [kParts][2]: them as operands; returns
//                         the factor that the head's weight takes over. All lanes of a warp
//   query_place(lane)     where those four channels are multiplied: columns 2 `pair`, + 1, + 8, + 9 of `step`
//   load_keys(page, keys) the lane's tokens (16 warp + lane / 4 and 8 further) as operands [kSteps][4]
// The order of channels in a product is free, if keys and query agree on it.
#pragma once

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/launch_limits.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/index_scores.h"
#include "kernels/cuda/selection/row_units.cuh"

namespace hotset::kernels::cuda::index_pages {

constexpr int kDim = 128;
constexpr int kSteps = kDim / 16;

struct QueryPlace {
  int step, pair;
};

template <class Keys, int kHeads>
struct alignas(1024) Shared {
  // [part][half of the channels][head], a head's eight pieces of 16 bytes xor head % 8
  unsigned char q[Keys::kParts][2][kHeads][128];
  alignas(128) unsigned char ring[Keys::kGroups][Keys::kStages][Keys::kPageBytes];
  std::uint64_t filled[Keys::kGroups][Keys::kStages];
  RowUnits units;
  float weights[kHeads];
};

// q [heads][128] of one row, and its weights. A warp takes a head.
template <class Keys, int kHeads>
__device__ void load_query(Shared<Keys, kHeads>& shared, const float* q, const float* weights) {
  constexpr int kWarps = 4 * Keys::kGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto [step, pair] = Keys::query_place(lane);
  const int piece = step % 4 * 2;
#pragma unroll
  for (int head = static_cast<int>(threadIdx.x) / 32; head < kHeads; head += kWarps) {
    std::uint32_t words[Keys::kParts][2];
    const float factor = Keys::encode_query(reinterpret_cast<const float4*>(q + head * kDim)[lane], words);
#pragma unroll
    for (int part = 0; part < Keys::kParts; ++part) {
      unsigned char* const to = shared.q[part][step / 4][head] + 4 * pair;
      *reinterpret_cast<std::uint32_t*>(to + (piece ^ head % 8) * 16) = words[part][0];
      *reinterpret_cast<std::uint32_t*>(to + ((piece + 1) ^ head % 8) * 16) = words[part][1];
    }
    if (lane == 0) shared.weights[head] = weights[head] * factor;
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores read it
#endif
}

__device__ __forceinline__ float positive_part(float x) {  // NaN stays
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOTSET_INDEX_PRODUCT_64(type)                                                                               \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type                                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "                                                   \
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "            \
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                                                                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#define HOTSET_INDEX_PRODUCT_32(type)                                                                               \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type                                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "                                                   \
      "%13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"                                                   \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
#else
#define HOTSET_INDEX_PRODUCT_64(type)
#define HOTSET_INDEX_PRODUCT_32(type)
#endif

// d (+)= keys [64 tokens, 16] q [16, heads]
template <bool kBf16, int kSums>
__device__ __forceinline__ void multiply([[maybe_unused]] float (&d)[kSums],
                                         [[maybe_unused]] const std::uint32_t (&a)[4], [[maybe_unused]] std::uint64_t b,
                                         [[maybe_unused]] int add) {
  static_assert(kSums == 32 || kSums == 16);
  if constexpr (kSums == 32 && kBf16) {
    HOTSET_INDEX_PRODUCT_64("bf16.bf16");
  } else if constexpr (kSums == 32) {
    HOTSET_INDEX_PRODUCT_64("f16.f16");
  } else if constexpr (kBf16) {
    HOTSET_INDEX_PRODUCT_32("bf16.bf16");
  } else {
    HOTSET_INDEX_PRODUCT_32("f16.f16");
  }
}
#undef HOTSET_INDEX_PRODUCT_64
#undef HOTSET_INDEX_PRODUCT_32

__device__ __forceinline__ void begin_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void commit_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_products() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}

// Of q's half: rows of 128 bytes, eight of them 1,024 bytes, pieces of 16 bytes swizzled over them.
__device__ __forceinline__ std::uint64_t query_descriptor(const void* half) {
  return (std::uint64_t{shared_address(half)} & 0x3ffffU) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 |
         std::uint64_t{1} << 62;
}

// A group of four warps and its ring.
template <class Keys, int kHeads>
struct Group {
  static constexpr int kGroups = Keys::kGroups;
  static constexpr int kStages = Keys::kStages;
  Shared<Keys, kHeads>& shared;
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
    const std::int64_t id = __shfl_sync(kAllLanes, ids, page % 32);
    if (lane == 0) {
      start_bulk_copy(shared.ring[index][to], rows.pool + id * Keys::kPageBytes, Keys::kPageBytes,
                      &shared.filled[index][to]);
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
    std::uint64_t q[Keys::kParts][2];
#pragma unroll
    for (int i = 0; i < 2 * Keys::kParts; ++i) q[i / 2][i % 2] = query_descriptor(shared.q[i / 2][i % 2]);
    const int place = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4 + lane % 2 * 8;  // lanes p = 0, 1
    const std::int64_t first = (begin + index) * kPageTokens + place;
    float* score_at = rows.scores + row * rows.stride + first;
    auto left = static_cast<int>(min(rows.lengths[row] - first, std::int64_t{0x7fffffff}));  // > 0: there is a token
    for (int page = 0; page < count; ++page) {
      const unsigned char* const keys_at = shared.ring[index][stage];
      wait_bulk_copy(&shared.filled[index][stage], parity);
      std::uint32_t keys[kSteps][4];
      Keys::load_keys(keys_at, keys);
      float scale = 1.0F;
      if constexpr (Keys::kScaled) scale = Keys::page_scale(keys_at, place);
      float products[kHeads / 2];
      begin_products();
#pragma unroll
      for (int i = 0; i < Keys::kParts * kSteps; ++i) {
        const int step = i % kSteps;
        const int part = Keys::kParts - 1 - i / kSteps;  // small numbers first
        multiply<Keys::kBf16>(products, keys[step], q[part][step / 4] + step % 4 * 2, i);
      }
      commit_products();
      asm volatile("bar.sync %0, 128;" ::"r"(index + 1) : "memory");  // all have their keys: the stage is free
      if (first_warp() && page + kStages < count) start_copy(page + kStages, stage);
      wait_products();
      float sums[2] = {0.0F, 0.0F};
#pragma unroll
      for (int i = 0; i < kHeads / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[j / 2] = fmaf(weights[i][j % 2], positive_part(products[4 * i + j]), sums[j / 2]);
        }
      }
      // Lane p = 0 keeps the first token, p = 1 the second.
      const float other = __shfl_xor_sync(kAllLanes, lane % 2 == 0 ? sums[1] : sums[0], 1);
      float score = (lane % 2 == 0 ? sums[0] : sums[1]) + other;
      score += __shfl_xor_sync(kAllLanes, score, 2);
      if (lane % 4 < 2 && left > 0) *score_at = Keys::kScaled ? score * scale : score;
      score_at += kGroups * kPageTokens;
      left -= kGroups * static_cast<int>(kPageTokens);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1U;
      }
    }
  }
};

template <class Keys, int kHeads>
__global__ void __launch_bounds__(128 * Keys::kGroups, 1) score_kernel(const IndexScoresDeviceParams params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<Keys, kHeads>*>(memory);
  const ScoredPages& rows = params.rows;
  if (threadIdx.x < Keys::kGroups * Keys::kStages) init_copy_barrier(&shared.filled[0][0] + threadIdx.x);
  let_next_kernel_start();
  wait_for_kernels_before();
  count_units(shared.units, rows.rows, [&](std::int64_t row) { return pages_for_tokens(scored_length(rows, row)); });
  Group<Keys, kHeads> group{shared, rows};
  for_my_units(shared.units, rows.rows, [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    const std::int64_t query = query_row(rows, row);
    group.begin_row(row, begin, end);
    __syncthreads();  // the row before is done with the query
    load_query<Keys, kHeads>(shared, params.q + query * params.q_stride, params.weights + query * params.heads);
    __syncthreads();
    __syncthreads();  // racecheck does not see one barrier of the block behind those of its groups
    group.score_row(row, begin);
  });
}

template <class Keys, int kHeads>
void launch(const IndexScoresDeviceParams& params, unsigned blocks, Stream stream) {
  static_assert(sizeof(Shared<Keys, kHeads>) <= 227 * 1024, "more than a block has on Hopper");
  static const bool ready = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(score_kernel<Keys, kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Shared<Keys, kHeads>))));
    return true;
  }();
  static_cast<void>(ready);
  launch_dependent(score_kernel<Keys, kHeads>, dim3(blocks), 128 * Keys::kGroups, sizeof(Shared<Keys, kHeads>), 0,
                   stream, params);
}

// 32 or 64 heads; at most kMostLaunchRows rows; Hopper only.
template <class Keys>
void launch_index_pages(const IndexScoresDeviceParams& params, Stream stream) {
  HS_CHECK(params.rows.rows <= kMostLaunchRows && params.rows.geometry.page_bytes() == Keys::kPageBytes,
           "not the tuned form's shape");
  HS_CHECK(params.q_stride % 4 == 0, "queries are read 16 bytes at a time");
  const std::int64_t pages = params.rows.rows * pages_for_tokens(params.rows.max_length);
  const std::int64_t multiprocessors = launch_limits().multiprocessors_beside(params.spared_multiprocessors);
  const std::int64_t chosen = std::clamp<std::int64_t>(ceil_div(pages, Keys::kGroups), 1, multiprocessors);
  const auto blocks = static_cast<unsigned>(params.grid_blocks > 0 ? params.grid_blocks : chosen);
  if (params.heads == 32) {
    launch<Keys, 32>(params, blocks, stream);
  } else {
    launch<Keys, 64>(params, blocks, stream);
  }
}

}  // namespace hotset::kernels::cuda::index_pages
