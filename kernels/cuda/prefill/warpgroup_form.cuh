// Prefill attention on Hopper's tensor cores: tiles of 128 queries of one head over tiles of 128 keys. The floor is
// 2 * 2 * queries * keys * (key_dim + value_dim) / 2 operations at 989 TFLOP/s.
//
// A block of three warpgroups. One thread of the first brings keys and values by tensor copies into two stages each;
// rows are read where they are, page by page. Each of the others takes 64 queries; its sums stay in registers:
// 1. the products of the next tile's keys and of this tile's values are sent off together;
// 2. when the scores are there, they become weights while the other products run, then the sums are brought to the new
//    maximum. The two warpgroups take turns at sending off (as FlashAttention-3, arXiv 2407.08608): one's softmax runs
//    beside the other's products.
// A tile in which a query sees nothing changes nothing of it: its factor is exactly 1, its weights are 0.
// Tiles of queries begin at positions that are multiples of 128, as those of keys: only a block's last tile of keys
// holds some that a query does not see. Their weights are 0, and 0 times a value that is not finite would be NaN: where
// that tile has such values, they are added one by one.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"
#include "kernels/cuda/prefill/prefill_args.cuh"
#include "kernels/cuda/prefill/products.cuh"
#include "kernels/cuda/prefill/tensor_map.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

inline constexpr int kPrefillThreads = 384;
inline constexpr int kPrefillQueries = 128;
inline constexpr int kPrefillKeys = 128;
inline constexpr int kPrefillBlockBytes = kPrefillKeys * 128;  // 64 channels of 128 keys or queries

struct PrefillMaps {
  CUtensorMap keys, shared_keys, values;
  std::int32_t own_blocks;  // blocks of 64 key channels before the shared ones
};

// The order of the blocks: `kv_heads` KV heads at a time, whose rows the L2 holds, the longest queries first.
struct PrefillGrid {
  std::int32_t query_tiles, kv_heads;
};

template <int kKeyBlocks, int kValueBlocks>
struct PrefillShared {
  std::byte q[kKeyBlocks][kPrefillBlockBytes];
  std::byte keys[2][kKeyBlocks][kPrefillBlockBytes];
  std::byte values[2][kValueBlocks][kPrefillBlockBytes];
  std::uint64_t keys_there[2], values_there[2], keys_free[2], values_free[2];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ inline void copy_box(std::uint32_t to, const CUtensorMap& map, int channel, int head, int page,
                                std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];\n" ::"r"(to),
      "l"(&map), "r"(channel), "r"(head), "r"(0), "r"(page), "r"(barrier)
      : "memory");
}
__device__ inline void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// meet(), and whether it is so for any of the threads.
__device__ inline bool meet_any(int id, int threads, bool so) {
  std::uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbarrier.cta.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(so))
      : "memory");
  return any != 0;
}
__device__ inline float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

template <int kKeyBlocks, int kValueBlocks, bool kScaled>
struct PrefillKernel {
  using Shared = PrefillShared<kKeyBlocks, kValueBlocks>;
  static constexpr int kChannels = 64 * kValueBlocks;
  // Barriers of the warpgroups with queries: turns of each, each by itself, both.
  static constexpr int kTurn = 1, kOwn = 3, kBoth = 5;

  // What a block works on.
  struct Place {
    int head, kv_head;
    std::int64_t first_query;         // row; below 0 where the chunk begins within a tile: rows before 0 are not there
    std::int64_t first_key, end_key;  // positions; first_key a multiple of 128
    int tiles;
  };
  // Of queries lane / 4 + {0, 8} of the warp's 16: channels 8 j + 2 (lane % 4) + {0, 1} at acc[4 j + {0, 1}, {2, 3}].
  struct State {
    float acc[32 * kValueBlocks];
    float max[2];
    float sum[2];  // of this lane's keys
  };

