// The kernel of grouped_gemm.h.
//
// Weights are the rows of the tensor cores' products and tokens their columns: a group of few rows costs a narrow
// product, and every weight is read once for up to kTokens rows. One block per multiprocessor takes tiles in turn; the
// tiles of a group's rows that share weights are neighbours, so the second one finds them in the L2.
// One warp copies (box by box, a ring of kStages), warpgroups of 64 weight rows multiply. Gate and up channels
// alternate in groups of 8 rows, as the five-dimensional tensor map lays them: a thread then holds both of a channel.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/pipeline.cuh"
#include "kernels/cuda/experts/tensor_map.h"
#include "kernels/cuda/experts/warpgroup_products.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

// kWeightRows 64: few rows, bound by memory. 128: many rows.
template <class ElementType, bool kGatedPair, int kWeightRowsOfTile>
struct GroupedTile {
  using Element = ElementType;
  static constexpr bool kGated = kGatedPair;
  static constexpr bool kScaled = std::is_same_v<Element, __nv_fp8_e4m3>;
  static constexpr int kWeightRows = kWeightRowsOfTile;
  static constexpr bool kLarge = kWeightRows == 128;
  static constexpr int kTokens = kLarge ? 256 : 64;
  static constexpr int kBoxTokens = kLarge ? 32 : 8;
  static constexpr int kWarpgroups = kWeightRows / 64;
  static constexpr int kThreads = kWarpgroups * 128 + (kLarge ? 128 : 32);
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(Element));  // of k in a stage
  static constexpr int kStages = kLarge ? 4 : 12;
  static constexpr int kChannels = kGated ? kWeightRows / 2 : kWeightRows;  // of a tile's output
};

template <class Tile>
struct alignas(1024) GroupedShared {
  unsigned char weights[Tile::kStages][Tile::kWeightRows * 128];
  unsigned char tokens[Tile::kStages][Tile::kTokens * 128];
  alignas(128) float scales[Tile::kScaled ? Tile::kStages : 1][Tile::kTokens];
  std::uint64_t filled[Tile::kStages];
  std::uint64_t freed[Tile::kStages];
  std::int32_t first_tile[kMostGroups + 1];
  std::int32_t first_row[kMostGroups];
  std::int32_t rows[kMostGroups];
};

struct GroupedMaps {
  CUtensorMap weight, rows, scales;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct TilePlace {
  int group, weight_tile;
  int first_row, rows;  // of the tile
};

template <class Tile>
__device__ __forceinline__ TilePlace find_tile(const GroupedShared<Tile>& shared, int groups, int tile) {
  int low = 0;
  int high = groups;  // first_tile[low] <= tile < first_tile[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (shared.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int rows = shared.rows[low];
  const int row_tiles = (rows + Tile::kTokens - 1) / Tile::kTokens;
  const int local = tile - shared.first_tile[low];
  // Even shares, so that the last one isn't a sliver.
  const int share = ((rows + row_tiles - 1) / row_tiles + Tile::kBoxTokens - 1) / Tile::kBoxTokens * Tile::kBoxTokens;
  const int begin = local % row_tiles * share;
  return {low, local / row_tiles, shared.first_row[low] + begin, max(0, min(share, rows - begin))};
}

template <class Tile>
__device__ __forceinline__ int product_tokens(int rows) {
  if constexpr (Tile::kLarge) return (max(rows, 1) + 63) / 64 * 64;
  return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

// Rows and tiles of the groups, by the first warp.
template <class Tile>
__device__ void plan_tiles(GroupedShared<Tile>& shared, const GroupedGemm& gemm) {
  const int lane = static_cast<int>(threadIdx.x);
  const int weight_tiles = static_cast<int>((gemm.n + Tile::kChannels - 1) / Tile::kChannels);
  int before = 0;
  for (int base = 0; base < gemm.groups; base += 32) {
    const int group = base + lane;
    int begin = 0;
    int end = 0;
    if (group < gemm.groups) {
      begin = gemm.begins == nullptr ? 0 : gemm.begins[group];
      end = gemm.begins == nullptr ? static_cast<int>(gemm.row_bound) : gemm.ends[group];
    }
    const int tiles = (end - begin + Tile::kTokens - 1) / Tile::kTokens * weight_tiles;
    int sum = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffU, sum, step);
      if (lane >= step) sum += other;
    }
    if (group < gemm.groups) {
      shared.first_tile[group] = before + sum - tiles;
      shared.first_row[group] = begin;
      shared.rows[group] = end - begin;
      if (group == gemm.groups - 1) shared.first_tile[group + 1] = before + sum;
    }
    before += __shfl_sync(0xffffffffU, sum, 31);
  }
}

struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;
  template <int kStages>
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

