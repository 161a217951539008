// Attention over grouped rows (GQA) of one width, bf16 or FP8, on tensor cores. It is bound by the bytes of K and V.
//
// A block of 4 warps takes one list's run of 256 entries for one KV head and up to 16 of its query heads; a warp takes
// one tile of 64 entries, alone, from the slots to the tile's partial softmax:
// 1. K, then V, come through a ring of warp-private shared memory, 16 rows at a time, by 16-byte asynchronous copies;
//    holes and entries behind the list's end are filled with zeros.
// 2. S^T = K Q^T with the rows as M and the heads as N, so that a small group wastes nothing. One maximum of the tile.
// 3. O^T = V^T P^T. The weights change from result to operand layout by transposing 8 x 8 matrices in registers.
// 4. The four tiles are joined in ascending order and the run's partial goes to the workspace; the runs are joined as
//    run_join.cuh says. A list of one run is written at once.
//
// FP8: codes become bf16 in registers, exactly, but for a factor (lift_codes) that queries, scores, weights and results
// make up for; a key's scale multiplies its scores, a value's scale its weights. f32 queries: q and weights are two
// bf16 halves each, the products of both are summed.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/attention/run_join.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

// kDim: channels of keys and values. kFp8: row type, else bf16. kPrecise: f32 queries. kHeadTiles: tiles of 8
// heads.
template <int kDim, bool kFp8, bool kPrecise, int kHeadTiles>
struct GroupedKernel {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTile = 64;
  static constexpr int kSteps = kTile / 16;  // of 16 rows
  static constexpr int kItems = 2 * kSteps;  // K's, then V's
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kLoads = (kFp8 ? kDim + 31 : 2 * kDim) / 32;  // of 32 bytes of rows
  static constexpr int kDepth = kFp8 ? 2 * kLoads : kLoads;          // of a product over channels
  static constexpr int kUnits = (kFp8 ? 1 : 2) * kDim / 16;          // 16-byte units of a row
  static constexpr int kPitch = 16 * (kUnits + 1 + kUnits % 2);      // an odd number of units: no bank conflicts
  // What the registers allow without spills, and the items that then keep about 100 KB of a multiprocessor on their
  // way.
  static constexpr int kBlocksPerSm = kHeadTiles == 2 ? 2 : kPrecise || kFp8 ? 3 : 4;
  static constexpr int kRing = kFp8 ? 6 : kBlocksPerSm == 4 ? 3 : 4;
  static constexpr int kItemBytes = 16 * kPitch;
  static constexpr int kResultPitch = kDim + 4;  // floats
  static constexpr int kResultBytes = kHeads * kResultPitch * 4;
  static constexpr int kWarpBytes = std::max(kRing * kItemBytes, kResultBytes);
  static constexpr int kSharedBytes = kWarps * kWarpBytes;
  static constexpr int kParts = kPrecise ? 2 : 1;
  static constexpr float kLift = 0x1p60F;  // half of what lifted codes lack
  static_assert(kDim % 16 == 0 && kTile * kWarps == kGroupedRun);

  // What a lane knows of two entries of its warp's tile: ranks lane and lane + 32.
  struct Entries {
    std::int32_t slot[2];  // -1: a hole. 2^31 rows are more than a device's memory
    float key_scale[2], value_scale[2];
    std::uint32_t present[2];  // a bit for each lane
  };

  // The place of a block's work.
  struct Place {
    std::int64_t row, count;
    const std::int32_t* pages;  // list_pages()
    int kv_head, first_head, heads;
  };

  __device__ static Entries load_entries(const AttentionArgs& args, const Place& place, std::int64_t first, int lane) {
    Entries entries;
    for (int i = 0; i < 2; ++i) {
      const std::int64_t rank = first + 32 * i + lane;
      const std::int64_t slot = rank < place.count ? list_slot(args, place.row, place.pages, rank) : -1;
      entries.slot[i] = static_cast<std::int32_t>(slot);
      entries.present[i] = __ballot_sync(0xffffffffU, slot >= 0);
      entries.key_scale[i] = 1.0F;
      entries.value_scale[i] = 0.0F;
    }
    return entries;
  }

  // Shared addresses of a warp's own memory: the ring and its tile's slots [kTile].
  struct WarpMemory {
    std::uint32_t ring, slots;
  };

