// Attention over latent rows (MLA) of 576 channels, of which the first 512 are the value, on Hopper's tensor cores. It
// is bound by arithmetic: 64 query heads share each row that is read.
//
// A block takes 64 heads of one query, in three warpgroups (latent_rows.cuh: what they share):
// - The producer lays the list's rows down in shared memory, tiles of 64 in two places.
// - The first consumer makes the scores of a tile, [64 heads, 64 rows], and from them the weights, in shared memory. It
//   multiplies them with the first half of the value's channels; its sums, [64, 256], stay in registers.
// - The second consumer does the same with the other half, while the first is already at the next tile's scores.
// The same rows serve as keys and, read across, as values.
//
// FP8 rows cost the producer more than their products take. Where the blocks of a query are even, two neighbours are a
// cluster: each widens half of every tile and sends it to the other, and takes no more rows before both are done.
//
// A weight is relative to a maximum that is renewed only when a score is above it by more than kLatentSlack: else, the
// sums so far would be multiplied at most tiles for nothing.
//
// A run of kLatentRun entries has its own maximum and sums. A block takes all runs of its list, and then joins each
// with the total of the ones before in the workspace, or one run, and latent_join does the same operations afterwards:
// few lists are spread over the device, many do not pay for it, and the bits are the same.
#pragma once

#include "core/check.h"
#include "kernels/cuda/attention/latent_rows.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

inline constexpr int kLatentThreads = 384;
inline constexpr int kLatentSharedBytes = static_cast<int>(sizeof(LatentShared)) + 1024;  // to align it
static_assert(kLatentSharedBytes <= 227 * 1024);

// A partial's sums lie in the order in which consumers hold them: 4 floats at 16 a + 4 b (b < 4) are channels
// 16 a + 2 b + {0, 1, 8, 9}.
__device__ inline void join_sums(float4& sums, const float4& other, const MergeFactors& factors) {
  sums.x = fmaf(sums.x, factors.keep, other.x * factors.take);
  sums.y = fmaf(sums.y, factors.keep, other.y * factors.take);
  sums.z = fmaf(sums.z, factors.keep, other.z * factors.take);
  sums.w = fmaf(sums.w, factors.keep, other.w * factors.take);
}
__device__ inline void store_pair(const AttentionArgs& args, std::int64_t to, float low, float high) {
  if (args.out_bf16 && (reinterpret_cast<std::uintptr_t>(args.out) + 2 * to) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(args.out) + to) = pack_bf16(low, high);
  } else {
    store_activation(args.out, args.out_bf16, to, low);
    store_activation(args.out, args.out_bf16, to + 1, high);
  }
}
// `to`: the first of the four channels.
__device__ inline void store_result(const AttentionArgs& args, std::int64_t to, const float4& sums, float factor) {
  store_pair(args, to, sums.x * factor, sums.y * factor);
  store_pair(args, to + 8, sums.z * factor, sums.w * factor);
}

// Joins the runs of one (row, head).
static __global__ void __launch_bounds__(kLatentValueDim / 4) latent_join(AttentionArgs args) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const std::int64_t row = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  const std::int64_t runs = (list_count(args, row) + kLatentRun - 1) / kLatentRun;
  const int at = 4 * static_cast<int>(threadIdx.x);
  float max = -INFINITY;
  float sum = 0.0F;
  float4 acc{0.0F, 0.0F, 0.0F, 0.0F};
  const float* partial = run_partial(args, row, head, 0);
#pragma unroll 4
  for (std::int64_t run = 0; run < runs; ++run, partial += kLatentValueDim + kPartialTail) {
    const float4 value = *reinterpret_cast<const float4*>(partial + at);
    join_sums(acc, value, merge_sums(max, sum, partial[kLatentValueDim], partial[kLatentValueDim + 1]));
  }
  const std::int64_t to = row * args.out_stride + std::int64_t{head} * kLatentValueDim;
  store_result(args, to + at / 16 * 16 + at % 16 / 2, acc, sum == 0.0F ? 0.0F : 1.0F / sum);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Barriers of the consumers.