// One thread.
template <class Tile>
__device__ void copy_tiles(GroupedShared<Tile>& shared, const GroupedGemm& gemm, const GroupedMaps& maps) {
  const int steps = static_cast<int>((gemm.k + Tile::kDepth - 1) / Tile::kDepth);
  const int tiles = shared.first_tile[gemm.groups];
  RingPlace at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const TilePlace place = find_tile(shared, gemm.groups, tile);
    const int boxes = product_tokens<Tile>(place.rows) / Tile::kBoxTokens;
    const std::uint32_t bytes = Tile::kWeightRows * 128 + static_cast<std::uint32_t>(boxes) * Tile::kBoxTokens * 128 +
                                (Tile::kScaled ? Tile::kTokens * 4 : 0);
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared.freed[at.stage], at.parity ^ 1U);
      std::uint64_t* const filled = &shared.filled[at.stage];
      arrive_expecting(filled, bytes);
      const int k = step * Tile::kDepth;
      if constexpr (Tile::kGated) {
        copy_box(shared.weights[at.stage], &maps.weight, filled, k, 0, 0, place.weight_tile * (Tile::kWeightRows / 16),
                 place.group);
      } else {
        copy_box(shared.weights[at.stage], &maps.weight, filled, k, place.weight_tile * Tile::kWeightRows, place.group);
      }
      for (int box = 0; box < boxes; ++box) {
        copy_box(shared.tokens[at.stage] + box * Tile::kBoxTokens * 128, &maps.rows, filled, k,
                 place.first_row + box * Tile::kBoxTokens);
      }
      if constexpr (Tile::kScaled) {
        copy_box(shared.scales[at.stage], &maps.scales, filled, place.first_row, step);
      }
      at.advance<Tile::kStages>();
    }
  }
}

// The weights' scales of this warpgroup's rows: gate and up, or one twice.
template <class Tile>
__device__ __forceinline__ float2 weight_scales(const GroupedGemm& gemm, const TilePlace& place, int warpgroup,
                                                int step) {
  const std::int64_t scale_rows = (gemm.n + kFp8Block - 1) / kFp8Block;
  const std::int64_t scale_columns = gemm.k / kFp8Block;
  const std::int64_t channel = std::int64_t{place.weight_tile} * Tile::kChannels + warpgroup * (Tile::kGated ? 32 : 64);
  const std::int64_t row = min(channel / kFp8Block, scale_rows - 1);  // past the end: of no use
  if constexpr (Tile::kGated) {
    const float* const scales = gemm.weight_scales + (std::int64_t{place.group} * 2 * scale_rows + row) * scale_columns;
    return make_float2(scales[step], scales[scale_rows * scale_columns + step]);
  } else {
    const float scale = gemm.weight_scales[(place.group * scale_rows + row) * scale_columns + step];
    return make_float2(scale, scale);
  }
}

template <int kCount>
__device__ __forceinline__ void multiply_bf16(float (&sums)[kCount / 2], std::uint32_t weights, std::uint32_t tokens,
                                              bool first) {
  begin_products();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    multiply(__nv_bfloat16{}, sums, tile_operand(weights + 32 * i), tile_operand(tokens + 32 * i), !first || i > 0);
  }
  commit_products();
}

// Adds 128 of k, scaled, part by part of the tokens: two full sets of sums don't fit into the registers.
template <int kCount>
__device__ __forceinline__ void multiply_scaled(float (&sums)[kCount / 2], std::uint32_t weights, std::uint32_t tokens,
                                                const float* token_scales, float2 scale, int lane) {
  constexpr int kPart = kCount == 192 ? 64 : kCount < 128 ? kCount : 128;
#pragma unroll
  for (int part = 0; part < kCount / kPart; ++part) {
    float products[kPart / 2];
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply(__nv_fp8_e4m3{}, products, tile_operand(weights + 32 * i),
               tile_operand(tokens + part * kPart * 128 + 32 * i), i > 0);
    }
    commit_products();
    wait_products<0>();
    name_changed(products);
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      const float2 token = *reinterpret_cast<const float2*>(token_scales + part * kPart + 8 * j + 2 * (lane % 4));
      float* const to = sums + part * kPart / 2 + 4 * j;
      to[0] = fmaf(products[4 * j], token.x * scale.x, to[0]);
      to[1] = fmaf(products[4 * j + 1], token.y * scale.x, to[1]);
      to[2] = fmaf(products[4 * j + 2], token.x * scale.y, to[2]);
      to[3] = fmaf(products[4 * j + 3], token.y * scale.y, to[3]);
    }
  }
}