  __device__ static void produce(const PrefillArgs& args, const PrefillMaps& maps, const Place& place, Shared& shared) {
    for (int i = 0; i < place.tiles; ++i) {
      const int stage = i % 2;
      const std::uint32_t parity = (i / 2) % 2;
      const std::int64_t tile = place.first_key / kPageTokens + 2 * i;
      const bool both = (tile + 1) * kPageTokens < place.end_key;
      const int pages[2] = {static_cast<int>(tile_page(args, tile)),
                            both ? static_cast<int>(tile_page(args, tile + 1)) : 0};
      const std::uint32_t bytes = (both ? 2 : 1) * (kPrefillBlockBytes / 2);
      const std::uint32_t keys_there = shared_address(&shared.keys_there[stage]);
      wait_phase(shared_address(&shared.keys_free[stage]), parity ^ 1);
      expect_bytes(keys_there, kKeyBlocks * bytes);
      for (int half = 0; half < (both ? 2 : 1); ++half) {
#pragma unroll
        for (int block = 0; block < kKeyBlocks; ++block) {
          const bool own = block < maps.own_blocks;
          copy_box(shared_address(shared.keys[stage][block]) + half * (kPrefillBlockBytes / 2),
                   own ? maps.keys : maps.shared_keys, 64 * (own ? block : block - maps.own_blocks),
                   own ? place.kv_head : 0, pages[half], keys_there);
        }
      }
      const std::uint32_t values_there = shared_address(&shared.values_there[stage]);
      wait_phase(shared_address(&shared.values_free[stage]), parity ^ 1);
      expect_bytes(values_there, kValueBlocks * bytes);
      for (int half = 0; half < (both ? 2 : 1); ++half) {
#pragma unroll
        for (int block = 0; block < kValueBlocks; ++block) {
          copy_box(shared_address(shared.values[stage][block]) + half * (kPrefillBlockBytes / 2), maps.values,
                   64 * block, place.kv_head, pages[half], values_there);
        }
      }
    }
  }

  __device__ static int warpgroup() { return static_cast<int>(threadIdx.x) / 128 - 1; }
  // Of the thread's first query in the block's 128.
  __device__ static int own_query() {
    return 64 * warpgroup() + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ static bool is_row(const PrefillArgs& args, std::int64_t row) { return row >= 0 && row < args.rows; }

  // The warpgroup's 64 queries in bf16; what is not there is zeros.
  __device__ static void load_queries(const PrefillArgs& args, const Place& place, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int i = thread; i < 64 * 8 * kKeyBlocks; i += 128) {
      const int query = 64 * warpgroup() + i / (8 * kKeyBlocks);
      const int unit = i % (8 * kKeyBlocks);
      const std::int64_t row = place.first_query + query;
      uint4 out{0, 0, 0, 0};
      if (is_row(args, row) && unit * 8 < args.view.key_dim) {
        const std::int64_t at = row * args.q_stride + std::int64_t{place.head} * args.view.key_dim + unit * 8;
        if (args.bf16_activations) {
          out = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(args.q) + at);
        } else {
          const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(args.q) + at);
          const float4 low = from[0];
          const float4 high = from[1];
          out = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                 pack_bf16(high.z, high.w)};
        }
      }
      *reinterpret_cast<uint4*>(shared.q[unit / 8] + query * 128 + ((unit % 8 ^ query % 8) << 4)) = out;
    }
    publish_to_products();
    meet(kOwn + warpgroup(), 128);
  }

  __device__ static void load_state(const PrefillArgs& args, const Place& place, State& state) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = place.first_query + own_query() + 8 * i;
      const bool stored = !args.begin && is_row(args, row);
      const std::int64_t at = row * args.heads + place.head;
      state.max[i] = stored ? args.state.max[at] : -INFINITY;
      state.sum[i] = stored ? args.state.sum[at * 4 + lane % 4] : 0.0F;