inline constexpr int kWeightsReady = 1;
inline constexpr int kWeightsFree = 2;
inline constexpr int kRunDone = 3;
inline constexpr int kConsumers = 32 * kLatentConsumerWarps;

inline constexpr float kLatentSlack = 8.0F;  // of powers of 2: weights are up to 256

// The queries of the block's heads, in bf16; heads that are not there are zeros. By the consumers, a head by a warp.
template <bool kBf16>
__device__ void load_latent_queries(const AttentionArgs& args, const LatentPlace& place, std::uint32_t to) {
  constexpr int kUnits = kLatentKeyDim / 8;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  static_assert(kLatentConsumerWarps == 8);
  const std::int64_t first =
      place.row * args.q_stride + std::int64_t{place.first_head + warp} * kLatentKeyDim + 8 * lane;
#pragma unroll
  for (int unit = 0; unit < kUnits; unit += 32) {
    if (unit + lane >= kUnits) break;
    const std::uint32_t address = latent_unit_address(to, warp, unit + lane);
    const std::int64_t at = first + 8 * unit;
#pragma unroll
    for (int i = 0; i < kLatentHeads / 8; ++i) {
      const bool present = warp + 8 * i < place.heads;
      const std::int64_t offset = present ? at + i * 8 * kLatentKeyDim : 0;
      if constexpr (kBf16) {
        copy_16_async(address + i * kLatentGroupBytes, static_cast<const __nv_bfloat16*>(args.q) + offset, present);
      } else {
        const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(args.q) + offset);
        const float4 low = from[0];
        const float4 high = from[1];
        const uint4 out = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                           pack_bf16(high.z, high.w)};
        store_16(address + i * kLatentGroupBytes, present ? out : uint4{0, 0, 0, 0});
      }
    }
  }
  commit_copies();
  wait_copies<0>();
  publish_to_products();
}

// Of numbers below 2^128; below 2^-126: 0.
__device__ inline float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

// A consumer: half kHalf of the channels. A thread holds heads head_ + {0, 8}.
template <int kHalf, bool kPair>
class LatentConsumer {
 public:
  __device__ LatentConsumer(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared)
      : args_(args),
        place_(place),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        head_(static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4) {}

  __device__ void run() {
    const int first = place_.first_tile();
    const int end = place_.end_tile();
    float scores[32];  // rows 8 j + 2 (lane % 4) + {0, 1} of both heads: scores[4 j + {0, 1}, {2, 3}]
    int now = 0;
    std::uint32_t parity = 0;
    if constexpr (kHalf == 0) find_slots(first);
    for (int tile = first; tile < end; ++tile) {
      const bool starts_run = tile % kLatentRunTiles == 0;
      const std::uint32_t rows = shared_address(shared_.rows[now]);
      const std::uint32_t emptied = shared_address(&shared_.emptied[now]);
      if constexpr (kHalf == 0) {
        if (tile == first) {
          wait_phase(shared_address(&shared_.filled[now]), parity);
          start_scores(rows, scores);
        }
        wait_products(scores);
        make_weights(scores, starts_run, tile > first);
      } else {
        if (tile > first) meet(kWeightsFree, kConsumers);
        wait_phase(shared_address(&shared_.filled[now]), parity);
      }
      meet(kWeightsReady, kConsumers);
      start_values(rows, starts_run);
      parity ^= now;
      now ^= 1;
      if (kHalf == 0 && tile + 1 < end) {
        // The next tile's scores follow at once.
        find_slots(tile + 1);
        wait_phase(shared_address(&shared_.filled[now]), parity);
        start_scores(shared_address(shared_.rows[now]), scores);
        wait_products<1>(acc_);
      } else {
        wait_products(acc_);
      }
      if (lane_ == 0) {
        arrive_at(emptied);
        if constexpr (kPair) arrive_in_block(address_in_block(emptied, place_.rank ^ 1));
      }
      if (tile % kLatentRunTiles == kLatentRunTiles - 1 || tile + 1 == end) finish_run(tile / kLatentRunTiles);
    }
    if constexpr (kPair) meet_cluster();  // what this block sent has come; none leaves before the other is done with it
    if (place_.whole) write_results();
  }