__device__ __forceinline__ void store_sum(const GroupedGemm& gemm, std::int64_t row, std::int64_t channel, float sum) {
  const std::int64_t at = row * gemm.out_stride + channel;
  if (gemm.bias != nullptr) sum += gemm.bias[channel];
  if (gemm.out_type == ActivationType::kF32) {
    float* const out = static_cast<float*>(gemm.out) + at;
    *out = gemm.accumulate ? *out + sum : sum;
  } else {
    __nv_bfloat16* const out = static_cast<__nv_bfloat16*>(gemm.out) + at;
    *out = __float2bfloat16_rn(gemm.accumulate ? __bfloat162float(*out) + sum : sum);
  }
}

__device__ __forceinline__ float gated(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0F, expf(-gate))), up);
}

template <class Tile, int kCount>
__device__ __forceinline__ void store_tile(const GroupedGemm& gemm, const TilePlace& place, int thread,
                                           const float (&sums)[kCount / 2]) {
  const int lane = thread % 32;
  const std::int64_t channel =
      std::int64_t{place.weight_tile} * Tile::kChannels + thread / 32 * (Tile::kGated ? 8 : 16) + lane / 4;
#pragma unroll
  for (int j = 0; j < kCount / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + 2 * (lane % 4) + i;
      if (token >= place.rows) continue;
      const std::int64_t row = std::int64_t{place.first_row} + token;
      const float low = sums[4 * j + i];
      const float high = sums[4 * j + 2 + i];
      if constexpr (Tile::kGated) {
        if (channel < gemm.n) store_sum(gemm, row, channel, gated(low, high));
      } else {
        if (channel < gemm.n) store_sum(gemm, row, channel, low);
        if (channel + 8 < gemm.n) store_sum(gemm, row, channel + 8, high);
      }
    }
  }
}

// A stage is free again when every warp has said so.
template <class Tile>
__device__ __forceinline__ void free_stage(GroupedShared<Tile>& shared, int stage, int lane) {
  if (lane == 0) arrive(&shared.freed[stage]);
}

template <class Tile, int kCount>
__device__ __forceinline__ void multiply_tile(GroupedShared<Tile>& shared, const GroupedGemm& gemm,
                                              const TilePlace& place, RingPlace& at, int thread) {
  const int steps = static_cast<int>((gemm.k + Tile::kDepth - 1) / Tile::kDepth);
  const int warpgroup = thread / 128;
  const int lane = thread % 32;
  float sums[kCount / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0F;
  if constexpr (Tile::kScaled) {
    float2 next = weight_scales<Tile>(gemm, place, warpgroup, 0);
    for (int step = 0; step < steps; ++step) {
      const float2 scale = next;
      if (step + 1 < steps) next = weight_scales<Tile>(gemm, place, warpgroup, step + 1);
      wait_barrier(&shared.filled[at.stage], at.parity);
      multiply_scaled<kCount>(sums, shared_address(shared.weights[at.stage] + warpgroup * 64 * 128),
                              shared_address(shared.tokens[at.stage]), shared.scales[at.stage], scale, lane);
      __syncwarp();  // every lane has read its scales
      free_stage(shared, at.stage, lane);
      at.advance<Tile::kStages>();
    }
  } else {
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared.filled[at.stage], at.parity);
      multiply_bf16<kCount>(sums, shared_address(shared.weights[at.stage] + warpgroup * 64 * 128),
                            shared_address(shared.tokens[at.stage]), step == 0);
      if (step > 0) {
        wait_products<1>();
        free_stage(shared, before, lane);
      }
      before = at.stage;
      at.advance<Tile::kStages>();
    }
    wait_products<0>();
    name_changed(sums);
    free_stage(shared, before, lane);
  }
  store_tile<Tile, kCount>(gemm, place, thread, sums);
}

template <class Tile>
__device__ void multiply_tiles(GroupedShared<Tile>& shared, const GroupedGemm& gemm, int thread) {
  const int tiles = shared.first_tile[gemm.groups];
  RingPlace at;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += static_cast<int>(gridDim.x)) {
    const TilePlace place = find_tile(shared, gemm.groups, tile);
    const int tokens = product_tokens<Tile>(place.rows);
    if constexpr (Tile::kLarge) {
      if (tokens == 64) multiply_tile<Tile, 64>(shared, gemm, place, at, thread);
      if (tokens == 128) multiply_tile<Tile, 128>(shared, gemm, place, at, thread);
      if (tokens == 192) multiply_tile<Tile, 192>(shared, gemm, place, at, thread);
      if (tokens == 256) multiply_tile<Tile, 256>(shared, gemm, place, at, thread);
    } else {
      if (tokens == 8) multiply_tile<Tile, 8>(shared, gemm, place, at, thread);
      if (tokens == 16) multiply_tile<Tile, 16>(shared, gemm, place, at, thread);
      if (tokens == 32) multiply_tile<Tile, 32>(shared, gemm, place, at, thread);
      if (tokens == 64) multiply_tile<Tile, 64>(shared, gemm, place, at, thread);
    }
  }
}