#pragma unroll
      for (int j = 0; j < 8 * kValueBlocks; ++j) {
        const int channel = 8 * j + 2 * (lane % 4);
        float2 acc{0.0F, 0.0F};
        if (stored && channel < args.view.value_dim) {
          acc = *reinterpret_cast<const float2*>(args.state.acc + at * args.view.value_dim + channel);
        }
        state.acc[4 * j + 2 * i] = acc.x;
        state.acc[4 * j + 2 * i + 1] = acc.y;
      }
    }
  }

  __device__ static void score(Shared& shared, int stage, float (&scores)[64]) {
    const std::uint64_t q = tile_descriptor(shared_address(shared.q) + warpgroup() * (64 * 128), 16, 1024);
    const std::uint64_t keys = tile_descriptor(shared_address(shared.keys[stage]), 16, 1024);
#pragma unroll
    for (int block = 0; block < kKeyBlocks; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = (block * kPrefillBlockBytes + step * 32) / 16;
        multiply_queries(scores, q + at, keys + at, block + step > 0);
      }
    }
    commit_products();
  }
  __device__ static void add_values(Shared& shared, int stage, const std::uint32_t (&weights)[32],
                                    float (&acc)[32 * kValueBlocks]) {
    const std::uint64_t values = tile_descriptor(shared_address(shared.values[stage]), kPrefillBlockBytes, 1024);
#pragma unroll
    for (int step = 0; step < 8; ++step) multiply_weights(acc, weights + 4 * step, values + step * 2048 / 16);
    commit_products();
  }

  // Whether the tile of keys begins where the block's queries do: query i sees its first i + 1 keys. Of earlier tiles
  // each sees all.
  __device__ static bool is_diagonal(const PrefillArgs& args, const Place& place, int tile) {
    return place.first_key + std::int64_t{tile} * kPrefillKeys == args.first_position + place.first_query;
  }
  // Of the diagonal tile, what the queries do not see.
  __device__ static void hide(float (&scores)[64], float value) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * j + 2 * (lane % 4) + i % 2;
        if (key > own_query() + 8 * (i / 2)) scores[4 * j + i] = value;
      }
    }
  }

  // Scores become weights, relative to the new maximum; `keep`: what the sums so far are to be multiplied by.
  __device__ static void softmax(const PrefillArgs& args, const Place& place, int tile, float (&scores)[64],
                                 State& state, float (&keep)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t first_key = place.first_key + std::int64_t{tile} * kPrefillKeys;
    const std::int64_t scale_at =
        kScaled ? place.kv_head * args.scale_stride + first_key - args.first_tile * kPageTokens + 2 * (lane % 4) : 0;
    if constexpr (kScaled) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float2 scale = *reinterpret_cast<const float2*>(args.key_scales + scale_at + 8 * j);
        scores[4 * j] *= scale.x;
        scores[4 * j + 1] *= scale.y;
        scores[4 * j + 2] *= scale.x;
        scores[4 * j + 3] *= scale.y;
      }
    }
    if (is_diagonal(args, place, tile)) hide(scores, -INFINITY);
    const float factor = args.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float max = scores[2 * i];