  // After the copies are on their way: nothing waits for the scales until the first product is there.
  __device__ static void load_scales(const AttentionArgs& args, const Place& place, Entries& entries) {
    if constexpr (kFp8) {
      for (int i = 0; i < 2; ++i) {
        if (entries.slot[i] < 0) continue;
        const std::byte* const row =
            args.pool + entries.slot[i] * args.view.row_bytes + 4 * place.kv_head;  // one scale a head
        entries.key_scale[i] = *reinterpret_cast<const float*>(row + args.view.key_scales_offset);
        entries.value_scale[i] = *reinterpret_cast<const float*>(row + args.view.value_scales_offset);
      }
    }
  }

  template <int kItem>
  __device__ static void issue(const AttentionArgs& args, const Place& place, const WarpMemory& memory, int lane) {
    if constexpr (kItem < kItems) {
      constexpr bool kValue = kItem >= kSteps;
      constexpr int kStep = kItem % kSteps;
      constexpr int kAll = 16 * kUnits;
      const std::uint32_t to = memory.ring + (kItem % kRing) * kItemBytes;
      const std::byte* const column = args.pool + (kValue ? args.view.value_offset : 0) + place.kv_head * (kUnits * 16);
#pragma unroll
      for (int at = 0; at < kAll; at += 32) {
        const int unit = at + lane;
        const int row = unit / kUnits % 16;
        const int part = unit % kUnits;
        // Volatile: the compiler must not make all items' addresses at once, for which there are no registers.
        std::int32_t slot;
        asm volatile("ld.volatile.shared.s32 %0, [%1];\n"
                     : "=r"(slot)
                     : "r"(memory.slots + (16 * kStep + row) * 4)
                     : "memory");
        const std::byte* const from = column + part * 16 + (slot < 0 ? 0 : slot) * args.view.row_bytes;
        if (kAll % 32 == 0 || unit < kAll) copy_16_async(to + row * kPitch + part * 16, from, slot >= 0);
      }
    }
    commit_copies();  // also without an item: the count of groups stays the same
  }

  // Waits for item kItem and sends item kItem + kRing - 1 on its way; gives the address of its rows.
  template <int kItem>
  __device__ static std::uint32_t next_item(const AttentionArgs& args, const Place& place, const WarpMemory& memory,
                                            int lane) {
    wait_copies<kRing - 2>();
    __syncwarp();  // the others' copies are there too, and all have done with item kItem - 1
    issue<kItem + kRing - 1>(args, place, memory, lane);
    return memory.ring + (kItem % kRing) * kItemBytes;
  }

  // The channel that is number `at` of the 16 of a depth. A load of 32 bytes of rows brings one depth of bf16, in
  // order. Of FP8 it brings two: the even channels and the odd ones.
  __device__ static int channel_of(int depth, int at) {
    if constexpr (!kFp8) return 16 * depth + at;
    return 32 * (depth / 2) + at / 8 * 16 + at % 8 * 2 + depth % 2;
  }
  __device__ static bool exists(int channel) { return !kFp8 || kDim % 32 == 0 || channel < kDim; }

