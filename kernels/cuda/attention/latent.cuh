// Attention over latent rows (MLA) of 576 channels, of which the first 512 are the value, on Hopper's tensor cores. It
// is bound by arithmetic: 64 query heads share each row that is read.
//
// A block of two warpgroups takes 64 heads of one query. In shared memory: Q, two tiles of 64 rows in bf16 (9 blocks of
// 64 channels, [row][64]) and the weights. For each tile:
// 1. The next tile's rows are sent for, into the other tile's place.
// 2. Each warpgroup makes the scores of 32 of the tile's rows; the maxima are exchanged; the weights go to shared
// memory.
// 3. Each warpgroup adds the products with 256 of the 512 channels; its sums, [64, 256], stay in registers. The same
// rows
//    serve as keys and, read across, as values.
// 4. While those products run, the next tile's FP8 rows are widened where they are: times their scales, rounded to
// bf16.
//
// A run of kLatentRun entries has its own maximum and sums. A block takes all runs of its list, and then joins each
// with the total of the ones before in the workspace, or one run, and latent_join does the same operations afterwards:
// few lists are spread over the device, many do not pay for it, and the bits are the same.
#pragma once

#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

inline constexpr int kLatentThreads = 256;
inline constexpr int kLatentHeads = 64;
inline constexpr int kLatentTile = 64;
inline constexpr int kLatentKeyDim = 576;
inline constexpr int kLatentValueDim = 512;
inline constexpr int kLatentColumnBytes = kLatentTile * 128;  // a block of 64 channels
inline constexpr int kLatentTileBytes = kLatentKeyDim / 64 * kLatentColumnBytes;
inline constexpr int kLatentRunTiles = static_cast<int>(kLatentRun) / kLatentTile;

struct LatentShared {
  std::byte q[kLatentTileBytes];
  std::byte rows[2][kLatentTileBytes];
  std::byte weights[kLatentColumnBytes];
  float maxima[2][kLatentHeads];
  float sums[2][kLatentHeads];
  std::uint8_t present[2][kLatentTile];
};
inline constexpr int kLatentSharedBytes = static_cast<int>(sizeof(LatentShared)) + 1024;  // to align it
static_assert(kLatentSharedBytes <= 227 * 1024);

__device__ inline float4 no_floats() { return {0.0F, 0.0F, 0.0F, 0.0F}; }

// Joins the runs of one (row, head).
static __global__ void __launch_bounds__(128) latent_join(AttentionArgs args) {
  const std::int64_t row = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  const std::int64_t runs = (list_count(args, row) + kLatentRun - 1) / kLatentRun;
  const int channel = 4 * static_cast<int>(threadIdx.x);
  float max = -INFINITY;
  float sum = 0.0F;
  float4 acc = no_floats();
  const float* partial = run_partial(args, row, head, 0);
#pragma unroll 4
  for (std::int64_t run = 0; run < runs; ++run, partial += kLatentValueDim + kPartialTail) {
    const float4 value = *reinterpret_cast<const float4*>(partial + channel);
    const MergeFactors factors = merge_sums(max, sum, partial[kLatentValueDim], partial[kLatentValueDim + 1]);
    acc.x = fmaf(acc.x, factors.keep, value.x * factors.take);
    acc.y = fmaf(acc.y, factors.keep, value.y * factors.take);
    acc.z = fmaf(acc.z, factors.keep, value.z * factors.take);
    acc.w = fmaf(acc.w, factors.keep, value.w * factors.take);
  }
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  const std::int64_t to = row * args.out_stride + std::int64_t{head} * kLatentValueDim + channel;
  store_activation(args.out, args.out_bf16, to, acc.x * factor);
  store_activation(args.out, args.out_bf16, to + 1, acc.y * factor);
  store_activation(args.out, args.out_bf16, to + 2, acc.z * factor);
  store_activation(args.out, args.out_bf16, to + 3, acc.w * factor);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A quarter of a row on its way into shared memory: every fourth 16-byte unit. FP8 codes wait for their widening where
// their channels will be, at the even units of the thread's own; the scales at the first odd one.
template <bool kFp8>
struct LatentFetch {
  bool present;

  __device__ static std::uint32_t unit_address(std::uint32_t tile, int column, int unit) {
    const int row = static_cast<int>(threadIdx.x) / 4;
    return tile + column * kLatentColumnBytes + row * 128 + ((unit ^ row % 8) << 4);
  }

  // `tile`: where the row goes.
  __device__ void start(const AttentionArgs& args, std::int64_t slot, std::uint32_t tile) {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    present = slot >= 0;
    const std::byte* const from = args.pool + (present ? slot : 0) * args.view.row_bytes;
    if constexpr (!kFp8) {
#pragma unroll
      for (int i = 0; i < 18; ++i) {
        const int unit = quarter + 4 * i;
        copy_16_async(unit_address(tile, unit / 8, unit % 8), from + unit * 16, present);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        copy_16_async(unit_address(tile, i, 2 * quarter), from + (4 * i + quarter) * 16, present);
      }
      copy_16_async(unit_address(tile, 0, 2 * quarter + 1), from + 32 * 16, present);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 4 * i + quarter;
        copy_16_async(unit_address(tile, 8, unit), from + (33 + unit) * 16, present);
      }
    }
    commit_copies();
  }

  __device__ static uint4 load(std::uint32_t from) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
    return value;
  }

  __device__ static std::uint32_t widen_pair(std::uint32_t codes, float scale) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;\n" : "=r"(halves) : "h"(static_cast<std::uint16_t>(codes)));
    float low;
    float high;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
        : "=f"(low), "=f"(high)
        : "r"(halves));
    return pack_bf16(low * scale, high * scale);
  }

  __device__ static void store(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  }

  // `present_bytes`: of the tile.
  __device__ void finish(std::uint32_t tile, std::uint8_t* present_bytes) {
    const int row = static_cast<int>(threadIdx.x) / 4;
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    if (quarter == 0) present_bytes[row] = present ? 1 : 0;
    wait_copies<0>();
    if constexpr (kFp8) {
      const uint4 scale_bits = load(unit_address(tile, 0, 2 * quarter + 1));
      const float scales[4] = {__uint_as_float(scale_bits.x), __uint_as_float(scale_bits.y),
                               __uint_as_float(scale_bits.z), __uint_as_float(scale_bits.w)};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // 16 channels of block i, in scale group i / 2
        const uint4 codes = load(unit_address(tile, i, 2 * quarter));
        const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        std::uint32_t out[8];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          out[2 * word] = widen_pair(words[word], scales[i / 2]);
          out[2 * word + 1] = widen_pair(words[word] >> 16, scales[i / 2]);
        }
        store(unit_address(tile, i, 2 * quarter), out[0], out[1], out[2], out[3]);
        store(unit_address(tile, i, 2 * quarter + 1), out[4], out[5], out[6], out[7]);
      }
    }
    publish_to_products();
  }
};

