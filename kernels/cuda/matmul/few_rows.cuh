// The kernel of few_rows.h.
//
// A block takes units of 16 kTiles channels, one per multiprocessor at a time. A unit's sum over k comes in items of
// 128 bytes of every row, W's and x's. Item i belongs to warp i % 8, which copies its items itself: a ring of slots of
// its own, refilled as soon as it has read one, so that nobody waits for anybody before the sums of the warps are added
// up. All slots of a block hold 200 KB, several times what must be under way to keep the memory busy; those of the
// first items are filled before the kernels ahead are done.
//
// Weights are the rows of the tensor cores' products (m16n8k16), tokens the columns. Which k a product's columns stand
// for is free, if it is the same for both: a lane of four takes 16 bytes of k at 32 bytes * lane, then the 16 behind,
// which the swizzle of the copies spreads over all banks.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/experts/pipeline.cuh"
#include "kernels/cuda/selection/dependent_launch.cuh"

namespace hotset::kernels::cuda {

template <class ElementType, int kTilesOfUnit, int kTokenTilesOfUnit, int kWarpsOfBlock, int kBlocksOfMultiprocessor>
struct FewRowsForm {
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kBlocksOfMultiprocessor;
  using Element = ElementType;
  static constexpr bool kF32 = std::is_same_v<Element, float>;
  static constexpr int kTiles = kTilesOfUnit;            // of 16 rows of W
  static constexpr int kTokenTiles = kTokenTilesOfUnit;  // of 8 rows of x
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kDepth = 128 / static_cast<int>(sizeof(Element));  // of k in an item
  static constexpr int kWeightBytes = 16 * kTiles * 128;
  static constexpr int kItemBytes = kWeightBytes + kTokens * 128;
  static constexpr int kMergeTiles = std::min(kTiles, 2 / kTokenTiles);  // whose sums are added up at once
  static constexpr int kMergeStride = 20;                                // floats of a token: no bank twice
  static constexpr int kMergeFloats = kWarps * kMergeTiles * kTokens * kMergeStride;
  static constexpr int kMostShared = kBlocks == 1 ? 227 * 1024 : 113 * 1024;
  static constexpr int kSlots = (kMostShared - 2048 - 4 * kMergeFloats) / (kWarps * kItemBytes);  // of a warp
  static_assert(!kF32 || kTokenTiles == 1);
  static_assert(kSlots >= 1);
};

template <class Form>
struct alignas(1024) FewRowsShared {
  unsigned char items[Form::kWarps][Form::kSlots][Form::kItemBytes];
  float sums[Form::kWarps][Form::kMergeTiles][Form::kTokens][Form::kMergeStride];
  std::uint64_t filled[Form::kWarps][Form::kSlots];
};

struct FewRowsMaps {
  CUtensorMap weight, x;
};

struct FewRowsArgs {
  const void* bias;
  void* y;
  std::int64_t y_stride, y_step;
  std::int64_t n;
  int m;
  int items;          // of a unit
  int units;          // of all products
  int product_units;  // of one
  bool y_f32, accumulate, gated;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Weights are read once: they should not drive anything else out of the L2.
__device__ __forceinline__ std::uint64_t read_once_policy() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int k, int row,
                                             int product, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(k), "r"(row), "r"(product), "l"(policy)
      : "memory");
}
// Eight gate rows, then the up rows of the same channels, tile by tile.
__device__ __forceinline__ void copy_gated_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int k,
                                                   int tile, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(k), "r"(0), "r"(tile), "l"(policy)
      : "memory");
}