  // Operand B of S^T: lane holds head lane / 4 and the depth's channels 2 (lane % 4) + {0, 1, 8, 9}. FP8: times kLift.
  struct Queries {
    std::uint32_t part[kParts][kHeadTiles][kDepth][2];
  };
  __device__ static void load_queries(const AttentionArgs& args, const Place& place, Queries& queries, int lane) {
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const int head = 8 * tile + lane / 4;
      const std::int64_t from = place.row * args.q_stride + std::int64_t{place.first_head + head} * kDim;
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel = channel_of(depth, 8 * half + 2 * (lane % 4));
          const bool present = head < place.heads && exists(channel);
          if constexpr (kPrecise) {
            float2 q{0.0F, 0.0F};
            if (present) q = load_pair(static_cast<const float*>(args.q) + from + channel);
            queries.part[0][tile][depth][half] = pack_bf16(q.x, q.y);
            queries.part[1][tile][depth][half] = pack_bf16_rest(q.x, q.y);
          } else {
            std::uint32_t q = 0;
            if (present) q = load_pair(static_cast<const __nv_bfloat16*>(args.q) + from + channel);
            queries.part[0][tile][depth][half] = q;
          }
        }
      }
    }
  }
  // Two channels of a depth that follow one another there.
  __device__ static float2 load_pair(const float* q) {
    if constexpr (!kFp8) return *reinterpret_cast<const float2*>(q);
    return {q[0] * kLift, q[2] * kLift};
  }
  __device__ static std::uint32_t load_pair(const __nv_bfloat16* q) {
    if constexpr (!kFp8) return *reinterpret_cast<const std::uint32_t*>(q);
    return pack_bf16(__bfloat162float(q[0]) * kLift, __bfloat162float(q[2]) * kLift);
  }

  using Scores = float[kSteps][kHeadTiles][4];
  using Result = float[kDepth][kHeadTiles][4];  // O^T: channels lane / 4 (+ 8) of a depth, heads 2 (lane % 4) + {0, 1}

  template <int kStep>
  __device__ static void score_step(std::uint32_t rows, const Queries& queries, Scores& scores, int lane) {
    const std::uint32_t address = rows + lane % 16 * kPitch + lane / 16 * 16;
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[kStep][tile][i] = 0.0F;
    }
    const auto multiply = [&](int depth, const std::uint32_t(&keys)[4]) {
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const auto& q = queries.part[part][tile][depth];
          multiply_add(scores[kStep][tile], keys, q[0], q[1]);
        }
      }
    };
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      std::uint32_t keys[4];
      load_matrices(keys, address + 32 * load);
      with_operands(load, keys, multiply);
    }
  }

  // What was loaded of rows, as operands of one or two depths.
  template <class Multiply>
  __device__ static void with_operands(int load, const std::uint32_t (&rows)[4], const Multiply& multiply) {
    if constexpr (!kFp8) {
      multiply(load, rows);
    } else {
      std::uint32_t even[4];
      std::uint32_t odd[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) lift_codes(rows[i], even[i], odd[i]);
      multiply(2 * load, even);
      multiply(2 * load + 1, odd);
    }
  }

  // Scores become weights. max and sum: of heads 2 (lane % 4) + {0, 1}, the same in all lanes with these heads.
  // FP8: `lift` is the power of 2 that results are to be multiplied by.
  __device__ static void softmax(const AttentionArgs& args, const Entries& entries, Scores& scores,
                                 float (&max)[kHeadTiles][2], float (&sum)[kHeadTiles][2], float& lift, int lane) {
    const float factor = args.scale * kLog2E;
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) max[tile][0] = max[tile][1] = -INFINITY;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // rows lane / 4 and lane / 4 + 8
        const int at = step % 2 * 16 + 8 * half + lane / 4;
        const bool present = (entries.present[step / 2] >> at & 1U) != 0;
        float row_factor = factor;
        if constexpr (kFp8) row_factor *= __shfl_sync(0xffffffffU, entries.key_scale[step / 2], at);
#pragma unroll
        for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = scores[step][tile][2 * half + i];
            if constexpr (kFp8) score *= kLift;
            score = present ? score * row_factor : -INFINITY;
            max[tile][i] = fmaxf(max[tile][i], score);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) {
          max[tile][i] = fmaxf(max[tile][i], __shfl_xor_sync(0xffffffffU, max[tile][i], lanes));
        }
        const float shift = finite_or_zero(max[tile][i]);
        sum[tile][i] = 0.0F;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& weight = scores[step][tile][2 * half + i];
            weight = exp2f(weight - shift);
            sum[tile][i] += weight;
          }
        }
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) sum[tile][i] += __shfl_xor_sync(0xffffffffU, sum[tile][i], lanes);
      }
    }
    lift = 1.0F;
    if constexpr (kFp8) {
      // The scales relative to a power of 2 of the largest, so that no product leaves float32's range.
      float largest = fmaxf(entries.value_scale[0], entries.value_scale[1]);
      for (int lanes = 1; lanes < 32; lanes *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, lanes));
      lift = power_of_2_below(largest);
      const float lower = 1.0F / lift;
      const float value_scale[2] = {entries.value_scale[0] * lower * kLift, entries.value_scale[1] * lower * kLift};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float scale = __shfl_sync(0xffffffffU, value_scale[step / 2], step % 2 * 16 + 8 * half + lane / 4);