 private:
  // Of a tile's rows: the weights of holes are zeros.
  __device__ void find_slots(int tile) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int rank = tile * kLatentTile + 32 * k + lane_;
      slots_[k] = rank < place_.count ? static_cast<std::int32_t>(list_slot(args_, place_.row, rank)) : -1;
    }
  }

  __device__ void start_scores(std::uint32_t rows, float (&scores)[32]) {
    const std::uint64_t q = tile_descriptor(shared_address(shared_.q), 16, kLatentGroupBytes);
    const std::uint64_t keys = tile_descriptor(rows, 16, kLatentGroupBytes);
    begin_products();
#pragma unroll
    for (int column = 0; column < kLatentColumns; ++column) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = (column * kLatentBlockBytes + step * 32) / 16;
        multiply_keys(scores, q + at, keys + at, column + step > 0);
      }
    }
    commit_products();
  }

  // The scores of the tile become weights in shared memory, once those of the tile before are done with.
  __device__ void make_weights(float (&scores)[32], bool starts_run, bool others_before) {
    float factor = args_.scale * kLog2E;
    if (!(factor > 0.0F)) {  // else, the largest score is that of the largest product, and a hole's stays -infinity
#pragma unroll
      for (int i = 0; i < 32; ++i) scores[i] *= factor;
      factor = 1.0F;
    }
    mask_holes(scores);
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; ++i) max[i / 2 % 2] = fmaxf(max[i / 2 % 2], scores[i]);
    float shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 1));
      max[i] = factor * fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 2));
      const float before = starts_run ? -INFINITY : max_[i];
      max_[i] = max[i] > before + kLatentSlack ? max[i] : before;
      shift[i] = finite_or_zero(max_[i]);
      keep_[i] = power_of_2(before - shift[i]);
      sum_[i] = starts_run ? 0.0F : sum_[i] * keep_[i];
    }
    std::uint32_t weights[4][4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = k % 2;
        const float* const score = scores + 4 * (2 * pair + k / 2) + 2 * i;
        const float low = power_of_2(fmaf(score[0], factor, -shift[i]));
        const float high = power_of_2(fmaf(score[1], factor, -shift[i]));
        sum_[i] += low + high;
        weights[pair][k] = pack_bf16(low, high);
      }
    }
    if (others_before) meet(kWeightsFree, kConsumers);
    if (lane_ % 4 == 0) {
      shared_.keep[head_] = keep_[0];
      shared_.keep[head_ + 8] = keep_[1];
    }
    // A lane gives the address of row lane % 8 of matrix lane / 8: heads + {0, 8}, entries 16 pair + {0, 8}.
    const int row = head_ - lane_ / 4 + lane_ % 16;
    const int to =
        computed_anew(static_cast<int>(shared_address(shared_.weights)) + row * 128 + ((lane_ / 16 ^ row % 8) << 4));
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) store_matrices(static_cast<std::uint32_t>(to ^ pair << 5), weights[pair]);
    publish_to_products();
  }

  __device__ void mask_holes(float (&scores)[32]) const {
    const std::uint32_t present[2] = {__ballot_sync(0xffffffffU, slots_[0] >= 0),
                                      __ballot_sync(0xffffffffU, slots_[1] >= 0)};
    if ((present[0] & present[1]) == 0xffffffffU) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t bits = present[j / 4] >> (8 * (j % 4) + 2 * (lane_ % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((bits >> (i % 2) & 1) == 0) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  // Adds the weights' products with the values of this half.
  __device__ void start_values(std::uint32_t rows, bool starts_run) {
    if constexpr (kHalf == 1) {
      keep_[0] = shared_.keep[head_];
      keep_[1] = shared_.keep[head_ + 8];
    }
    if (!starts_run && __any_sync(0xffffffffU, keep_[0] != 1.0F || keep_[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) acc_[i] *= keep_[i / 2 % 2];
    }
    const std::uint64_t weights = tile_descriptor(shared_address(shared_.weights), 16, 1024);
    const std::uint64_t values =
        tile_descriptor(rows + kHalf * (4 * kLatentBlockBytes), kLatentBlockBytes, kLatentGroupBytes);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_values(acc_, weights + step * 32 / 16, values + step * 2 * kLatentGroupBytes / 16,
                      step > 0 || !starts_run);
    }
    commit_products();
  }

  // How a finished run joins the total of the runs before, for both consumers; or its maximum and sum, for latent_join.
  __device__ void share_run_sums(int run) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum_[i] += __shfl_xor_sync(0xffffffffU, sum_[i], 1);
      sum_[i] += __shfl_xor_sync(0xffffffffU, sum_[i], 2);
      const int head = head_ + 8 * i;
      if (lane_ % 4 != 0) continue;
      if (place_.whole) {
        const bool first = run == place_.first_run;
        float total_max = first ? -INFINITY : shared_.total_max[head];
        float total_sum = first ? 0.0F : shared_.total_sum[head];
        const MergeFactors factors = merge_sums(total_max, total_sum, max_[i], sum_[i]);
        shared_.total_max[head] = total_max;
        shared_.total_sum[head] = total_sum;
        shared_.run_keep[head] = factors.keep;
        shared_.run_take[head] = factors.take;
      } else if (head < place_.heads) {
        float* const base = run_partial(args_, place_.row, place_.first_head + head, run);
        base[kLatentValueDim] = max_[i];
        base[kLatentValueDim + 1] = sum_[i];
      }
    }
  }

  // Joins the finished run with the total, and keeps it in the workspace unless it is the result; or keeps the run.
  __device__ void finish_run(int run) {
    if constexpr (kHalf == 0) share_run_sums(run);
    meet(kRunDone, kConsumers);
    if (!place_.whole) return keep_run(run);
    // [row][64 heads][warp of the consumers][32][lane] of float4; sparse_attention_workspace_bytes counts them.
    const std::int64_t block = place_.row * ceil_div(args_.heads, kLatentHeads) + place_.first_head / kLatentHeads;
    float4* const total = reinterpret_cast<float4*>(args_.workspace) + block * (kLatentHeads * kLatentValueDim / 4) +
                          static_cast<int>(threadIdx.x) / 32 * 1024 + lane_;
    join_total(total, run == place_.first_run);
    if (run + 1 == place_.end_run) return;
#pragma unroll
    for (int k = 0; k < 32; ++k) total[32 * k] = sums_at(k / 16, k % 16);
  }

  // Of head head_ + 8 i, channels 16 a + 2 (lane % 4) + {0, 1, 8, 9} of the half.
  __device__ float4 sums_at(int i, int a) const {
    return {acc_[8 * a + 2 * i], acc_[8 * a + 2 * i + 1], acc_[8 * a + 4 + 2 * i], acc_[8 * a + 4 + 2 * i + 1]};
  }

  __device__ void join_total(const float4* total, bool first) {
    constexpr int kBatch = 8;  // loads on their way together
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const MergeFactors factors{shared_.run_keep[head_ + 8 * i], shared_.run_take[head_ + 8 * i]};
#pragma unroll
      for (int begin = 0; begin < 16; begin += kBatch) {
        float4 before[kBatch] = {};
        if (!first) {
#pragma unroll
          for (int a = 0; a < kBatch; ++a) before[a] = total[32 * (16 * i + begin + a)];
        }
#pragma unroll
        for (int a = 0; a < kBatch; ++a) {
          float* const acc = acc_ + 8 * (begin + a) + 2 * i;
          join_sums(before[a], {acc[0], acc[1], acc[4], acc[5]}, factors);
          acc[0] = before[a].x;
          acc[1] = before[a].y;
          acc[4] = before[a].z;
          acc[5] = before[a].w;
        }
      }
    }
  }

  // For latent_join.
  __device__ void keep_run(int run) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (head_ + 8 * i >= place_.heads) continue;
      float* const partial = run_partial(args_, place_.row, place_.first_head + head_ + 8 * i, run);