// The queries of the block's heads, in bf16; heads that are not there are zeros.
__device__ inline void load_latent_queries(const AttentionArgs& args, std::int64_t row, int first_head, int heads,
                                           std::uint32_t to) {
  for (int i = static_cast<int>(threadIdx.x); i < kLatentHeads * (kLatentKeyDim / 8); i += kLatentThreads) {
    const int head = i / (kLatentKeyDim / 8);
    const int unit = i % (kLatentKeyDim / 8);
    const std::int64_t at = row * args.q_stride + std::int64_t{first_head + head} * kLatentKeyDim + unit * 8;
    uint4 out{0, 0, 0, 0};
    if (head < heads && args.q_bf16) {
      out = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.q) + at);
    } else if (head < heads) {
      const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(args.q) + at);
      const float4 low = from[0];
      const float4 high = from[1];
      out = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y), pack_bf16(high.z, high.w)};
    }
    const std::uint32_t address = to + unit / 8 * kLatentColumnBytes + head * 128 + ((unit % 8 ^ head % 8) << 4);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(out.x), "r"(out.y), "r"(out.z),
                 "r"(out.w)
                 : "memory");
  }
  publish_to_products();
}

// What a thread knows: heads lane / 4 + 16 (warp in its group) + {0, 8}.
struct LatentState {
  float acc[128];  // channels 256 (warpgroup) + 8 j + 2 (lane % 4) + {0, 1} of both heads: acc[4 j + {0, 1}, {2, 3}]
  float max[2];
  float sum[2];  // of this thread's own weights
};

// Of numbers up to 0; below 2^-126: 0.
__device__ inline float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

// The scores of the tile become weights in shared memory; the state's sums are brought to the new maximum.
__device__ inline void latent_weights(const AttentionArgs& args, LatentShared& shared,
                                      const std::uint8_t* present_bytes, float (&scores)[16], LatentState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const float factor = args.scale * kLog2E;
  float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint16_t present =
        *reinterpret_cast<const std::uint16_t*>(present_bytes + 32 * group + 8 * j + 2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& score = scores[4 * j + i];
      score = (present >> (8 * (i % 2)) & 1) != 0 ? score * factor : -INFINITY;
      max[i / 2] = fmaxf(max[i / 2], score);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 1));
    max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 2));
    if (lane % 4 == 0) shared.maxima[group][head + 8 * i] = max[i];
  }
  __syncthreads();
  float keep[2];
  float shift[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float joined = fmaxf(state.max[i], fmaxf(shared.maxima[0][head + 8 * i], shared.maxima[1][head + 8 * i]));
    shift[i] = finite_or_zero(joined);
    keep[i] = power_of_2(state.max[i] - shift[i]);
    state.max[i] = joined;
    state.sum[i] *= keep[i];
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low = power_of_2(scores[4 * j + 2 * i] - shift[i]);
      const float high = power_of_2(scores[4 * j + 2 * i + 1] - shift[i]);
      state.sum[i] += low + high;
      const int row = head + 8 * i;
      std::byte* const to = shared.weights + row * 128 + (((4 * group + j) ^ row % 8) << 4) + 4 * (lane % 4);
      *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(low, high);
    }
  }
  if (__any_sync(0xffffffffU, keep[0] != 1.0F || keep[1] != 1.0F)) {
#pragma unroll
    for (int i = 0; i < 128; ++i) state.acc[i] *= keep[i / 2 % 2];
  }
  publish_to_products();
  __syncthreads();
}