#endif

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    grouped_gemm_kernel([[maybe_unused]] const GroupedGemm gemm,
                        [[maybe_unused]] const __grid_constant__ GroupedMaps maps) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<GroupedShared<Tile>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                                         ~std::uintptr_t{1023});
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kMultipliers = Tile::kWarpgroups * 128;
  let_next_kernel_start();
  if (thread == kMultipliers) {
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      init_barrier(&shared.filled[stage], 1);
      init_barrier(&shared.freed[stage], Tile::kWarpgroups * 4);
    }
    publish_barriers();
  }
  wait_for_kernels_before();
  if (thread < 32) plan_tiles(shared, gemm);
  __syncthreads();
  if (thread >= kMultipliers) {
    if constexpr (Tile::kLarge) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == kMultipliers) copy_tiles(shared, gemm, maps);
  } else {
    if constexpr (Tile::kLarge) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_tiles(shared, gemm, thread);
  }
#endif
}

template <class Tile>
GroupedMaps make_maps(const GroupedGemm& gemm) {
  constexpr auto kSize = static_cast<std::uint64_t>(sizeof(typename Tile::Element));
  constexpr auto kType = Tile::kScaled ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto n = static_cast<std::uint64_t>(gemm.n);
  const auto k = static_cast<std::uint64_t>(gemm.k);
  const auto groups = static_cast<std::uint64_t>(gemm.groups);
  const auto rows = static_cast<std::uint64_t>(gemm.row_bound);
  GroupedMaps maps;
  if constexpr (Tile::kGated) {
    const std::array<TensorDimension, 5> weight = {{{k, 0, Tile::kDepth},
                                                    {8, k * kSize, 8},
                                                    {2, n * k * kSize, 2},
                                                    {n / 8, 8 * k * kSize, Tile::kWeightRows / 16},
                                                    {groups, 2 * n * k * kSize, 1}}};
    maps.weight = make_tensor_map(kType, gemm.weight, weight, true);
  } else {
    const std::array<TensorDimension, 3> weight = {
        {{k, 0, Tile::kDepth}, {n, k * kSize, Tile::kWeightRows}, {groups, n * k * kSize, 1}}};
    maps.weight = make_tensor_map(kType, gemm.weight, weight, true);
  }
  const std::array<TensorDimension, 2> tokens = {{{k, 0, Tile::kDepth}, {rows, k * kSize, Tile::kBoxTokens}}};
  maps.rows = make_tensor_map(kType, gemm.rows, tokens, true);
  if constexpr (Tile::kScaled) {
    const std::array<TensorDimension, 2> scales = {
        {{static_cast<std::uint64_t>(gemm.scale_stride), 0, Tile::kTokens},
         {k / kFp8Block, 4 * static_cast<std::uint64_t>(gemm.scale_stride), 1}}};
    maps.scales = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, gemm.row_scales, scales, false);
  } else {
    maps.scales = maps.rows;
  }
  return maps;
}

template <class Tile>
void launch_tile(const GroupedGemm& gemm, Stream stream) {
  constexpr std::size_t kBytes = sizeof(GroupedShared<Tile>) + 1024;
  static const int multiprocessors = [] {
    int device = 0;
    int count = 0;
    HOTSET_CUDA_CHECK(cudaGetDevice(&device));
    HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(grouped_gemm_kernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kBytes)));
    return count;
  }();
  // No group has more row tiles than this, and a tile of rows is one group's.
  const std::int64_t row_tiles = gemm.row_bound / Tile::kTokens + std::min<std::int64_t>(gemm.groups, gemm.row_bound);
  const std::int64_t tiles = row_tiles * ((gemm.n + Tile::kChannels - 1) / Tile::kChannels);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(multiprocessors, tiles));
  launch_dependent(grouped_gemm_kernel<Tile>, blocks, Tile::kThreads, kBytes, 0, stream, gemm, make_maps<Tile>(gemm));
}

template <class Element, bool kGated>
void launch_grouped(const GroupedGemm& gemm, Stream stream) {
  if (gemm.row_bound <= 0) return;
  constexpr bool kScaled = std::is_same_v<Element, __nv_fp8_e4m3>;
  HS_CHECK(gemm.groups >= 1 && gemm.groups <= kMostGroups, "so many groups fit");
  HS_CHECK(gemm.n % 8 == 0 && gemm.k % (kScaled ? kFp8Block : 8) == 0, "widths fit the tensor copies");
  constexpr std::int64_t kFewRows = 16;
  if (gemm.expected_rows <= kFewRows) {
    launch_tile<GroupedTile<Element, kGated, 64>>(gemm, stream);
  } else {
    launch_tile<GroupedTile<Element, kGated, 128>>(gemm, stream);
  }
}

}  // namespace hotset::kernels::cuda