#pragma unroll
      for (int j = 0; j < 16; ++j) max = fmaxf(max, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, 2));
      const float joined = fmaxf(state.max[i], max);
      const float shift = finite_or_zero(joined);
      keep[i] = power_of_two((state.max[i] - shift) * factor);
      state.max[i] = joined;
      const float scaled_shift = shift * factor;
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& weight = scores[4 * j + 2 * i + k];
          weight = power_of_two(fmaf(weight, factor, -scaled_shift));
          sum += weight;
        }
      }
      state.sum[i] = fmaf(state.sum[i], keep[i], sum);
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float2 scale = *reinterpret_cast<const float2*>(args.value_scales + scale_at + 8 * j);
        scores[4 * j] *= scale.x;
        scores[4 * j + 1] *= scale.y;
        scores[4 * j + 2] *= scale.x;
        scores[4 * j + 3] *= scale.y;
      }
      if (is_diagonal(args, place, tile)) hide(scores, 0.0F);  // scales may be infinite
    }
  }

  __device__ static void take_weights(const float (&scores)[64], std::uint32_t (&weights)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) weights[i] = pack_bf16(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ static void rescale(State& state, const float (&keep)[2]) {
#pragma unroll
    for (int i = 0; i < 32 * kValueBlocks; ++i) state.acc[i] *= keep[i / 2 % 2];
  }

  // Values behind the newest position become zeros: 0 times what lies there could be NaN. Each warpgroup clears half.
  __device__ static void clear_values(const PrefillArgs& args, const Place& place, int tile, Shared& shared) {
    const std::int64_t valid = args.first_position + args.rows - (place.first_key + std::int64_t{tile} * kPrefillKeys);
    if (valid >= kPrefillKeys) return;
    const int units = (kPrefillKeys - static_cast<int>(valid)) * 8;
    for (int i = static_cast<int>(threadIdx.x) - 128; i < units * kValueBlocks; i += 256) {
      std::byte* const block = shared.values[tile % 2][i / units];
      *reinterpret_cast<uint4*>(block + kPrefillBlockBytes - 16 * (i % units + 1)) = uint4{0, 0, 0, 0};
    }
    publish_to_products();
    meet(kBoth, 256);
  }

  // Whether some query of the warpgroup does not see a value of the diagonal tile that is not finite.
  __device__ static bool hides_not_finite(const Shared& shared, int stage) {
    constexpr int kUnits = kPrefillBlockBytes / 16;
    const __nv_bfloat162 zero = __float2bfloat162_rn(0.0F);
    __nv_bfloat162 sum = zero;
    for (int i = 64 * 8 * warpgroup() + static_cast<int>(threadIdx.x) % 128; i < kUnits; i += 128) {
#pragma unroll
      for (int block = 0; block < kValueBlocks; ++block) {
        const uint4 unit = *reinterpret_cast<const uint4*>(shared.values[stage][block] + 16 * i);
        const std::uint32_t pairs[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
        for (const std::uint32_t pair : pairs) sum = __hfma2(reinterpret_cast<const __nv_bfloat162&>(pair), zero, sum);
      }
    }
    const float2 sums = __bfloat1622float2(sum);
    return meet_any(kOwn + warpgroup(), 128, !(sums.x == 0.0F && sums.y == 0.0F));
  }

  // What add_values() adds, of the diagonal tile and only what the queries see.
  __device__ static void add_seen_values(const Shared& shared, int stage, const std::uint32_t (&weights)[32],
                                         float (&acc)[32 * kValueBlocks]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int eight = 0; eight < 16; ++eight) {
#pragma unroll 1
      for (int k = 0; k < 8; ++k) {
        const int key = 8 * eight + k;
        float weight[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t both = __shfl_sync(0xffffffffU, weights[2 * eight + i], lane / 4 * 4 + k / 2);
          weight[i] = __uint_as_float(k % 2 == 0 ? both << 16 : both & 0xffff0000U);
        }
#pragma unroll
        for (int j = 0; j < 8 * kValueBlocks; ++j) {
          const std::byte* const at =
              shared.values[stage][j / 8] + key * 128 + ((j % 8 ^ key % 8) << 4) + 4 * (lane % 4);
          const std::uint32_t values = *reinterpret_cast<const std::uint32_t*>(at);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (key > own_query() + 8 * i) continue;
            acc[4 * j + 2 * i] = fmaf(weight[i], __uint_as_float(values << 16), acc[4 * j + 2 * i]);
            acc[4 * j + 2 * i + 1] = fmaf(weight[i], __uint_as_float(values & 0xffff0000U), acc[4 * j + 2 * i + 1]);
          }
        }
      }
    }
  }

  __device__ static void release(std::uint64_t& barrier) {
    if (threadIdx.x % 32 == 0) arrive_at(shared_address(&barrier));
  }

  __device__ static void consume(const PrefillArgs& args, const Place& place, Shared& shared) {
    State state;
    load_state(args, place, state);
    if (place.tiles > 0) {
      load_queries(args, place, shared);
      float scores[64];
      float keep[2];
      std::uint32_t weights[32];
      if (warpgroup() == 1) count_in(kTurn, 256);
      wait_phase(shared_address(&shared.keys_there[0]), 0);
      begin_products();
      score(shared, 0, scores);
      wait_products(scores);
      release(shared.keys_free[0]);
      softmax(args, place, 0, scores, state, keep);
      rescale(state, keep);
      take_weights(scores, weights);
#pragma unroll 1
      for (int tile = 1; tile < place.tiles; ++tile) {
        const int stage = tile % 2;
        wait_phase(shared_address(&shared.keys_there[stage]), tile / 2 % 2);
        meet(kTurn + warpgroup(), 256);
        begin_products();
        score(shared, stage, scores);
        wait_phase(shared_address(&shared.values_there[1 - stage]), (tile - 1) / 2 % 2);
        add_values(shared, 1 - stage, weights, state.acc);
        if (warpgroup() == 0 || tile + 1 < place.tiles) count_in(kTurn + 1 - warpgroup(), 256);
        wait_products<1>(scores);
        release(shared.keys_free[stage]);
        softmax(args, place, tile, scores, state, keep);
        wait_products(state.acc);
        release(shared.values_free[1 - stage]);
        rescale(state, keep);
        take_weights(scores, weights);
      }
      if (warpgroup() == 0 && place.tiles == 1) meet(kTurn, 256);  // nobody else takes the other's count
      const int last = place.tiles - 1;
      wait_phase(shared_address(&shared.values_there[last % 2]), last / 2 % 2);
      clear_values(args, place, last, shared);
      if (is_diagonal(args, place, last) && hides_not_finite(shared, last % 2)) {
        add_seen_values(shared, last % 2, weights, state.acc);
      } else {
        begin_products();
        add_values(shared, last % 2, weights, state.acc);
        wait_products(state.acc);
      }
    }
    if (args.finish) return write_out(args, place, shared, state);
    store_state(args, place, state);
  }

  __device__ static void store_state(const PrefillArgs& args, const Place& place, const State& state) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = place.first_query + own_query() + 8 * i;
      if (!is_row(args, row)) continue;
      const std::int64_t at = row * args.heads + place.head;
      if (lane % 4 == 0) args.state.max[at] = state.max[i];
      args.state.sum[at * 4 + lane % 4] = state.sum[i];
