// The producer of latent attention: a warpgroup gathers the rows of a list, tile by tile, and lays them down in shared
// memory in bf16, as the products want them.
//
// FP8 rows are sent for into L2 two tiles before they are widened (times their scales, rounded to bf16); they come to
// registers as those of the tile before become free. bf16 rows go to their place by asynchronous copies, as soon as it
// is free.
#pragma once

#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/attention/warpgroup.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kLatentHeads = kLatentBlockHeads;
inline constexpr int kLatentTile = 64;
inline constexpr int kLatentKeyDim = 576;
inline constexpr int kLatentValueDim = 512;
inline constexpr int kLatentColumns = kLatentKeyDim / 64;
inline constexpr int kLatentTileBytes = kLatentColumns * kLatentTile * 128;
inline constexpr int kLatentRunTiles = static_cast<int>(kLatentRun) / kLatentTile;

// Queries and rows lie in blocks of 8 rows and 64 channels, [8][64] bf16 in the 128-byte swizzle; weights, of 64
// channels, too. Eight rows with all their channels are one piece, which a block can send to another.
inline constexpr int kLatentBlockBytes = 8 * 128;
inline constexpr int kLatentGroupBytes = kLatentColumns * kLatentBlockBytes;
struct LatentShared {
  std::byte q[kLatentTileBytes];
  std::byte rows[2][kLatentTileBytes];
  std::byte weights[kLatentHeads * 128];
  float keep[kLatentHeads];                                // the sums of the tiles before are multiplied by this
  float run_keep[kLatentHeads], run_take[kLatentHeads];    // how a finished run joins those before
  float total_max[kLatentHeads], total_sum[kLatentHeads];  // of all finished runs
  std::uint64_t filled[2], emptied[2];                     // barriers: the tile is there; its products are done
};

// The address of 16 bytes.
__device__ inline std::uint32_t latent_unit_address(std::uint32_t tile, int row, int unit) {
  return tile + row / 8 * kLatentGroupBytes + unit / 8 * kLatentBlockBytes + row % 8 * 128 +
         ((unit % 8 ^ row % 8) << 4);
}

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

// The same number; what follows from it is not computed once and kept in registers, of which there are too few.
__device__ inline int computed_anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Rows are laid down 8 at a time by a warp, a row by four lanes, of which each takes every fourth 16-byte unit.
//
// A block by itself (kPair false): a warp has rows 16 (warp) + {0 to 15} of every tile.
// A pair of blocks that takes the same list for other heads: each lays down half of a tile, its warps rows
// 32 (rank) + 8 (warp) + {0 to 7}, and sends them to the other.
template <bool kFp8, bool kPair>
class LatentProducer {
  static_assert(kFp8 || !kPair);

