// The kernel of few_rows_fp8.h: few_rows.cuh's, with items that are one block of scales deep.
//
// Blocks take units of 16 kTiles channels. Item i of a unit, 128 of k of every row of W and x, belongs to warp
// i % kWarps, which copies its items itself into a ring of slots of its own. x comes again for every unit: with more
// tiles less often.
//
// A lane of four takes the 16 codes of a line's chunk 2 * lane (or the one behind) for rows `row` and `row + 8`, four
// codes a product (m16n8k16): codes 0 and 2 are the first two columns of k that the product gives a lane, 1 and 3 the
// others, and x's are put in that order. Lanes 2 and 3 take their two chunks the other way round: so x's, too, come
// from all banks.
//
// What widening costs decides how many bytes a multiprocessor can take. A code's exponent and fraction moved to where
// bfloat16 has them are 2^-120 of its value, subnormal ones too: two logical operations a pair, no product. x is
// multiplied by 2^60 (exact below 2^68) and the scales by as much, so that sums stay far from both ends of float32.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/pipeline.cuh"
#include "kernels/cuda/matmul/few_rows_copies.cuh"
#include "kernels/cuda/matmul/few_rows_products.cuh"
#include "kernels/cuda/matmul/few_rows_results.cuh"

namespace hotset::kernels::cuda {

template <int kTilesOfUnit, int kTokenTilesOfUnit, int kWarpsOfUnit>
struct FewRowsFp8Form {
  static constexpr int kWarps = kWarpsOfUnit;  // of a block
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTiles = kTilesOfUnit;            // of 16 rows of W
  static constexpr int kTokenTiles = kTokenTilesOfUnit;  // of 8 rows of x
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kDepth = 128;  // of k in an item: a line of W, two of x
  static constexpr int kWeightBytes = kTiles * 16 * kDepth;
  static constexpr int kItemBytes = kWeightBytes + 2 * kTokens * kDepth;
  static constexpr int kMergeTiles = std::min(kTiles, 2 / kTokenTiles);  // whose sums are added up at once
  static constexpr int kMergeStride = 20;                                // floats of a token: no bank twice
  static constexpr int kMergeBytes = 4 * kWarps * kMergeTiles * kTokens * kMergeStride;
  static constexpr int kSlots = std::min(8, (227 * 1024 - 2048 - kMergeBytes) / (kWarps * kItemBytes));
  static_assert(kSlots >= 2);
};

template <class Form>
struct alignas(1024) FewRowsFp8Shared {
  unsigned char items[Form::kWarps][Form::kSlots][Form::kItemBytes];
  float sums[Form::kWarps][Form::kMergeTiles][Form::kTokens][Form::kMergeStride];
  std::uint64_t filled[Form::kWarps][Form::kSlots];
};

struct FewRowsFp8Maps {
  CUtensorMap weight, x;
};

struct FewRowsFp8Args {
  const float* scales;
  const float* bias;
  void* y;
  std::int64_t y_stride;
  std::int64_t n;
  std::int64_t up_scales;  // gated: where the second half's begin
  int m;
  int items;  // of a unit
  int units;
  bool y_f32, accumulate, gated;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Copies the items of a warp, unit by unit. One lane uses it.
template <class Form>
class Fp8ItemCopier {
 public:
  __device__ Fp8ItemCopier(FewRowsFp8Shared<Form>& shared, const FewRowsFp8Maps& maps, const FewRowsFp8Args& args,
                           int warp)
      : items_(shared.items[warp]),
        filled_(shared.filled[warp]),
        maps_(maps),
        args_(args),
        first_item_(warp),
        item_(warp),
        unit_(warp < args.items ? static_cast<int>(blockIdx.x) : args.units),
        policy_(read_once_policy()) {}
  __device__ __forceinline__ bool done() const { return unit_ >= args_.units; }
  __device__ __forceinline__ void start(int slot) {
    arrive_expecting(&filled_[slot], Form::kWeightBytes + static_cast<std::uint32_t>(args_.m) * 2 * Form::kDepth);
    if (args_.gated) {
      copy_gated_weights(items_[slot], &maps_.weight, &filled_[slot], unit_ * Form::kTiles, item_, policy_);
    } else {
      copy_weights(items_[slot], &maps_.weight, &filled_[slot], unit_ * Form::kTiles * 16, item_, 0, policy_);
    }
  }
  // The other part of what start() expects.
  __device__ __forceinline__ void start_x(int slot) {
    copy_rows(items_[slot] + Form::kWeightBytes, &maps_.x, &filled_[slot], 2 * item_, 0);
  }
  __device__ __forceinline__ void advance() {
    item_ += Form::kWarps;
    if (item_ < args_.items) return;
    item_ = first_item_;
    unit_ += static_cast<int>(gridDim.x);
  }