#pragma unroll
          for (int tile = 0; tile < kHeadTiles; ++tile) {
            scores[step][tile][2 * half] *= scale;
            scores[step][tile][2 * half + 1] *= scale;
          }
        }
      }
    }
  }

  template <int kStep>
  __device__ static void value_step(std::uint32_t rows, const Scores& weights, Result& result, int lane) {
    std::uint32_t operand[kParts][kHeadTiles][2];
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = weights[kStep][tile][2 * half];
        const float high = weights[kStep][tile][2 * half + 1];
        operand[0][tile][half] = transpose_8x8(pack_bf16(low, high));
        if constexpr (kPrecise) operand[1][tile][half] = transpose_8x8(pack_bf16_rest(low, high));
      }
    }
    const std::uint32_t address = rows + (lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
    const auto multiply = [&](int depth, const std::uint32_t(&values)[4]) {
#pragma unroll
      for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          multiply_add(result[depth][tile], values, operand[part][tile][0], operand[part][tile][1]);
        }
      }
    };
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      std::uint32_t values[4];
      load_matrices_transposed(values, address + 32 * load);
      with_operands(load, values, multiply);
    }
  }

  // The tile's partial, [heads][kResultPitch], in the warp's shared memory; maxima and sums beside it.
  __device__ static void tile(const AttentionArgs& args, const Place& place, std::int64_t first, std::byte* own,
                              std::int32_t* slots, float* maxima, float* sums, int lane) {
    const WarpMemory memory{shared_address(own), shared_address(slots)};
    Entries entries = load_entries(args, place, first, lane);
    slots[lane] = entries.slot[0];
    slots[lane + 32] = entries.slot[1];
    __syncwarp();
    issue<0>(args, place, memory, lane);
    issue<1>(args, place, memory, lane);
    if constexpr (kRing > 3) issue<2>(args, place, memory, lane);
    if constexpr (kRing > 4) issue<3>(args, place, memory, lane);
    if constexpr (kRing > 5) issue<4>(args, place, memory, lane);
    static_assert(kRing >= 3 && kRing <= 6);
    load_scales(args, place, entries);
    Scores scores;
    {
      Queries queries;
      load_queries(args, place, queries, lane);
      score_step<0>(next_item<0>(args, place, memory, lane), queries, scores, lane);
      score_step<1>(next_item<1>(args, place, memory, lane), queries, scores, lane);
      score_step<2>(next_item<2>(args, place, memory, lane), queries, scores, lane);
      score_step<3>(next_item<3>(args, place, memory, lane), queries, scores, lane);
    }
    float max[kHeadTiles][2];
    float sum[kHeadTiles][2];
    float lift;
    softmax(args, entries, scores, max, sum, lift, lane);
    Result result = {};
    value_step<0>(next_item<4>(args, place, memory, lane), scores, result, lane);
    value_step<1>(next_item<5>(args, place, memory, lane), scores, result, lane);
    value_step<2>(next_item<6>(args, place, memory, lane), scores, result, lane);
    value_step<3>(next_item<7>(args, place, memory, lane), scores, result, lane);
    __syncwarp();  // the ring is free
    float* const out = reinterpret_cast<float*>(own);
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
      const int head = 8 * tile + 2 * (lane % 4);
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        const auto& sums = result[depth][tile];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel = channel_of(depth, 8 * half + lane / 4);
          if (!exists(channel)) continue;
          float* const at = out + head * kResultPitch + channel;
          at[0] = kFp8 ? sums[2 * half] * kLift * lift : sums[2 * half];
          at[kResultPitch] = kFp8 ? sums[2 * half + 1] * kLift * lift : sums[2 * half + 1];
        }
      }
      if (lane < 4) {
        for (int i = 0; i < 2; ++i) {
          maxima[head + i] = max[tile][i];
          sums[head + i] = sum[tile][i];
        }
      }
    }
  }

  __device__ static void write_out(const AttentionArgs& args, const Place& place, int head, int channel, float acc,
                                   float sum) {
    const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
    store_activation(args.out, args.out_bf16,
                     place.row * args.out_stride + std::int64_t{place.first_head + head} * kDim + channel,
                     acc * factor);
  }

  // Joins the tiles of a run. The only run's result is written out, others go to the workspace.
  __device__ static void join_tiles(const AttentionArgs& args, const Place& place, std::int64_t run, int tiles,
                                    bool only, const std::byte* memory, const float* maxima, const float* sums) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < place.heads * kDim; i += kThreads) {
      const int head = i / kDim;
      const int channel = i % kDim;
      float max = -INFINITY;
      float sum = 0.0F;
      float acc = 0.0F;
      for (int tile = 0; tile < tiles; ++tile) {
        const float* const partial = reinterpret_cast<const float*>(memory + tile * kWarpBytes);
        const MergeFactors factors = merge_sums(max, sum, maxima[tile * kHeads + head], sums[tile * kHeads + head]);
        acc = fmaf(acc, factors.keep, partial[head * kResultPitch + channel] * factors.take);
      }
      if (only) {
        write_out(args, place, head, channel, acc, sum);
        continue;
      }
      float* const partial = run_partial(args, place.row, place.first_head + head, run);
      partial[channel] = acc;
      if (channel == 0) {
        partial[kDim] = max;
        partial[kDim + 1] = sum;
      }
    }
  }

  __device__ static void run_block(const AttentionArgs& args, const Place& place, std::int64_t run, std::int64_t runs,
                                   std::byte* memory) {
    __shared__ std::int32_t slots[kWarps][kTile];
    __shared__ float maxima[kWarps * kHeads];
    __shared__ float sums[kWarps * kHeads];
    __shared__ RunTotal totals[kHeads];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const std::int64_t left = place.count - run * kGroupedRun;
    const int tiles = left <= 0 ? 0 : static_cast<int>(left >= kGroupedRun ? kWarps : (left + kTile - 1) / kTile);
    if (warp < tiles) {
      tile(args, place, run * kGroupedRun + warp * kTile, memory + warp * kWarpBytes, slots[warp],
           maxima + warp * kHeads, sums + warp * kHeads, static_cast<int>(threadIdx.x) % 32);
    }
    __syncthreads();
    join_tiles(args, place, run, tiles, runs == 1, memory, maxima, sums);
    if (runs > 1) join_by_last<kThreads>(args, place.row, place.first_head, place.heads, runs, totals);
    __syncthreads();  // shared memory is free for the next run
  }
};