#pragma unroll
      for (int j = 0; j < 8 * kValueBlocks; ++j) {
        const int channel = 8 * j + 2 * (lane % 4);
        if (channel >= args.view.value_dim) continue;
        *reinterpret_cast<float2*>(args.state.acc + at * args.view.value_dim + channel) =
            make_float2(state.acc[4 * j + 2 * i], state.acc[4 * j + 2 * i + 1]);
      }
    }
  }

  // bf16: through the place of the warpgroup's queries, so that rows are written in 16-byte units.
  __device__ static void write_out(const PrefillArgs& args, const Place& place, Shared& shared, State& state) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t column = std::int64_t{place.head} * args.view.value_dim;
    float norm[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = state.sum[i];
      sum += __shfl_xor_sync(0xffffffffU, sum, 1);
      sum += __shfl_xor_sync(0xffffffffU, sum, 2);
      norm[i] = sum == 0.0F ? 0.0F : 1.0F / sum;
    }
    if (!args.bf16_activations) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t row = place.first_query + own_query() + 8 * i;
        float* const out = static_cast<float*>(args.out) + row * args.out_stride + column;
#pragma unroll
        for (int j = 0; j < 8 * kValueBlocks; ++j) {
          const int channel = 8 * j + 2 * (lane % 4);
          if (!is_row(args, row) || channel >= args.view.value_dim) continue;
          out[channel] = state.acc[4 * j + 2 * i] * norm[i];
          out[channel + 1] = state.acc[4 * j + 2 * i + 1] * norm[i];
        }
      }
      return;
    }
    meet(kOwn + warpgroup(), 128);  // all have done with the queries
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = own_query() + 8 * i;
#pragma unroll
      for (int j = 0; j < 8 * kValueBlocks; ++j) {
        std::byte* const to = shared.q[j / 8] + query * 128 + ((j % 8 ^ query % 8) << 4) + 4 * (lane % 4);
        *reinterpret_cast<std::uint32_t*>(to) =
            pack_bf16(state.acc[4 * j + 2 * i] * norm[i], state.acc[4 * j + 2 * i + 1] * norm[i]);
      }
    }
    meet(kOwn + warpgroup(), 128);
    for (int i = static_cast<int>(threadIdx.x) % 128; i < 64 * 8 * kValueBlocks; i += 128) {
      const int query = 64 * warpgroup() + i / (8 * kValueBlocks);
      const int unit = i % (8 * kValueBlocks);
      const std::int64_t row = place.first_query + query;
      if (!is_row(args, row) || unit * 8 >= args.view.value_dim) continue;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args.out) + row * args.out_stride + column + unit * 8) =
          *reinterpret_cast<const uint4*>(shared.q[unit / 8] + query * 128 + ((unit % 8 ^ query % 8) << 4));
    }
  }

  __device__ static Place place_of_block(const PrefillArgs& args, const PrefillGrid& grid) {
    const int heads = grid.kv_heads * args.group;  // at a time
    const int item = static_cast<int>(blockIdx.x);
    const int rest = item % (heads * grid.query_tiles);
    Place place;
    place.head = item / (heads * grid.query_tiles) * heads + rest % heads;
    place.kv_head = place.head / args.group;
    place.first_query =
        std::int64_t{grid.query_tiles - 1 - rest / heads} * kPrefillQueries - args.first_position % kPrefillQueries;
    const std::int64_t end_query = min(args.rows, place.first_query + kPrefillQueries);
    place.first_key = args.first_tile * kPageTokens;
    place.end_key = min(args.end_tile * kPageTokens, args.first_position + end_query);
    const std::int64_t keys = place.end_key - place.first_key;
    place.tiles = keys > 0 ? static_cast<int>((keys + kPrefillKeys - 1) / kPrefillKeys) : 0;
    return place;
  }
};