 private:
  unsigned char (*items_)[Form::kItemBytes];
  std::uint64_t* filled_;
  const FewRowsFp8Maps& maps_;
  const FewRowsFp8Args& args_;
  int first_item_, item_, unit_;
  std::uint64_t policy_;
};

// Four codes as bfloat16, 2^-120 of their values: 0 and 2, 1 and 3.
struct WidenedCodes {
  std::uint32_t even, odd;
};
__device__ __forceinline__ WidenedCodes widened(std::uint32_t codes) {
  constexpr std::uint32_t kMagnitudes = 0x07f007f0U;
  const std::uint32_t signs = codes & 0x80808080U;
  return {((codes << 4) & kMagnitudes) | ((signs << 8) & ~kMagnitudes),
          ((codes >> 4) & kMagnitudes) | (signs & ~kMagnitudes)};
}

// Two of x times 2^60.
__device__ __forceinline__ std::uint32_t lifted(std::uint32_t pair) {
  std::uint32_t out = 0;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(pair), "r"(0x5d805d80U));
  return out;
}
inline constexpr float kLowered = 0x1p60F;  // what the sums of lifted x and widened codes are to be multiplied with

__device__ __forceinline__ std::uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Sums of a lane as in few_rows_products.cuh: (row, token), (row, token + 1), (row + 8, token), (row + 8, token + 1).
template <class Form>
using Fp8Sums = float[Form::kTiles][Form::kTokenTiles][4];

// Adds to two sets of sums that are added up in the end: half as many products that wait for one another.
template <class Form>
__device__ __forceinline__ void multiply_fp8_item(Fp8Sums<Form> (&sums)[2], const unsigned char* item, int m,
                                                  int lane) {
  const int row = lane / 4;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const int chunk = lane % 4 * 2 + (step ^ (lane % 4 / 2));
    std::uint32_t x[Form::kTokenTiles][4][2];
#pragma unroll
    for (int j = 0; j < Form::kTokenTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 four = chunk_of(item + Form::kWeightBytes, chunk / 4 * m + 8 * j + row, chunk % 4 * 2 + half);
        const std::uint32_t words[4] = {lifted(four.x), lifted(four.y), lifted(four.z), lifted(four.w)};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          x[j][2 * half + i][0] = __byte_perm(words[2 * i], words[2 * i + 1], 0x5410);
          x[j][2 * half + i][1] = __byte_perm(words[2 * i], words[2 * i + 1], 0x7632);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < Form::kTiles; ++tile) {
      const uint4 low = chunk_of(item, tile * 16 + row, chunk);
      const uint4 high = chunk_of(item, tile * 16 + row + 8, chunk);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const WidenedCodes a = widened(word_of(low, i));
        const WidenedCodes b = widened(word_of(high, i));
#pragma unroll
        for (int j = 0; j < Form::kTokenTiles; ++j) {
          multiply_16x8(sums[i % 2][tile][j], a.even, b.even, a.odd, b.odd, x[j][i][0], x[j][i][1]);
        }
      }
    }
  }
}

// Of rows `row` and `row + 8` of every tile of a unit.
template <class Form>
__device__ __forceinline__ float2 scales_of(const FewRowsFp8Args& args, int unit, int item) {
  if (item >= args.items) return {};
  const std::int64_t channel = std::int64_t{unit} * Form::kTiles * (args.gated ? 8 : 16);
  const float* const at = args.scales + channel / Form::kDepth * args.items + item;
  const float low = *at * kLowered;
  return make_float2(low, args.gated ? at[args.up_scales] * kLowered : low);
}