// The items of one warp in the order in which it multiplies them. One lane uses it.
template <class Form>
class ItemCopier {
 public:
  __device__ ItemCopier(FewRowsShared<Form>& shared, const FewRowsMaps& maps, const FewRowsArgs& args, int warp)
      : shared_(shared), maps_(maps), args_(args), warp_(warp), item_(warp), policy_(read_once_policy()) {
    take_unit(static_cast<int>(blockIdx.x));
  }
  __device__ __forceinline__ bool done() const { return unit_ >= args_.units || warp_ >= args_.items; }
  __device__ __forceinline__ void start(int slot) {
    arrive_expecting(&shared_.filled[warp_][slot], Form::kItemBytes);
    void* const to = shared_.items[warp_][slot];
    const int k = item_ * Form::kDepth;
    if (args_.gated) {
      copy_gated_weights(to, &maps_.weight, &shared_.filled[warp_][slot], k, row_ / 16, policy_);
    } else {
      copy_weights(to, &maps_.weight, &shared_.filled[warp_][slot], k, row_, product_, policy_);
    }
  }
  // The other part of what start() expects.
  __device__ __forceinline__ void start_x(int slot) {
    copy_box(shared_.items[warp_][slot] + Form::kWeightBytes, &maps_.x, &shared_.filled[warp_][slot],
             item_ * Form::kDepth, 0, product_);
  }
  __device__ __forceinline__ void advance() {
    item_ += Form::kWarps;
    if (item_ < args_.items) return;
    item_ = warp_;
    take_unit(unit_ + static_cast<int>(gridDim.x));
  }

 private:
  __device__ __forceinline__ void take_unit(int unit) {
    unit_ = unit;
    product_ = unit / args_.product_units;
    row_ = (unit - product_ * args_.product_units) * 16 * Form::kTiles;
  }

  FewRowsShared<Form>& shared_;
  const FewRowsMaps& maps_;
  const FewRowsArgs& args_;
  int warp_, item_;
  int unit_, product_, row_;
  std::uint64_t policy_;
};

__device__ __forceinline__ void multiply_16x8(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Sums of a lane, row = lane / 4, token = lane % 4 * 2: [.][.][0 ... 3] are (row, token), (row, token + 1),
// (row + 8, token), (row + 8, token + 1).
template <class Form>
using TileSums = float[Form::kTiles][Form::kTokenTiles][4];

template <class Form>
__device__ __forceinline__ void multiply_item(TileSums<Form>& sums, const unsigned char* item, int lane) {
  const int row = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row * 128 + ((lane % 4 * 2 + half) ^ row) * 16;
    uint4 x[Form::kTokenTiles];
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
      x[j] = *reinterpret_cast<const uint4*>(item + Form::kWeightBytes + j * 1024 + at);
    }
#pragma unroll
    for (int tile = 0; tile < Form::kTiles; ++tile) {
      const uint4 low = *reinterpret_cast<const uint4*>(item + tile * 2048 + at);
      const uint4 high = *reinterpret_cast<const uint4*>(item + tile * 2048 + 1024 + at);
#pragma unroll
      for (int j = 0; j < Form::kTokenTiles; ++j) {
        multiply_16x8(sums[tile][j], low.x, high.x, low.y, high.y, x[j].x, x[j].y);
        multiply_16x8(sums[tile][j], low.z, high.z, low.w, high.w, x[j].z, x[j].w);
      }
    }
  }
}

// float32: a lane sums a quarter of k for rows `row`, `row + 8` and eight tokens.
template <class Form>
using LaneSums = float[Form::kTiles][2][8];

__device__ __forceinline__ float add_products(float sum, float4 w, float4 x) {
  return fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
}

template <class Form>
__device__ __forceinline__ void multiply_item(LaneSums<Form>& sums, const unsigned char* item, int lane) {
  const int row = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int chunk = lane % 4 * 2 + half;
    float4 x[8];
#pragma unroll
    for (int token = 0; token < 8; ++token) {
      x[token] = *reinterpret_cast<const float4*>(item + Form::kWeightBytes + token * 128 + (chunk ^ token) * 16);
    }
#pragma unroll
    for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float4 w =
            *reinterpret_cast<const float4*>(item + tile * 2048 + side * 1024 + row * 128 + (chunk ^ row) * 16);
#pragma unroll
        for (int token = 0; token < 8; ++token) {
          sums[tile][side][token] = add_products(sums[tile][side][token], w, x[token]);
        }
      }
    }
  }
}

// Adds up the four lanes of a row.
template <class Form>
__device__ __forceinline__ void join_lanes(const LaneSums<Form>& parts, TileSums<Form>& sums, int lane) {
#pragma unroll
  for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int token = 0; token < 8; ++token) {
        float sum = parts[tile][side][token];
        sum += __shfl_xor_sync(0xffffffffU, sum, 1);
        sum += __shfl_xor_sync(0xffffffffU, sum, 2);
        if (lane % 4 == token / 2) sums[tile][0][2 * side + token % 2] = sum;
      }
    }
  }
}

