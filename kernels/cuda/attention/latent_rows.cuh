// The producer of latent attention: a warpgroup gathers the rows of a list, tile by tile, and lays them down in shared
// memory in bf16, as the products want them.
//
// FP8 rows are sent for into L2 before the tile ahead of them is widened (times its scales, rounded to bf16); as its
// registers become free, they come there. bf16 rows go to their place by asynchronous copies, as soon as it is free.
#pragma once

#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kLatentHeads = 64;
inline constexpr int kLatentTile = 64;
inline constexpr int kLatentKeyDim = 576;
inline constexpr int kLatentValueDim = 512;
inline constexpr int kLatentColumnBytes = kLatentTile * 128;  // a block of 64 channels
inline constexpr int kLatentTileBytes = kLatentKeyDim / 64 * kLatentColumnBytes;
inline constexpr int kLatentRunTiles = static_cast<int>(kLatentRun) / kLatentTile;

// Tiles, queries and rows: 9 blocks of 64 channels, [64][64] bf16 in the 128-byte swizzle.
struct LatentShared {
  std::byte q[kLatentTileBytes];
  std::byte rows[2][kLatentTileBytes];
  std::byte weights[kLatentColumnBytes];
  float keep[kLatentHeads];                                // the sums of the tiles before are multiplied by this
  float run_keep[kLatentHeads], run_take[kLatentHeads];    // how a finished run joins those before
  float total_max[kLatentHeads], total_sum[kLatentHeads];  // of all finished runs
  std::uint64_t filled[2], emptied[2];                     // barriers: the tile is there; its products are done
};

// What a block works on.
struct LatentPlace {
  int row, count, first_run, end_run;
  int first_head, heads;
  bool whole;              // all runs of the list: the result is written out
  std::uint32_t rank = 0;  // in a pair of blocks: 0 or 1

  __device__ int first_tile() const { return first_run * kLatentRunTiles; }
  __device__ int end_tile() const { return min(end_run * kLatentRunTiles, (count + kLatentTile - 1) / kLatentTile); }
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

inline constexpr int kLatentProducerWarps = 4;
inline constexpr int kLatentConsumerWarps = 8;

// Rows are laid down 8 at a time by a warp, a row by four lanes, of which each takes every fourth 16-byte unit.
//
// A block by itself (kPair false): a thread has two rows of every tile, 16 (warp) + {0, 8} + lane / 4.
// A pair of blocks that takes the same list for other heads: each lays down half of a tile, rows 32 (rank) + 8 (warp) +
// lane / 4, and sends it to the other. The two sets of a thread's registers hold rows of two tiles.
template <bool kFp8, bool kPair>
class LatentProducer {
  static_assert(kFp8 || !kPair);

 public:
  __device__ LatentProducer(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared)
      : args_(args),
        place_(place),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32 % kLatentProducerWarps),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    if constexpr (kPair) {
      run_in_pair();
    } else {
      run_alone();
    }
  }

 private:
  __device__ void run_alone() {
    const int end = place_.end_tile();
    find_slots(place_.first_tile(), slots_);
    std::int32_t ahead[2];
    if constexpr (kFp8) {
      find_slots(place_.first_tile() + 1, ahead);
      load_row<0>();
      load_row<1>();
    }
    int now = 0;
    std::uint32_t parity = 1;  // of the phase before the first: the places are free
    for (int tile = place_.first_tile(); tile < end; ++tile) {
      if constexpr (kFp8) {
#pragma unroll
        for (int k = 0; k < 2; ++k) slots_[k] = ahead[k];
        find_slots(tile + 2, ahead);
        fetch_rows();
      }
      wait_phase(shared_address(&shared_.emptied[now]), parity);
      const std::uint32_t to = shared_address(shared_.rows[now]);
      if constexpr (kFp8) {
        lay_down_row<0>(to);
        lay_down_row<1>(to);
      } else {
        copy_rows(to);
        find_slots(tile + 1, slots_);
        wait_copies<0>();
      }
      publish_to_products();
      __syncwarp();
      if (lane_ == 0) arrive_at(shared_address(&shared_.filled[now]));
      if constexpr (kFp8) {
        load_row<0>();
        load_row<1>();
      }
      parity ^= now;
      now ^= 1;
    }
  }

  __device__ void run_in_pair() {
    const int first = place_.first_tile();
    const int end = place_.end_tile();
    find_slots(first, slots_);
    load_row<0>();
    load_row<1>();
    find_slots(first + 2, slots_);
    std::uint32_t parity = 1;
    for (int tile = first; tile < end; tile += 2) {
      lay_down_half<0>(parity);
      if (tile + 1 < end) lay_down_half<1>(parity);
      find_slots(tile + 4, slots_);
      parity ^= 1;
    }
  }

  // This block's half of a tile, in both blocks; then the row of two tiles later is sent for.
  template <int k>
  __device__ void lay_down_half(std::uint32_t parity) {
    const std::uint32_t to = shared_address(shared_.rows[k]);
    const std::uint32_t filled = shared_address(&shared_.filled[k]);
    wait_phase(shared_address(&shared_.emptied[k]), parity);
    lay_down_row<k>(to);
    publish_to_products();
    __syncwarp();
    constexpr int kBytes = 8 * 128;  // of 8 rows in a block of 64 channels
    constexpr int kColumns = kLatentKeyDim / 64;
    if (lane_ < kColumns) {
      const std::uint32_t from = to + lane_ * kLatentColumnBytes + row_of(k) / 8 * kBytes;
      const std::uint32_t other = place_.rank ^ 1;
      copy_to_block(address_in_block(from, other), from, kBytes, address_in_block(filled, other));
    }
    if (lane_ == 0) arrive_expecting(filled, kColumns * kBytes);
    load_row<k>();
  }

  // Of the tile.
  __device__ int row_of(int k) const {
    return (kPair ? 32 * static_cast<int>(place_.rank) + 8 * warp_ : 16 * warp_ + 8 * k) + lane_ / 4;
  }

  // Behind the list's end: holes.
  __device__ void find_slots(int tile, std::int32_t (&slots)[2]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int rank = (kPair ? tile + k : tile) * kLatentTile + row_of(k);
      slots[k] = rank < place_.count ? static_cast<std::int32_t>(list_slot(args_, place_.row, rank)) : -1;
    }
  }

  // Sends for the rows of slots_, into L2: their loads come a tile later and cost no registers until then.
  __device__ void fetch_rows() const {
    constexpr int kLines = 6;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if (slots_[k] < 0) continue;
      const std::byte* const from = args_.pool + slots_[k] * args_.view.row_bytes;
#pragma unroll
      for (int line = 0; line < kLines; line += 4) {
        if (line + lane_ % 4 >= kLines) continue;
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from + 128 * (line + lane_ % 4)));
      }
    }
  }

  __device__ static uint4 load(const std::byte* from, bool present) {
    uint4 value;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
        : "l"(from), "r"(static_cast<int>(present)));
    return value;
  }

  template <int k>
  __device__ void load_row() {
    const bool present = slots_[k] >= 0;
    const std::byte* const from = args_.pool + slots_[k] * args_.view.row_bytes;
    const int quarter = lane_ % 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) codes_[k][i] = load(from + (4 * i + quarter) * 16, present);
    scales_[k] = load(from + 32 * 16, present);