// A block for every (row, column of runs, head chunk, KV head), KV heads fastest: the pieces of a row are read
// together.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerSm)
    grouped_attention(AttentionArgs args, int chunks, int columns) {
  extern __shared__ __align__(16) std::byte memory[];
  follow_kernels_before();
  const int pairs = args.view.kv_heads * chunks;
  const int pair = static_cast<int>(blockIdx.x) % pairs;
  const int rest = static_cast<int>(blockIdx.x) / pairs;
  typename Kernel::Place place;
  place.row = rest / columns;
  place.count = list_count(args, place.row);
  place.pages = list_pages(args, place.row);
  place.kv_head = pair % args.view.kv_heads;
  const int chunk = pair / args.view.kv_heads;
  place.first_head = place.kv_head * args.group + chunk * Kernel::kHeads;
  place.heads = min(Kernel::kHeads, args.group - chunk * Kernel::kHeads);
  const std::int64_t runs = place.count <= kGroupedRun ? 1 : (place.count + kGroupedRun - 1) / kGroupedRun;
  for (std::int64_t run = rest % columns; run < runs; run += columns) {
    Kernel::run_block(args, place, run, runs, memory);
  }
}

template <int kDim, bool kFp8, bool kPrecise, int kHeadTiles>
void launch_grouped_kernel(const AttentionArgs& args, Stream stream) {
  using Kernel = GroupedKernel<kDim, kFp8, kPrecise, kHeadTiles>;
  const std::int64_t chunks = ceil_div(args.group, Kernel::kHeads);
  const std::int64_t pairs = args.rows * args.view.kv_heads * chunks;
  const std::int64_t columns = run_columns(args, pairs);
  HS_CHECK(pairs * columns < (std::int64_t{1} << 31), "too many blocks for one launch");
  const auto kernel = grouped_attention<Kernel>;
  HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::kSharedBytes));
  launch_dependent(kernel, dim3(static_cast<unsigned>(pairs * columns)), Kernel::kThreads, Kernel::kSharedBytes, 0,
                   stream, args, static_cast<int>(chunks), static_cast<int>(columns));
}

template <int kDim>
void launch_grouped_width(const AttentionArgs& args, Stream stream) {
  const auto with_heads = [&](auto fp8, auto precise) {
    constexpr bool kFp8 = decltype(fp8)::value;
    constexpr bool kPrecise = decltype(precise)::value;
    if (args.group <= 8) return launch_grouped_kernel<kDim, kFp8, kPrecise, 1>(args, stream);
    return launch_grouped_kernel<kDim, kFp8, kPrecise, 2>(args, stream);
  };
  const auto with_activations = [&](auto fp8) {
    if (args.q_bf16) return with_heads(fp8, std::false_type{});
    return with_heads(fp8, std::true_type{});
  };
  if (args.view.dtype == KvDType::kFp8) return with_activations(std::true_type{});
  return with_activations(std::false_type{});
}

}  // namespace hotset::kernels::cuda
