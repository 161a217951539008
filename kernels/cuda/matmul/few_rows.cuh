// The kernel of few_rows.h.
//
// Blocks take units of 16 kTiles channels. A unit's sum over k comes in items: 256 bytes of k of every row, W's and
// x's, one copy each. Item i belongs to warp i % kSplit of those that share the unit. A warp copies its items itself:
// into a ring of slots of its own, refilled as soon as it has read one, so that nobody waits for anybody before the
// sums of the warps are added up. All slots of a block hold 130 to 200 KB, several times what must be under way to keep
// the memory busy; those of the first items are filled before the kernels ahead are done.
//
// Weights are the rows of the tensor cores' products (m16n8k16), tokens the columns. Which k a product's columns stand
// for is free, if it is the same for both: a lane of four takes 16 bytes of k at 32 bytes * lane, then the 16 behind,
// which the swizzle of the copies spreads over all banks. Columns without a token multiply what happens to lie there.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/pipeline.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kFewRowsWarps = 8;
inline constexpr int kFewRowsThreads = 32 * kFewRowsWarps;

// kWide: x is float32, W bfloat16. kSplit: warps that share a unit, all or 1.
template <class ElementType, int kTilesOfUnit, int kTokenTilesOfUnit, int kSplitOfUnit, bool kWideX>
struct FewRowsForm {
  using Element = ElementType;
  static constexpr bool kF32 = std::is_same_v<Element, float>;
  static constexpr int kTiles = kTilesOfUnit;            // of 16 rows of W
  static constexpr int kTokenTiles = kTokenTilesOfUnit;  // of 8 rows of x
  static constexpr int kSplit = kSplitOfUnit;
  static constexpr bool kWide = kWideX;
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kLines = 2;                                            // of 128 bytes of a row of W in an item
  static constexpr int kLineDepth = 128 / static_cast<int>(sizeof(Element));  // of k
  static constexpr int kDepth = kLines * kLineDepth;
  static constexpr int kXLines = kWide ? 2 * kLines : kLines;
  static constexpr int kWeightBytes = kLines * kTiles * 16 * 128;
  static constexpr int kItemBytes = kWeightBytes + kXLines * kTokens * 128;
  static constexpr int kMergeTiles = std::min(kTiles, 2 / kTokenTiles);  // whose sums are added up at once
  static constexpr int kMergeStride = 20;                                // floats of a token: no bank twice
  static constexpr int kMergeWarps = kSplit == 1 ? 1 : kFewRowsWarps;
  static constexpr int kMergeFloats = kMergeWarps * kMergeTiles * kTokens * kMergeStride;
  static constexpr int kMostShared = 227 * 1024;
  static constexpr int kSlots =
      std::min(8, (kMostShared - 2048 - 4 * kMergeFloats) / (kFewRowsWarps * kItemBytes));  // of a warp
  static_assert(!kF32 || (kTokenTiles == 1 && !kWide));
  static_assert(kSlots >= 1);
};

template <class Form>
struct alignas(1024) FewRowsShared {
  unsigned char items[kFewRowsWarps][Form::kSlots][Form::kItemBytes];
  float sums[Form::kMergeWarps][Form::kMergeTiles][Form::kTokens][Form::kMergeStride];
  std::uint64_t filled[kFewRowsWarps][Form::kSlots];
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
// First row and line of the box; of one product of several.
__device__ __forceinline__ void copy_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int row,
                                             int line, int product, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(row), "r"(line), "r"(product), "l"(policy)
      : "memory");
}
// Eight gate rows, then the up rows of the same channels, tile by tile.
__device__ __forceinline__ void copy_gated_weights(void* to, const CUtensorMap* map, std::uint64_t* barrier, int tile,
                                                   int line, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%3, %3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(tile), "r"(line), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void copy_rows(void* to, const CUtensorMap* map, std::uint64_t* barrier, int line,
                                          int product) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(line), "r"(product)
      : "memory");
}

// The units and items of one warp in the order in which it multiplies them.
template <class Form>
struct WarpWork {
  __device__ WarpWork(const FewRowsArgs& args, int warp)
      : first_item(warp % Form::kSplit),
        unit_step(static_cast<int>(gridDim.x) * (kFewRowsWarps / Form::kSplit)),
        first_unit(static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) * (warp / Form::kSplit)),
        units(first_item < args.items ? args.units : 0) {}
  int first_item, unit_step, first_unit;
  int units;  // end of them; 0: it has no items
};