// The sums of the finished run over all its weights.
__device__ inline void latent_run_sums(LatentShared& shared, LatentState& state) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    state.sum[i] += __shfl_xor_sync(0xffffffffU, state.sum[i], 1);
    state.sum[i] += __shfl_xor_sync(0xffffffffU, state.sum[i], 2);
    if (lane % 4 == 0) shared.sums[group][head + 8 * i] = state.sum[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) state.sum[i] = shared.sums[0][head + 8 * i] + shared.sums[1][head + 8 * i];
}

// What a block works on.
struct LatentPlace {
  std::int64_t row, first_run, end_run;
  int first_head, heads;
  bool whole;  // all runs of the list: the result is written out
};

// Joins the finished run with the total, or keeps it for latent_join.
__device__ inline void finish_latent_run(const AttentionArgs& args, const LatentPlace& place, std::int64_t run,
                                         const LatentState& state, float (&total_max)[2], float (&total_sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.x) / 128;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4 + 8 * i;
    if (head >= place.heads) continue;
    const int channel = 256 * group + 2 * (lane % 4);
    float* const partial = run_partial(args, place.row, place.first_head + head, place.whole ? 0 : run);
    if (!place.whole) {
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(partial + channel + 8 * j) =
            make_float2(state.acc[4 * j + 2 * i], state.acc[4 * j + 2 * i + 1]);
      }
      if (group == 0 && lane % 4 == 0) {
        partial[kLatentValueDim] = state.max[i];
        partial[kLatentValueDim + 1] = state.sum[i];
      }
      continue;
    }
    const MergeFactors factors = merge_sums(total_max[i], total_sum[i], state.max[i], state.sum[i]);
    const bool first = run == place.first_run;
    const bool last = run + 1 == place.end_run;
    const float factor = total_sum[i] == 0.0F ? 0.0F : 1.0F / total_sum[i];
    const std::int64_t to =
        place.row * args.out_stride + std::int64_t{place.first_head + head} * kLatentValueDim + channel;
    // Loads go ahead of the stores of their batch: one by one, each would wait for the workspace.
    constexpr int kBatch = 32;
#pragma unroll
    for (int begin = 0; begin < 32; begin += kBatch) {
      float2 total[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        total[j] =
            first ? make_float2(0.0F, 0.0F) : *reinterpret_cast<const float2*>(partial + channel + 8 * (begin + j));
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float* const acc = state.acc + 4 * (begin + j) + 2 * i;
        total[j].x = fmaf(total[j].x, factors.keep, acc[0] * factors.take);
        total[j].y = fmaf(total[j].y, factors.keep, acc[1] * factors.take);
      }
      if (!last) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) *reinterpret_cast<float2*>(partial + channel + 8 * (begin + j)) = total[j];
        continue;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        store_activation(args.out, args.out_bf16, to + 8 * (begin + j), total[j].x * factor);
        store_activation(args.out, args.out_bf16, to + 8 * (begin + j) + 1, total[j].y * factor);
      }
    }
  }
}

template <bool kFp8>
__device__ void latent_block(const AttentionArgs& args, const LatentPlace& place, std::int64_t count,
                             LatentShared& shared) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const std::int64_t first_tile = place.first_run * kLatentRunTiles;
  const std::int64_t all_tiles = (count + kLatentTile - 1) / kLatentTile;
  const std::int64_t run_tiles = place.end_run * kLatentRunTiles;
  const std::int64_t end_tile = run_tiles < all_tiles ? run_tiles : all_tiles;
  const auto slot_of_tile = [&](std::int64_t tile) {
    const std::int64_t rank = tile * kLatentTile + static_cast<int>(threadIdx.x) / 4;
    return tile < end_tile && rank < count ? list_slot(args, place.row, rank) : -1;
  };
  const std::uint32_t rows = shared_address(shared.rows);
  LatentFetch<kFp8> fetch;
  fetch.start(args, slot_of_tile(first_tile), rows);
  std::int64_t next_slot = slot_of_tile(first_tile + 1);
  load_latent_queries(args, place.row, place.first_head, place.heads, shared_address(shared.q));
  fetch.finish(rows, shared.present[0]);
  __syncthreads();

  LatentState state;