 public:
  __device__ LatentProducer(const AttentionArgs& args, const LatentPlace& place, LatentShared& shared)
      : args_(args), place_(place), shared_(shared), lane_(static_cast<int>(threadIdx.x) % 32) {
    // The same in all lanes, for what the warp does as one.
    const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32 % kLatentProducerWarps, 0);
    first_row_ = kPair ? 32 * static_cast<int>(place.rank) + 8 * warp : 16 * warp;
  }

  __device__ void run() {
    const int first = place_.first_tile();
    const int end = place_.end_tile();
    std::int32_t slots[kRows];  // of the tile that is sent for next
    find_slots(first, slots);
    if constexpr (kFp8) {
      load_rows(slots);
      find_slots(first + 1, slots);
      fetch_rows(slots);
    }
    std::int32_t ahead[kRows];
    find_slots(first + (kFp8 ? 2 : 1), ahead);
    int now = 0;
    std::uint32_t parity = 1;  // of the phase before the first: the places are free
    for (int tile = first; tile < end; ++tile) {
      const std::uint32_t to = shared_address(shared_.rows[now]);
      const std::uint32_t filled = shared_address(&shared_.filled[now]);
      std::int32_t farther[kRows];
      find_slots(tile + (kFp8 ? 3 : 2), farther);
      fetch_rows(ahead);
      wait_phase(shared_address(&shared_.emptied[now]), parity);
      if constexpr (kFp8) {
#pragma unroll
        for (int k = 0; k < kRows; ++k) lay_down_row(k, to);
      } else {
        copy_rows(slots, to);
      }
      publish_to_products();
      __syncwarp();
      if constexpr (kPair) {
        send(to, filled);
      } else {
        if (lane_ == 0) arrive_at(filled);
      }
      if constexpr (kFp8) load_rows(slots);
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        slots[k] = ahead[k];
        ahead[k] = farther[k];
      }
      parity ^= now;
      now ^= 1;
    }
  }

 private:
  static constexpr int kRows = kPair ? 1 : 2;  // of a thread

  // The warp's rows, to the other block.
  __device__ void send(std::uint32_t tile, std::uint32_t filled) const {
    const std::uint32_t from = tile + first_row_ / 8 * kLatentGroupBytes;
    const std::uint32_t other = place_.rank ^ 1;
    if (lane_ != 0) return;
    copy_to_block(address_in_block(from, other), from, kLatentGroupBytes, address_in_block(filled, other));
    arrive_expecting(filled, kLatentGroupBytes);
  }

  __device__ int row_of(int k) const { return first_row_ + 8 * k + lane_ / 4; }

  // Behind the list's end: holes.
  __device__ void find_slots(int tile, std::int32_t (&slots)[kRows]) const {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int rank = tile * kLatentTile + row_of(k);
      slots[k] = rank < place_.count ? static_cast<std::int32_t>(list_slot(args_, place_.row, rank)) : -1;
    }
  }

  // Sends for rows, into L2.
  __device__ void fetch_rows(const std::int32_t (&slots)[kRows]) const {
    constexpr int kLines = kFp8 ? 6 : 9;  // of 128 bytes
    const int quarter = computed_anew(lane_) % 4;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if (slots[k] < 0) continue;
      const std::byte* const from = args_.pool + slots[k] * args_.view.row_bytes;
#pragma unroll
      for (int line = 0; line < kLines; line += 4) {
        if (line + quarter >= kLines) continue;
        asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from + 128 * (line + quarter)));
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

  __device__ void load_rows(const std::int32_t (&slots)[kRows]) {
    const int quarter = computed_anew(lane_) % 4;
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const bool present = slots[k] >= 0;
      const std::byte* const from = args_.pool + slots[k] * args_.view.row_bytes;
#pragma unroll
      for (int i = 0; i < 8; ++i) codes_[k][i] = load(from + (4 * i + quarter) * 16, present);
      scales_[k] = load(from + 32 * 16, present);
#pragma unroll
      for (int i = 0; i < 2; ++i) rope_[k][i] = load(from + (33 + 4 * i + quarter) * 16, present);
    }
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

  __device__ void lay_down_row(int k, std::uint32_t tile) const {
    const int lane = computed_anew(lane_);
    const int quarter = lane % 4;
    const int in_group = lane / 4;
    const std::uint32_t group = tile + (first_row_ / 8 + k) * kLatentGroupBytes;
    const std::uint32_t low = latent_unit_address(group, in_group, 2 * quarter);
    const std::uint32_t high = latent_unit_address(group, in_group, 2 * quarter + 1);
    const float scales[4] = {__uint_as_float(scales_[k].x), __uint_as_float(scales_[k].y),
                             __uint_as_float(scales_[k].z), __uint_as_float(scales_[k].w)};
#pragma unroll
    for (int channels = 0; channels < 4; ++channels) {  // of a scale
      const __nv_bfloat16 scale = __float2bfloat16_rn(scales[channels]);
      const __nv_bfloat162 highs = __bfloat162bfloat162(scale);
      const __nv_bfloat162 lows = __float2bfloat162_rn(scales[channels] - __bfloat162float(scale));
#pragma unroll
      for (int i = 2 * channels; i < 2 * channels + 2; ++i) {
        const std::uint32_t words[4] = {codes_[k][i].x, codes_[k][i].y, codes_[k][i].z, codes_[k][i].w};
        std::uint32_t out[8];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          out[2 * word] = widen_pair(__byte_perm(words[word], 0, 0x1404), highs, lows);
          out[2 * word + 1] = widen_pair(__byte_perm(words[word], 0, 0x3424), highs, lows);
        }
        store_16(low + i * kLatentBlockBytes, {out[0], out[1], out[2], out[3]});
        store_16(high + i * kLatentBlockBytes, {out[4], out[5], out[6], out[7]});
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_16(latent_unit_address(group + 8 * kLatentBlockBytes, in_group, 4 * i + quarter), rope_[k][i]);
    }
  }

  __device__ void copy_rows(const std::int32_t (&slots)[kRows], std::uint32_t tile) const {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const bool present = slots[k] >= 0;
      const std::byte* const from = args_.pool + (present ? slots[k] : 0) * args_.view.row_bytes;
#pragma unroll
      for (int i = 0; i < 18; ++i) {
        const int unit = 4 * i + lane_ % 4;
        copy_16_async(latent_unit_address(tile, row_of(k), unit), from + unit * 16, present);
      }
    }
    commit_copies();
    wait_copies<0>();
  }

  const AttentionArgs& args_;
  const LatentPlace& place_;
  LatentShared& shared_;
  const int lane_;
  int first_row_;  // of the warp
  // FP8: the next tile's rows.
  uint4 codes_[kRows][8];
  uint4 scales_[kRows];
  uint4 rope_[kRows][2];
};

#endif

}  // namespace hotset::kernels::cuda