// Copies the items of a warp. One lane uses it.
template <class Form>
class ItemCopier {
 public:
  __device__ ItemCopier(FewRowsShared<Form>& shared, const FewRowsMaps& maps, const FewRowsArgs& args, int warp)
      : items_(shared.items[warp]),
        filled_(shared.filled[warp]),
        maps_(maps),
        args_(args),
        work_(args, warp),
        item_(work_.first_item),
        bytes_(Form::kWeightBytes + static_cast<std::uint32_t>(args.m) * Form::kXLines * 128),
        policy_(read_once_policy()) {
    take_unit(work_.first_unit);
  }
  __device__ __forceinline__ bool done() const { return unit_ >= work_.units; }
  __device__ __forceinline__ void start(int slot) {
    arrive_expecting(&filled_[slot], bytes_);
    const int line = item_ * Form::kLines;
    if (args_.gated) {
      copy_gated_weights(items_[slot], &maps_.weight, &filled_[slot], row_ / 16, line, policy_);
    } else {
      copy_weights(items_[slot], &maps_.weight, &filled_[slot], row_, line, product_, policy_);
    }
  }
  // The other part of what start() expects.
  __device__ __forceinline__ void start_x(int slot) {
    copy_rows(items_[slot] + Form::kWeightBytes, &maps_.x, &filled_[slot], item_ * Form::kXLines, product_);
  }
  __device__ __forceinline__ void advance() {
    item_ += Form::kSplit;
    if (item_ < args_.items) return;
    item_ = work_.first_item;
    take_unit(unit_ + work_.unit_step);
  }

 private:
  __device__ __forceinline__ void take_unit(int unit) {
    unit_ = unit;
    product_ = unit / args_.product_units;
    row_ = (unit - product_ * args_.product_units) * 16 * Form::kTiles;
  }

  unsigned char (*items_)[Form::kItemBytes];
  std::uint64_t* filled_;
  const FewRowsMaps& maps_;
  const FewRowsArgs& args_;
  WarpWork<Form> work_;
  int item_;
  int unit_, product_, row_;
  std::uint32_t bytes_;
  std::uint64_t policy_;
};

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

// A warp's barriers and first items: weights before the kernels ahead are done, x behind them.
template <class Copier, std::size_t kSlots>
__device__ __forceinline__ void start_first_items(Copier& copier, std::uint64_t (&filled)[kSlots], int lane) {
  if (lane == 0) {
    for (int slot = 0; slot < static_cast<int>(kSlots); ++slot) init_barrier(&filled[slot], 1);
    publish_barriers();
    Copier early = copier;
    for (int slot = 0; slot < static_cast<int>(kSlots) && !early.done(); ++slot) {
      early.start(slot);
      early.advance();
    }
  }
  __syncwarp();
  wait_for_kernels_before();
  if (lane == 0) {
    for (int slot = 0; slot < static_cast<int>(kSlots) && !copier.done(); ++slot) {
      copier.start_x(slot);
      copier.advance();
    }
  }
  __syncwarp();
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

template <class Form>
__global__ void __launch_bounds__(kFewRowsThreads, 1)
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
  start_first_items(copier, shared.filled[warp], lane);
  const WarpWork<Form> work(args, warp);
  int slot = 0;
  std::uint32_t parity = 0;
  for (int unit = work.first_unit; unit < args.units; unit += work.unit_step) {
    std::conditional_t<Form::kF32, LaneSums<Form>, ProductSums<Form>> sums = {};
    for (int item = work.first_item; item < args.items; item += Form::kSplit) {
      wait_barrier(&shared.filled[warp][slot], parity);
      multiply_item<Form>(sums, shared.items[warp][slot], args.m, lane);
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
    TileSums<Form> joined = {};
    finish_sums<Form>(sums, joined, lane);
    if constexpr (Form::kSplit == 1) {
      store_own_unit<Form>(args, unit, joined, lane);
    } else {
      store_unit<Form>(shared, args, unit, joined);
    }
  }
#endif
}

}  // namespace hotset::kernels::cuda