#endif

template <int kKeyBlocks, int kValueBlocks, bool kScaled>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    warpgroup_prefill([[maybe_unused]] const PrefillArgs args,
                      [[maybe_unused]] const __grid_constant__ PrefillMaps maps,
                      [[maybe_unused]] const PrefillGrid grid) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Kernel = PrefillKernel<kKeyBlocks, kValueBlocks, kScaled>;
  extern __shared__ std::byte memory[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const typename Kernel::Place place = Kernel::place_of_block(args, grid);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      init_phases(shared_address(&shared.keys_there[stage]), 1);
      init_phases(shared_address(&shared.values_there[stage]), 1);
      init_phases(shared_address(&shared.keys_free[stage]), 8);  // warps
      init_phases(shared_address(&shared.values_free[stage]), 8);
    }
    publish_to_products();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    leave_registers<24>();
    if (threadIdx.x == 0) Kernel::produce(args, maps, place, shared);
  } else {
    take_registers<240>();
    Kernel::consume(args, place, shared);
  }
#endif
}

// KV heads whose keys and values, up to the newest position, share a part of the L2.
inline PrefillGrid prefill_grid(const PrefillArgs& args, std::int64_t kv_heads) {
  constexpr std::int64_t kBytes = std::int64_t{24} << 20;
  const std::int64_t head_bytes =
      (args.end_tile - args.first_tile) * kPageTokens * (args.view.key_dim + args.view.value_dim) * 2;
  std::int64_t together = std::max<std::int64_t>(1, std::min(kv_heads, kBytes / std::max<std::int64_t>(1, head_bytes)));
  while (kv_heads % together != 0) --together;
  const std::int64_t queries = args.first_position % kPrefillQueries + args.rows;
  return {static_cast<std::int32_t>(ceil_div(queries, kPrefillQueries)), static_cast<std::int32_t>(together)};
}

template <int kKeyBlocks, int kValueBlocks, bool kScaled>
void launch_warpgroup_kernel(const PrefillArgs& args, Stream stream) {
  constexpr int kBytes = static_cast<int>(sizeof(PrefillShared<kKeyBlocks, kValueBlocks>)) + 1024;  // to align it
  static_assert(kBytes <= 227 * 1024);
  const KvSource& source = args.source;
  const std::int32_t kv_heads = args.heads / args.group;
  PrefillMaps maps{};
  maps.keys = map_rows(source.keys, source.own_dim, kv_heads, source.key_head, source.key_row);
  maps.values = map_rows(source.values, args.view.value_dim, kv_heads, source.value_head, source.value_row);
  maps.own_blocks = kKeyBlocks;
  if (source.own_dim < args.view.key_dim) {
    const std::int32_t shared_dim = args.view.key_dim - source.own_dim;
    maps.shared_keys = map_rows(source.shared_keys, shared_dim, 1, source.shared_row, source.shared_row);
    maps.own_blocks = source.own_dim / 64;
  }
  const PrefillGrid grid = prefill_grid(args, kv_heads);
  const std::int64_t blocks = std::int64_t{grid.query_tiles} * args.heads;
  HS_CHECK(blocks < (std::int64_t{1} << 31), "too many blocks for one launch");
  const auto kernel = warpgroup_prefill<kKeyBlocks, kValueBlocks, kScaled>;
  HOTSET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<static_cast<unsigned>(blocks), kPrefillThreads, kBytes, stream>>>(args, maps, grid);
  HOTSET_CUDA_CHECK_LAUNCH();
}

// One per shape and row type, in warpgroup_*.cu.
void launch_warpgroup_64(const PrefillArgs& args, Stream stream);
void launch_warpgroup_128(const PrefillArgs& args, Stream stream);
void launch_warpgroup_192(const PrefillArgs& args, Stream stream);
void launch_warpgroup_128_scaled(const PrefillArgs& args, Stream stream);

}  // namespace hotset::kernels::cuda
