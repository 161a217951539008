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

// The queries of the block's heads, in bf16; heads that are not there are zeros. By the consumers.
__device__ inline void load_latent_queries(const AttentionArgs& args, const LatentPlace& place, std::uint32_t to) {
  constexpr int kUnits = kLatentKeyDim / 8;
#pragma unroll 6
  for (int i = static_cast<int>(threadIdx.x); i < kLatentHeads * kUnits; i += kConsumers) {
    const int head = i / kUnits;
    const int unit = i % kUnits;
    const std::int64_t at =
        place.row * args.q_stride + std::int64_t{place.first_head + head} * kLatentKeyDim + unit * 8;
    uint4 out{0, 0, 0, 0};
    if (head < place.heads && args.q_bf16) {
      out = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.q) + at);
    } else if (head < place.heads) {
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

// Of numbers below 2^128; below 2^-126: 0.
__device__ inline float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

// A consumer: half kHalf of the channels. A thread holds heads head_ + {0, 8}.
template <int kHalf>
class LatentConsumer {
 public:
  __device__ LatentConsumer(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared)
      : args_(args),
        place_(place),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % 32),
        head_(static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4) {}

  __device__ void run() {
#pragma unroll
    for (int i = 0; i < 128; ++i) acc_[i] = 0.0F;  // a run's first product replaces what is there
    float total_max[2] = {-INFINITY, -INFINITY};
    float total_sum[2] = {0.0F, 0.0F};
    const int end = place_.end_tile();
    int now = 0;
    std::uint32_t parity = 0;
    for (int tile = place_.first_tile(); tile < end; ++tile) {
      const bool starts_run = tile % kLatentRunTiles == 0;
      const std::uint32_t rows = shared_address(shared_.rows[now]);
      wait_phase(shared_address(&shared_.filled[now]), parity);
      if constexpr (kHalf == 0) {
        if (starts_run) {
          max_[0] = max_[1] = -INFINITY;
          sum_[0] = sum_[1] = 0.0F;
        }
        make_weights(rows, shared_.present[now], tile > place_.first_tile());
      }
      meet(kWeightsReady, kConsumers);
      add_values(rows, starts_run);
      if constexpr (kHalf == 1) count_in(kWeightsFree, kConsumers);
      if (lane_ == 0) arrive_at(shared_address(&shared_.emptied[now]));
      parity ^= now;
      now ^= 1;
      if (tile % kLatentRunTiles == kLatentRunTiles - 1 || tile + 1 == end) {
        share_run_sums();
        finish_run(tile / kLatentRunTiles, total_max, total_sum);
      }
    }
    // The last count of the other half.
    if constexpr (kHalf == 0) meet(kWeightsFree, kConsumers);
  }

 private:
  // The scores of the tile become weights in shared memory, once those of the tile before are done with.
  __device__ void make_weights(std::uint32_t rows, const std::uint32_t (&present)[kLatentTile / 8],
                               bool others_before) {
    const std::uint64_t q = tile_descriptor(shared_address(shared_.q), 16, 1024);
    const std::uint64_t keys = tile_descriptor(rows, 16, 1024);
    float scores[32];  // rows 8 j + 2 (lane % 4) + {0, 1} of both heads: scores[4 j + {0, 1}, {2, 3}]
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

    const float factor = args_.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] *= factor;
    mask_holes(present, scores);
    float max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < 32; ++i) max[i / 2 % 2] = fmaxf(max[i / 2 % 2], scores[i]);
    float shift[2];
    float keep[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 1));
      max[i] = fmaxf(max[i], __shfl_xor_sync(0xffffffffU, max[i], 2));
      const float joined = max[i] > max_[i] + kLatentSlack ? max[i] : max_[i];
      shift[i] = finite_or_zero(joined);
      keep[i] = power_of_2(max_[i] - shift[i]);
      max_[i] = joined;
      sum_[i] *= keep[i];
    }
    if (others_before) meet(kWeightsFree, kConsumers);
    if (lane_ % 4 == 0) {
      shared_.keep[head_] = keep[0];
      shared_.keep[head_ + 8] = keep[1];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float low = power_of_2(scores[4 * j + 2 * i] - shift[i]);
        const float high = power_of_2(scores[4 * j + 2 * i + 1] - shift[i]);
        sum_[i] += low + high;
        const int row = head_ + 8 * i;
        std::byte* const to = shared_.weights + row * 128 + ((j ^ row % 8) << 4) + 4 * (lane_ % 4);
        *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(low, high);
      }
    }
    publish_to_products();
  }

  __device__ void mask_holes(const std::uint32_t (&present)[kLatentTile / 8], float (&scores)[32]) const {
    std::uint32_t all = 0xffffffffU;
#pragma unroll
    for (int j = 0; j < 8; ++j) all &= present[j];
    if (all == 0xffffffffU) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t word = present[j] >> (8 * (lane_ % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((word >> (4 * (i % 2)) & 1) == 0) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  // Adds the weights' products with the values of this half.
  __device__ void add_values(std::uint32_t rows, bool starts_run) {
    const float keep[2] = {shared_.keep[head_], shared_.keep[head_ + 8]};
    if (!starts_run && __any_sync(0xffffffffU, keep[0] != 1.0F || keep[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) acc_[i] *= keep[i / 2 % 2];
    }
    const std::uint64_t weights = tile_descriptor(shared_address(shared_.weights), 16, 1024);
    const std::uint64_t values = tile_descriptor(rows + kHalf * (4 * kLatentColumnBytes), kLatentColumnBytes, 1024);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_values(acc_, weights + step * 32 / 16, values + step * 2048 / 16, step > 0 || !starts_run);
    }
    commit_products();
    wait_products(acc_);
  }

  // Maximum and sum of all weights of the finished run, for both consumers.
  __device__ void share_run_sums() {
    if constexpr (kHalf == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum_[i] += __shfl_xor_sync(0xffffffffU, sum_[i], 1);
        sum_[i] += __shfl_xor_sync(0xffffffffU, sum_[i], 2);
        if (lane_ % 4 == 0) {
          shared_.run_max[head_ + 8 * i] = max_[i];
          shared_.run_sum[head_ + 8 * i] = sum_[i];
        }
      }
    }
    meet(kRunDone, kConsumers);
  }

  __device__ float4 sums_at(int a, int i) const {
    return {acc_[8 * a + 2 * i], acc_[8 * a + 2 * i + 1], acc_[8 * a + 4 + 2 * i], acc_[8 * a + 4 + 2 * i + 1]};
  }

  // Joins the finished run with the total, or keeps it for latent_join.
  __device__ void finish_run(int run, float (&total_max)[2], float (&total_sum)[2]) {
    const bool first = run == place_.first_run;
    const bool last = run + 1 == place_.end_run;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = head_ + 8 * i;
      if (head >= place_.heads) continue;
      const float max = shared_.run_max[head];
      const float sum = shared_.run_sum[head];
      float* const base = run_partial(args_, place_.row, place_.first_head + head, place_.whole ? 0 : run);
      float* const partial = base + 256 * kHalf + 4 * (lane_ % 4);
      const MergeFactors factors = merge_sums(total_max[i], total_sum[i], max, sum);
      if (!place_.whole) {
        if (kHalf == 0 && lane_ % 4 == 0) {
          base[kLatentValueDim] = max;
          base[kLatentValueDim + 1] = sum;
        }
#pragma unroll
        for (int a = 0; a < 16; ++a) *reinterpret_cast<float4*>(partial + 16 * a) = sums_at(a, i);
        continue;
      }
      // What is there is loaded in batches: one by one, each would wait for the workspace.
      constexpr int kBatch = 8;
#pragma unroll
      for (int begin = 0; begin < 16; begin += kBatch) {
        float4 total[kBatch] = {};
        if (!first) {
#pragma unroll
          for (int a = 0; a < kBatch; ++a) total[a] = *reinterpret_cast<const float4*>(partial + 16 * (begin + a));
        }
#pragma unroll
        for (int a = 0; a < kBatch; ++a) {
          join_sums(total[a], sums_at(begin + a, i), factors);
          acc_[8 * (begin + a) + 2 * i] = total[a].x;
          acc_[8 * (begin + a) + 2 * i + 1] = total[a].y;
          acc_[8 * (begin + a) + 4 + 2 * i] = total[a].z;
          acc_[8 * (begin + a) + 4 + 2 * i + 1] = total[a].w;
        }
      }
      if (!last) {
#pragma unroll
        for (int a = 0; a < 16; ++a) *reinterpret_cast<float4*>(partial + 16 * a) = sums_at(a, i);
        continue;
      }
      const float factor = total_sum[i] == 0.0F ? 0.0F : 1.0F / total_sum[i];
      const std::int64_t to = place_.row * args_.out_stride + std::int64_t{place_.first_head + head} * kLatentValueDim +
                              256 * kHalf + 2 * (lane_ % 4);
#pragma unroll
      for (int a = 0; a < 16; ++a) store_result(args_, to + 16 * a, sums_at(a, i), factor);
    }
  }

  const AttentionArgs& args_;
  const LatentPlace& place_;
  LatentShared& shared_;
  const int lane_, head_;
  float acc_[128];  // channels 256 (half) + 8 j + 2 (lane % 4) + {0, 1} of both heads: acc_[4 j + {0, 1}, {2, 3}]
  float max_[2];    // the first consumer's, as is sum_: of this thread's own weights
  float sum_[2];
};

template <bool kFp8>
__device__ void latent_block(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_phases(shared_address(&shared.filled[i]), kLatentProducerWarps);
      init_phases(shared_address(&shared.emptied[i]), kLatentConsumerWarps);
    }
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    take_registers<192>();
    load_latent_queries(args, place, shared_address(shared.q));
    meet(kWeightsReady, kConsumers);
    LatentConsumer<0>(args, place, shared).run();
  } else if (warpgroup == 1) {
    take_registers<176>();
    load_latent_queries(args, place, shared_address(shared.q));
    meet(kWeightsReady, kConsumers);
    LatentConsumer<1>(args, place, shared).run();
  } else {
    leave_registers<136>();
    LatentProducer<kFp8>(args, place, shared).run();
  }
}

#endif

// A block for every (row, column of runs, 64 heads), heads fastest. columns 1: a block takes all runs of its list.
template <bool kFp8>
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
  place.first_run = rest % columns;
  place.end_run = place.whole ? runs : place.first_run + 1;
  if (place.first_run < runs) return latent_block<kFp8>(args, place, shared);
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
  if (columns > 1) launch_latent_join(args, stream);
}

}  // namespace hotset::kernels::cuda