#pragma unroll
    for (int i = 0; i < 2; ++i) rope_[k][i] = load(from + (33 + 4 * i + quarter) * 16, present);
  }

  __device__ std::uint32_t unit_address(std::uint32_t tile, int row, int column, int unit) const {
    return tile + column * kLatentColumnBytes + row * 128 + ((unit ^ row % 8) << 4);
  }

  __device__ static void store(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  }

  // Of two codes, in bits 8-15 and 24-31: times `high` + `low`, a scale in two parts. The code's fields moved to bf16's
  // are its value times 2^-120; rounding the product with `low` costs 2^-17 of the result.
  __device__ static std::uint32_t widen_pair(std::uint32_t codes, __nv_bfloat162 high, __nv_bfloat162 low) {
    const std::uint32_t bits = (codes & 0x80008000U) | (codes >> 4 & 0x07f007f0U);
    const std::uint32_t power = 0x7b807b80U;  // 2^120
    const __nv_bfloat162 code =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), *reinterpret_cast<const __nv_bfloat162*>(&power));
    const __nv_bfloat162 value = __hfma2(code, high, __hmul2(code, low));
    return *reinterpret_cast<const std::uint32_t*>(&value);
  }

  template <int k>
  __device__ void lay_down_row(std::uint32_t tile) {
    const int row = row_of(k);
    const int quarter = lane_ % 4;
    const float scales[4] = {__uint_as_float(scales_[k].x), __uint_as_float(scales_[k].y),
                             __uint_as_float(scales_[k].z), __uint_as_float(scales_[k].w)};
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const __nv_bfloat16 high = __float2bfloat16_rn(scales[group]);
      const __nv_bfloat162 highs = __bfloat162bfloat162(high);
      const __nv_bfloat162 lows = __float2bfloat162_rn(scales[group] - __bfloat162float(high));
#pragma unroll
      for (int i = 2 * group; i < 2 * group + 2; ++i) {
        const std::uint32_t words[4] = {codes_[k][i].x, codes_[k][i].y, codes_[k][i].z, codes_[k][i].w};
        std::uint32_t out[8];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          out[2 * word] = widen_pair(__byte_perm(words[word], 0, 0x1404), highs, lows);
          out[2 * word + 1] = widen_pair(__byte_perm(words[word], 0, 0x3424), highs, lows);
        }
        store(unit_address(tile, row, i, 2 * quarter), out[0], out[1], out[2], out[3]);
        store(unit_address(tile, row, i, 2 * quarter + 1), out[4], out[5], out[6], out[7]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& rope = rope_[k][i];
      store(unit_address(tile, row, 8, 4 * i + quarter), rope.x, rope.y, rope.z, rope.w);
    }
  }

  __device__ void copy_rows(std::uint32_t tile) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = row_of(k);
      const bool present = slots_[k] >= 0;
      const std::byte* const from = args_.pool + (present ? slots_[k] : 0) * args_.view.row_bytes;
#pragma unroll
      for (int i = 0; i < 18; ++i) {
        const int unit = 4 * i + lane_ % 4;
        copy_16_async(unit_address(tile, row, unit / 8, unit % 8), from + unit * 16, present);
      }
    }
    commit_copies();
  }

  const AttentionArgs& args_;
  const LatentPlace& place_;
  LatentShared& shared_;
  const int warp_, lane_;
  std::int32_t slots_[2];  // 2^31 rows are more than a device's memory
  // FP8: rows of the tiles to come.
  uint4 codes_[2][8];
  uint4 scales_[2];
  uint4 rope_[2][2];
};

#endif

}  // namespace hotset::kernels::cuda