#pragma unroll
  for (int i = 0; i < 128; ++i) state.acc[i] = 0.0F;  // a run's first product replaces what is there
  float total_max[2] = {-INFINITY, -INFINITY};
  float total_sum[2] = {0.0F, 0.0F};
  const std::uint64_t q = tile_descriptor(shared_address(shared.q), 16, 1024);
  const std::uint64_t weights = tile_descriptor(shared_address(shared.weights), 16, 1024);
  for (std::int64_t tile = first_tile; tile < end_tile; ++tile) {
    const int now = static_cast<int>(tile - first_tile) % 2;
    const bool starts_run = tile % kLatentRunTiles == 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      state.max[i] = starts_run ? -INFINITY : state.max[i];
      state.sum[i] = starts_run ? 0.0F : state.sum[i];
    }
    const std::uint32_t these = rows + now * kLatentTileBytes;
    const std::uint32_t next = rows + (1 - now) * kLatentTileBytes;
    fetch.start(args, next_slot, next);
    next_slot = slot_of_tile(tile + 2);

    float scores[16];
    const std::uint64_t keys = tile_descriptor(these + group * (32 * 128), 16, 1024);
    begin_products();
#pragma unroll
    for (int column = 0; column < kLatentKeyDim / 64; ++column) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = (column * kLatentColumnBytes + step * 32) / 16;
        multiply_keys(scores, q + at, keys + at, column + step > 0);
      }
    }
    commit_products();
    wait_products(scores);
    latent_weights(args, shared, shared.present[now], scores, state);

    const std::uint64_t values = tile_descriptor(these + group * (4 * kLatentColumnBytes), kLatentColumnBytes, 1024);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_values(state.acc, weights + step * 32 / 16, values + step * 2048 / 16, step > 0 || !starts_run);
    }
    commit_products();
    fetch.finish(next, shared.present[1 - now]);
    wait_products(state.acc);
    __syncthreads();  // the tile is free, the next one is there

    if (tile % kLatentRunTiles == kLatentRunTiles - 1 || tile + 1 == end_tile) {
      latent_run_sums(shared, state);
      finish_latent_run(args, place, tile / kLatentRunTiles, state, total_max, total_sum);
    }
  }
}

#endif

// A block for every (row, column of runs, 64 heads), heads fastest. columns 1: a block takes all runs of its list.
template <bool kFp8>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_attention(AttentionArgs args, int head_blocks, int columns) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ std::byte memory[];
  auto& shared = *reinterpret_cast<LatentShared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const int head_block = static_cast<int>(blockIdx.x) % head_blocks;
  const int rest = static_cast<int>(blockIdx.x) / head_blocks;
  LatentPlace place;
  place.row = rest / columns;
  place.first_head = head_block * kLatentHeads;
  place.heads = min(kLatentHeads, args.heads - place.first_head);
  const std::int64_t count = list_count(args, place.row);
  const std::int64_t runs = (count + kLatentRun - 1) / kLatentRun;
  place.whole = columns == 1;
  place.first_run = rest % columns;
  place.end_run = place.whole ? runs : place.first_run + 1;
  if (place.first_run < runs) return latent_block<kFp8>(args, place, count, shared);
  if (!place.whole) return;
  for (int i = static_cast<int>(threadIdx.x); i < place.heads * kLatentValueDim; i += kLatentThreads) {
    store_activation(args.out, args.out_bf16,
                     place.row * args.out_stride + std::int64_t{place.first_head} * kLatentValueDim + i, 0.0F);
  }
#endif
}

template <bool kFp8>
void launch_latent_kernel(const AttentionArgs& args, Stream stream) {
  // Below so many lists of 64 heads each run gets a block of its own.
  constexpr std::int64_t kFillingLists = 96;
  const std::int64_t head_blocks = ceil_div(args.heads, kLatentHeads);
  const std::int64_t lists = args.rows * head_blocks;
  const std::int64_t columns = lists >= kFillingLists ? 1 : args.max_runs;
  HS_CHECK(lists * columns < (std::int64_t{1} << 31) && args.rows * args.heads < (std::int64_t{1} << 31),
           "too many blocks for one launch");
  const auto kernel = latent_attention<kFp8>;
  HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kLatentSharedBytes));
  kernel<<<static_cast<unsigned>(lists * columns), kLatentThreads, kLatentSharedBytes, stream>>>(
      args, static_cast<int>(head_blocks), static_cast<int>(columns));
  HOTSET_CUDA_CHECK_LAUNCH();
  if (columns == 1) return;
  latent_join<<<static_cast<unsigned>(args.rows * args.heads), kLatentValueDim / 4, 0, stream>>>(args);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