#pragma unroll
      for (int a = 0; a < 16; ++a) {
        *reinterpret_cast<float4*>(partial + 256 * kHalf + 4 * (lane_ % 4) + 16 * a) = sums_at(i, a);
      }
    }
    __syncwarp();
  }

  // Through shared memory, where the rows were: a warp's 16 heads, rows of 256 channels and padding against conflicts.
  __device__ void write_results() {
    constexpr int kStride = 256 + 8;
    static_assert(8 * 16 * kStride * sizeof(float) <= sizeof(shared_.rows));
    auto* const staged = reinterpret_cast<float*>(shared_.rows) + static_cast<int>(threadIdx.x) / 32 * 16 * kStride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = shared_.total_sum[head_ + 8 * i];  // heads that are not there: of zeros, not written
      const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
      float* const to = staged + (lane_ / 4 + 8 * i) * kStride + 2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) = {acc_[4 * j + 2 * i] * factor, acc_[4 * j + 2 * i + 1] * factor};
      }
    }
    __syncwarp();
    const int first_head = head_ - lane_ / 4;
    const int heads = min(16, place_.heads - first_head);
    const std::int64_t to =
        place_.row * args_.out_stride + std::int64_t{place_.first_head + first_head} * kLatentValueDim + 256 * kHalf;
    if (args_.out_bf16) {
      write_rows<2>(staged, kStride, static_cast<std::byte*>(args_.out) + 2 * to, heads);
    } else {
      write_rows<4>(staged, kStride, static_cast<std::byte*>(args_.out) + 4 * to, heads);
    }
  }

  // Numbers of kBytes.
  template <int kBytes>
  __device__ void write_rows(const float* staged, int stride, std::byte* to, int heads) const {
    if (reinterpret_cast<std::uintptr_t>(to) % (4 * kBytes) == 0) {
#pragma unroll 4
      for (int i = 0; i < 2 * heads; ++i) {
        const int at = 128 * (i % 2) + 4 * lane_;
        const float4 four = *reinterpret_cast<const float4*>(staged + i / 2 * stride + at);
        std::byte* const there = to + (i / 2 * kLatentValueDim + at) * kBytes;
        if constexpr (kBytes == 2) {
          *reinterpret_cast<uint2*>(there) = {pack_bf16(four.x, four.y), pack_bf16(four.z, four.w)};
        } else {
          *reinterpret_cast<float4*>(there) = four;
        }
      }
    } else {
#pragma unroll 1
      for (int i = lane_; i < 256 * heads; i += 32) {
        store_activation(to, kBytes == 2, i / 256 * kLatentValueDim + i % 256, staged[i / 256 * stride + i % 256]);
      }
    }
  }

  const AttentionArgs& args_;
  const LatentPlace& place_;
  LatentShared& shared_;
  const int lane_, head_;
  float acc_[128];  // channels 256 (half) + 8 j + 2 (lane % 4) + {0, 1} of both heads: acc_[4 j + {0, 1}, {2, 3}]
  std::int32_t slots_[2];  // the first consumer's, as are those below: rows lane + {0, 32} of the next tile
  float max_[2];
  float sum_[2];   // of this thread's own weights
  float keep_[2];  // both consumers': of the tile
};