__device__ __forceinline__ float gated_product(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0F, expf(-gate))), up);
}

__device__ __forceinline__ void store_channel(const FewRowsArgs& args, int product, int token, std::int64_t channel,
                                              float sum) {
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

// By all threads of the block. Adds up the warps' sums in their order.
template <class Form>
__device__ __forceinline__ void store_unit(FewRowsShared<Form>& shared, const FewRowsArgs& args, int unit,
                                           const TileSums<Form>& sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int row = thread % 32 / 4;
  const int column = thread % 4 * 2;
  const int product = unit / args.product_units;
  const int tile_channels = args.gated ? 8 : 16;
  const std::int64_t first_channel = std::int64_t{unit - product * args.product_units} * Form::kTiles * tile_channels;
#pragma unroll
  for (int first = 0; first < Form::kTiles; first += Form::kMergeTiles) {
    constexpr int kMost = Form::kMergeTiles;
    const int tiles = min(kMost, Form::kTiles - first);
    __syncthreads();  // what was there has been read
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (first + i >= Form::kTiles) continue;
#pragma unroll
      for (int j = 0; j < Form::kTokenTiles; ++j) {
        auto& to = shared.sums[warp][i];
        const auto& from = sums[first + i][j];
        to[8 * j + column][row] = from[0];
        to[8 * j + column + 1][row] = from[1];
        to[8 * j + column][row + 8] = from[2];
        to[8 * j + column + 1][row + 8] = from[3];
      }
    }
    __syncthreads();
    const int channels = tiles * tile_channels;
    for (int i = thread; i < channels * args.m; i += Form::kThreads) {
      const int token = i / channels;
      const int local = i - token * channels;
      const int tile = local / tile_channels;
      const int of_tile = local - tile * tile_channels;
      const auto sum_of = [&](int channel) {
        float sum = shared.sums[0][tile][token][channel];
#pragma unroll
        for (int w = 1; w < Form::kWarps; ++w) sum += shared.sums[w][tile][token][channel];
        return sum;
      };
      const std::int64_t channel = first_channel + first * tile_channels + local;
      if (channel >= args.n) continue;
      float sum = sum_of(of_tile);
      if (args.gated) sum = gated_product(sum, sum_of(of_tile + 8));
      store_channel(args, product, token, channel, sum);
    }
  }
}

#endif

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    few_rows_kernel([[maybe_unused]] const __grid_constant__ FewRowsMaps maps,
                    [[maybe_unused]] const __grid_constant__ FewRowsArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<FewRowsShared<Form>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                                         ~std::uintptr_t{1023});
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_kernel_start();
  ItemCopier<Form> copier(shared, maps, args, warp);
  if (lane == 0) {
    for (int slot = 0; slot < Form::kSlots; ++slot) init_barrier(&shared.filled[warp][slot], 1);
    publish_barriers();
    ItemCopier<Form> early = copier;
    for (int slot = 0; slot < Form::kSlots && !early.done(); ++slot) {
      early.start(slot);
      early.advance();
    }
  }
  __syncwarp();
  wait_for_kernels_before();
  if (lane == 0) {
    for (int slot = 0; slot < Form::kSlots && !copier.done(); ++slot) {
      copier.start_x(slot);
      copier.advance();
    }
  }
  __syncwarp();
  int slot = 0;
  std::uint32_t parity = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < args.units; unit += static_cast<int>(gridDim.x)) {
    std::conditional_t<Form::kF32, LaneSums<Form>, TileSums<Form>> sums = {};
    for (int item = warp; item < args.items; item += Form::kWarps) {
      wait_barrier(&shared.filled[warp][slot], parity);
      multiply_item<Form>(sums, shared.items[warp][slot], lane);
      __syncwarp();
      if (lane == 0 && !copier.done()) {
        copier.start(slot);
        copier.start_x(slot);
        copier.advance();
      }
      if (++slot == Form::kSlots) {
        slot = 0;
        parity ^= 1U;
      }
    }
    if constexpr (Form::kF32) {
      TileSums<Form> joined = {};
      join_lanes<Form>(sums, joined, lane);
      store_unit<Form>(shared, args, unit, joined);
    } else {
      store_unit<Form>(shared, args, unit, sums);
    }
  }
#endif
}

}  // namespace hotset::kernels::cuda
