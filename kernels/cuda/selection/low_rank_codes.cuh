// Products of queries and low-rank keys on tensor cores, in integers: rows of a product are tokens, columns are a
// group's query heads. The projected query of a head becomes integers of 14 bits (rank 64: 13), in units of its largest
// channel; column 2 h takes their high digits, column 2 h + 1 their low ones. Codes are multiplied as they are stored,
// 0 ... 15: the accumulator starts at what the 8 too much would give. Products are exact, and so is their way to
// float32: the low digit's start holds the bits of 1.5 * 2^23, so that high * base + low is a float by itself.
//
// A warp's step is one KV head's part of a page: four products of 16 tokens, after which lane l holds the logits of
// head l % 4 and of the tokens PagePart::token(j).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/selection/bulk_copy.cuh"
#include "kernels/cuda/selection/low_rank_parts.cuh"
#include "kernels/cuda/selection/mma.cuh"

namespace hotset::kernels::cuda {

constexpr int kTiles = static_cast<int>(kPageTokens) / 16;
constexpr int kLaneTokens = 2 * kTiles;

// A lane's codes of one token: rank / 4 of them.
template <int kRank>
struct Codes {
  static constexpr int kWords = kRank == 64 ? 2 : 1;
  std::uint32_t words[kWords];

  __device__ void load(const std::byte* part, int token) {
    const int lane_pair = static_cast<int>(threadIdx.x) % 4;
    const std::byte* const from = part + token * (kRank / 2) + lane_pair * (kRank / 8);
    if constexpr (kRank == 16) {
      words[0] = *reinterpret_cast<const std::uint16_t*>(from);
    } else if constexpr (kRank == 32) {
      words[0] = *reinterpret_cast<const std::uint32_t*>(from);
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(from);
      words[0] = both.x;
      words[1] = both.y;
    }
  }
  // Of four channels each as bytes: channel(operand, 0 ... 3).
  static constexpr int kOperands = kRank / 16;
  __device__ std::uint32_t operand(int operand) const {
    constexpr std::uint32_t kNibbles = 0x0f0f0f0fU;
    if constexpr (kRank == 16) return (words[0] | words[0] << 12) & kNibbles;
    return (operand % 2 == 0 ? words[operand / 2] : words[operand / 2] >> 4) & kNibbles;
  }
  __device__ static int channel(int lane_pair, int operand, int byte) {
    if constexpr (kRank == 16) return lane_pair * 4 + byte % 2 * 2 + byte / 2;
    return lane_pair * (kRank / 4) + operand / 2 * 8 + byte * 2 + operand % 2;
  }
};

// One KV head's codes and scales of a page, as a lane holds them: of the tokens token(j).
template <int kRank>
struct PagePart {
  static constexpr int kBytes = static_cast<int>(kPageTokens) * (kRank / 2 + 2);
  Codes<kRank> codes[kLaneTokens];
  __half scales[kLaneTokens];

  // Rank 32: neighbours, whose scales are one word.
  __device__ static int token(int i) {
    const int eighth = static_cast<int>(threadIdx.x) % 32 / 4;
    return kRank == 32 ? i / 2 * 16 + 2 * eighth + i % 2 : eighth + 8 * i;
  }
  __device__ void load(const std::byte* part) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto* const all = reinterpret_cast<const __half*>(part + kPageTokens * (kRank / 2));
    if constexpr (kRank == 32) {  // a token's 16 bytes are a row of a matrix, four matrices make 32 tokens
      const std::byte* const row = part + (lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2) * 16;
      load_rows(row, codes);
      load_rows(row + 32 * 16, codes + 4);
#pragma unroll
      for (int i = 0; i < kLaneTokens; i += 2) {
        const __half2 both = *reinterpret_cast<const __half2*>(all + token(i));
        scales[i] = __low2half(both);
        scales[i + 1] = __high2half(both);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLaneTokens; ++i) {
        codes[i].load(part, token(i));
        scales[i] = all[token(i)];
      }
    }
  }