template <bool kFp8, bool kPair>
__device__ void latent_block(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_phases(shared_address(&shared.filled[i]), kLatentProducerWarps);
      init_phases(shared_address(&shared.emptied[i]), (kPair ? 2 : 1) * kLatentConsumerWarps);
    }
    if constexpr (kPair) publish_phases();
  }
  if constexpr (kPair) {
    __syncwarp();
    meet_cluster();
  } else {
    __syncthreads();
  }
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup < 2 && args.q_bf16) load_latent_queries<true>(args, place, shared_address(shared.q));
  if (warpgroup < 2 && !args.q_bf16) load_latent_queries<false>(args, place, shared_address(shared.q));
  if (warpgroup == 0) {
    take_registers<208>();
    meet(kWeightsReady, kConsumers);
    LatentConsumer<0, kPair>(args, place, shared).run();
  } else if (warpgroup == 1) {
    leave_registers<160>();
    meet(kWeightsReady, kConsumers);
    LatentConsumer<1, kPair>(args, place, shared).run();
  } else {
    leave_registers<136>();
    LatentProducer<kFp8, kPair>(args, place, shared).run();
    __syncwarp();
    if constexpr (kPair) meet_cluster();
  }
}

#endif

// A block for every (row, column of runs, 64 heads), heads fastest. columns 1: a block takes all runs of its list.
// kPair: launched in clusters of 2, head_blocks are even.
template <bool kFp8, bool kPair>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_attention(AttentionArgs args, int head_blocks, int columns) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // latent_join may take its place; it waits there
  extern __shared__ std::byte memory[];
  auto& shared = *reinterpret_cast<LatentShared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const int head_block = static_cast<int>(blockIdx.x) % head_blocks;
  const int rest = static_cast<int>(blockIdx.x) / head_blocks;
  LatentPlace place;
  place.row = rest / columns;
  place.first_head = head_block * kLatentHeads;
  place.heads = min(kLatentHeads, args.heads - place.first_head);
  place.count = static_cast<int>(list_count(args, place.row));
  const int runs = (place.count + static_cast<int>(kLatentRun) - 1) / static_cast<int>(kLatentRun);
  place.whole = columns == 1;
  if constexpr (kPair) place.rank = cluster_rank();
  place.first_run = rest % columns;
  place.end_run = place.whole ? runs : place.first_run + 1;
  if (place.first_run < runs) return latent_block<kFp8, kPair>(args, place, shared);
  if (!place.whole) return;
  for (int i = static_cast<int>(threadIdx.x); i < place.heads * kLatentValueDim; i += kLatentThreads) {
    store_activation(args.out, args.out_bf16,
                     place.row * args.out_stride + std::int64_t{place.first_head} * kLatentValueDim + i, 0.0F);
  }
#endif
}

// May start while the latent kernel still runs.
inline void launch_latent_join(const AttentionArgs& args, Stream stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.rows * args.heads));
  config.blockDim = dim3(kLatentValueDim / 4);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  HOTSET_CUDA_CHECK(cudaLaunchKernelEx(&config, latent_join, args));
}

template <bool kFp8, bool kPair>
void launch_latent_kernel(const AttentionArgs& args, int head_blocks, Stream stream) {
  const std::int64_t lists = args.rows * head_blocks;
  const std::int64_t columns = lists >= kLatentFillingLists ? 1 : args.max_runs;
  HS_CHECK(lists * columns < (std::int64_t{1} << 31) && args.rows * args.heads < (std::int64_t{1} << 31),
           "too many blocks for one launch");
  const auto kernel = latent_attention<kFp8, kPair>;
  HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kLatentSharedBytes));
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = kPair ? 2 : 1, .y = 1, .z = 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(lists * columns));
  config.blockDim = dim3(kLatentThreads);
  config.dynamicSmemBytes = kLatentSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kPair ? 1 : 0;
  HOTSET_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args, head_blocks, static_cast<int>(columns)));
  if (columns > 1) launch_latent_join(args, stream);
}

}  // namespace hotset::kernels::cuda
