// The sparse diff on the device: the same state and outputs as sparse::HotBuffer::diff, bit for bit (the contract is
// docs/architecture.md, section 5). One thread block per batch row.
#pragma once

#include <cstdint>

#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct SparseMiss {
  std::int32_t block = 0;
  std::uint16_t slot = 0;       // buffer slot 0 ... H-1
  std::uint16_t from_ring = 0;  // 1: the block's rows still lie in the ring; 0: they are on the host
  bool operator==(const SparseMiss&) const = default;
};

struct SparseDiffCounts {
  std::int32_t hits = 0;  // in the buffer
  std::int32_t ring_hits = 0;
  std::int32_t misses = 0;       // entries of the miss list
  std::int32_t ring_misses = 0;  // those of them that come from the ring
  std::int32_t unplaced = 0;     // valid entries with slot -1 because the buffer is full: the caller's bug
  bool operator==(const SparseDiffCounts&) const = default;
};

struct SparseDiffParams {
  const HotRow* rows = nullptr;                   // [batch]; their state is read and written
  const std::int32_t* lengths = nullptr;          // [batch]: newest position + 1; 0: a padded row
  const std::int32_t* selected = nullptr;         // [batch][max_selected], blocks in any order
  const std::int32_t* selected_counts = nullptr;  // [batch]: n <= max_selected; what lies behind is not read
  std::int32_t* slot_of = nullptr;                // out [batch][max_selected]; -1 also behind n
  SparseMiss* misses = nullptr;                   // out [batch][max_selected], in the order of the selection
  SparseDiffCounts* counts = nullptr;             // out [batch]
  std::int32_t batch = 0;                         // <= kMostSwapBatch; 0: nothing is launched
  std::int32_t max_selected = 0;                  // K <= kMostSelected
  std::int32_t max_hot_blocks = 0;                // no row's H is larger; <= kMostHotBlocks
};

// Rows that are padded or not hot write slots of -1 and counts of 0, and change nothing. Two rows never share a state.
void launch_sparse_diff(const SparseDiffParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
