// Low-rank metadata of the keys that a block has written: each times the basis of its KV head, in 4 bits. The basis
// comes through shared memory tile by tile; sums go over channels in ascending order, as the CPU's.
#pragma once

#include "kernels/cuda/new_rows.h"
#include "kernels/cuda/selection/metadata_encoding.cuh"

namespace hotset::kernels::cuda {

inline constexpr int kBasisTile = 4096;        // floats
inline constexpr int kMostProjectedRows = 16;  // of a block,
inline constexpr int kProjectedFloats = 4096;  // and of these, before and after
inline constexpr int kProjectedTogether = 4;   // rows of a thread, which share what it loads of the basis

// One object for each thread of a block of kThreads; its methods are for all of them together.
template <int kThreads>
struct KeyProjection {
  const float* basis;  // [dim, rank] of the KV head
  float* tile;         // [kBasisTile]
  float* keys;         // [rows, dim]
  float* sums;         // [rows, rank]
  std::int32_t dim, rank, rows;
  std::int32_t channels;  // of a tile

  // Floats of shared memory behind `memory`.
  [[nodiscard]] static std::int64_t floats(std::int64_t dim, std::int64_t rank, std::int64_t rows) {
    return kBasisTile + rows * (dim + rank);
  }

  __device__ KeyProjection(const NewRowMetadata& metadata, std::int32_t kv_head, std::int32_t block_rows, float* memory)
      : basis(metadata.basis + std::int64_t{kv_head} * metadata.geometry.dim * metadata.geometry.rank),
        tile(memory),
        keys(memory + kBasisTile),
        sums(keys + block_rows * metadata.geometry.dim),
        dim(metadata.geometry.dim),
        rank(metadata.geometry.rank),
        rows(block_rows),
        channels(kBasisTile / rank / 4 * 4) {}

  // Queues the tile that begins at a channel. Everybody is done with the last one.
  __device__ void start_tile(std::int32_t first) const {
    const std::int32_t count = min(channels, dim - first) * rank;  // a multiple of 8
    const float* const from = basis + std::int64_t{first} * rank;
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
#pragma unroll 2
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) * 4; i < count; i += kThreads * 4) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + 4 * i), "l"(from + i) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // The first tile has been started, `keys` are written (by any threads), `valid` rows of them.
  __device__ void run(std::int32_t valid) const {
    for (std::int32_t first = 0; first < dim; first += channels) {
      if (first > 0) {
        __syncthreads();  // the tile before is done with
        start_tile(first);
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
      const std::int32_t count = min(channels, dim - first);
      const std::int32_t together = (valid + kProjectedTogether - 1) / kProjectedTogether;
      for (std::int32_t at = static_cast<std::int32_t>(threadIdx.x); at < together * rank; at += kThreads) {
        const std::int32_t row = at / rank * kProjectedTogether;
        add_products(row, min(kProjectedTogether, valid - row), at % rank, first, count);
      }
    }
    __syncthreads();
  }

 private:
  __device__ void add_products(std::int32_t row, std::int32_t count, std::int32_t column, std::int32_t first,
                               std::int32_t channel_count) const {
    if (count == 1) return add_products_of<1>(row, 1, column, first, channel_count);
    add_products_of<kProjectedTogether>(row, count, column, first, channel_count);
  }
  // Of kRows rows, of which the last ones may be missing: they repeat the last.
  template <int kRows>
  __device__ void add_products_of(std::int32_t row, std::int32_t count, std::int32_t column, std::int32_t first,
                                  std::int32_t channel_count) const {
    float sum[kRows];
    const float* key[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int32_t own = row + min(r, count - 1);
      key[r] = keys + own * dim + first;
      sum[r] = first == 0 ? 0.0F : sums[own * rank + column];
    }
#pragma unroll 2
    for (std::int32_t c = 0; c < channel_count; c += 4) {
      float weight[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) weight[i] = tile[(c + i) * rank + column];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 x = *reinterpret_cast<const float4*>(key[r] + c);
        sum[r] = __fmaf_rn(x.x, weight[0], sum[r]);
        sum[r] = __fmaf_rn(x.y, weight[1], sum[r]);
        sum[r] = __fmaf_rn(x.z, weight[2], sum[r]);
        sum[r] = __fmaf_rn(x.w, weight[3], sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) sums[(row + r) * rank + column] = sum[r];
    }
  }
};

}  // namespace hotset::kernels::cuda