 private:
  // Lane l gives the address of row l % 8 of matrix l / 8, and gets word l % 4 of row l / 4 of each.
  __device__ static void load_rows(const std::byte* row, Codes<kRank>* codes) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0].words[0]), "=r"(codes[1].words[0]), "=r"(codes[2].words[0]), "=r"(codes[3].words[0])
                 : "r"(shared_address(row))
                 : "memory");
  }
};

// Digits of a query: integer = high * kBase + low. Sums of them times codes stay below 2^22.
template <int kRank>
struct Digits {
  static constexpr int kBase = kRank == 64 ? 64 : 128;
  static constexpr int kMost = 127 * kBase + kBase / 2 - 1;
};
constexpr int kFloatBits = 0x4b400000;  // of 1.5 * 2^23
constexpr float kFloatStart = 12582912.0F;

// A lane's operands of one KV head's group, of column lane / 4.
template <int kRank>
struct QueryPart {
  std::uint32_t operands[Codes<kRank>::kOperands];
  std::int32_t start;  // of the column
  float scale;         // of the column's head; NaN where its query is not finite: it scores nothing

  // x [group, rank]. All lanes.
  __device__ void load(const float* x, int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = lane / 4;
    const int head = column / 2;
    float values[Codes<kRank>::kOperands][4];
    float largest = 0.0F;
    bool finite = true;
#pragma unroll
    for (int operand = 0; operand < Codes<kRank>::kOperands; ++operand) {
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const float value = head < group ? x[head * kRank + Codes<kRank>::channel(lane % 4, operand, byte)] : 0.0F;
        values[operand][byte] = value;
        largest = fmaxf(largest, fabsf(value));
        finite = finite && isfinite(value);
      }
    }
    for (int step = 1; step < 4; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
      finite = __shfl_xor_sync(kAllLanes, static_cast<int>(finite), step) != 0 && finite;
    }
    constexpr float kMost = Digits<kRank>::kMost;
    const float factor = finite && largest > 0.0F ? fminf(kMost / largest, kLargestFloat) : 0.0F;
    scale = finite ? largest / kMost : NAN;
    std::int32_t sum = 0;
#pragma unroll
    for (int operand = 0; operand < Codes<kRank>::kOperands; ++operand) {
      operands[operand] = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int integer = finite ? max(-Digits<kRank>::kMost,
                                         min(Digits<kRank>::kMost, __float2int_rn(values[operand][byte] * factor)))
                                   : 0;
        const int high = (integer + Digits<kRank>::kBase / 2) >> (kRank == 64 ? 6 : 7);
        const int digit = column % 2 == 0 ? high : integer - high * Digits<kRank>::kBase;
        sum += digit;
        operands[operand] |= (static_cast<std::uint32_t>(digit) & 0xffU) << (8 * byte);
      }
    }
    for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    start = -8 * sum + (column % 2 == 0 ? 0 : kFloatBits);
  }
};

// The logit of head lane % 4 of the group and token lane / 4 + 8 j of the page, in units of the head's and the token's
// scale.
template <int kRank>
__device__ __forceinline__ void multiply(const PagePart<kRank>& page,
                                         const std::uint32_t (&query)[Codes<kRank>::kOperands], int4 start,
                                         float (&products)[kLaneTokens]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const Codes<kRank>* const codes = page.codes + 2 * tile;
    int product[4] = {start.x, start.y, start.z, start.w};
    if constexpr (kRank == 16) {
      mma_u8_s8(product, codes[0].operand(0), codes[1].operand(0), query[0]);
    } else {
#pragma unroll
      for (int step = 0; step < kRank / 32; ++step) {
        const std::uint32_t a[4] = {codes[0].operand(2 * step), codes[1].operand(2 * step),
                                    codes[0].operand(2 * step + 1), codes[1].operand(2 * step + 1)};
        mma_u8_s8(product, a, query[2 * step], query[2 * step + 1]);
      }
    }
    products[2 * tile] = __int_as_float(product[0] * Digits<kRank>::kBase + product[1]) - kFloatStart;
    products[2 * tile + 1] = __int_as_float(product[2] * Digits<kRank>::kBase + product[3]) - kFloatStart;
  }
}

}  // namespace hotset::kernels::cuda