__device__ __forceinline__ void store_fp8_channel(const FewRowsFp8Args& args, int token, std::int64_t channel,
                                                  float sum) {
  if (channel >= args.n) return;
  const std::int64_t at = token * args.y_stride + channel;
  if (args.y_f32) {
    float* const y = static_cast<float*>(args.y) + at;
    if (args.bias != nullptr) sum += args.bias[channel];
    *y = args.accumulate ? *y + sum : sum;
  } else {
    __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(args.y) + at;
    *y = __float2bfloat16_rn(args.accumulate ? __bfloat162float(*y) + sum : sum);
  }
}

// By all warps: adds up their sums in their order.
template <class Form>
__device__ __forceinline__ void store_fp8_unit(FewRowsFp8Shared<Form>& shared, const FewRowsFp8Args& args, int unit,
                                               const Fp8Sums<Form>& sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int tile_channels = args.gated ? 8 : 16;
  constexpr int kTiles = Form::kMergeTiles;
#pragma unroll
  for (int first = 0; first < Form::kTiles; first += kTiles) {
    __syncthreads();  // what was there has been read
    keep_tile_sums<Form>(shared.sums[warp], sums, first);
    __syncthreads();
    const int channels = kTiles * tile_channels;
    const std::int64_t first_channel = (std::int64_t{unit} * Form::kTiles + first) * tile_channels;
    for (int i = thread; i < channels * args.m; i += Form::kThreads) {
      const int token = i / channels;
      const int local = i - token * channels;
      const int tile = local / tile_channels;
      const int of_tile = local - tile * tile_channels;
      const auto sum_of = [&](int channel) { return sum_of_warps(shared.sums, tile, token, channel); };
      float sum = sum_of(of_tile);
      if (args.gated) sum = gated_product(sum, sum_of(of_tile + 8));
      store_fp8_channel(args, token, first_channel + local, sum);
    }
  }
}

#endif

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    few_rows_fp8_kernel([[maybe_unused]] const __grid_constant__ FewRowsFp8Maps maps,
                        [[maybe_unused]] const __grid_constant__ FewRowsFp8Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char memory[];
  auto& shared = *reinterpret_cast<FewRowsFp8Shared<Form>*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                                            ~std::uintptr_t{1023});
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_kernel_start();
  Fp8ItemCopier<Form> copier(shared, maps, args, warp);
  start_first_items(copier, shared.filled[warp], lane);
  int slot = 0;
  std::uint32_t parity = 0;
  for (int unit = static_cast<int>(blockIdx.x); unit < args.units; unit += static_cast<int>(gridDim.x)) {
    Fp8Sums<Form> sums = {};
    float2 scales = {};  // of the next 32 items, one a lane
    int ordinal = 0;
    for (int item = warp; item < args.items; item += Form::kWarps, ++ordinal) {
      if (ordinal % 32 == 0) scales = scales_of<Form>(args, unit, item + lane * Form::kWarps);
      wait_barrier(&shared.filled[warp][slot], parity);
      Fp8Sums<Form> of_item[2] = {};
      multiply_fp8_item<Form>(of_item, shared.items[warp][slot], args.m, lane);
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
      const float low = __shfl_sync(0xffffffffU, scales.x, ordinal % 32);
      const float high = __shfl_sync(0xffffffffU, scales.y, ordinal % 32);
#pragma unroll
      for (int tile = 0; tile < Form::kTiles; ++tile) {
#pragma unroll
        for (int j = 0; j < Form::kTokenTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float sum = of_item[0][tile][j][i] + of_item[1][tile][j][i];
            sums[tile][j][i] = fmaf(sum, i < 2 ? low : high, sums[tile][j][i]);
          }
        }
      }
    }
    store_fp8_unit<Form>(shared, args, unit, sums);
  }
#endif
}

}  // namespace hotset::kernels::cuda
