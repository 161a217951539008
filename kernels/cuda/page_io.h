// Rows between mapped host memory and the device, moved by the GPU's own loads and stores: missing blocks into their
// slots of the hot buffer, and finished rows to the host pool. Rows are copied bit for bit. Contiguous pieces from
// page_pieces.h's sizes on are left to the copy engines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/sparse_diff.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// Sums over all launches since the caller zeroed them; bytes are those that crossed the bus, not copies from the ring.
struct SwapCounters {
  std::uint64_t hits = 0;
  std::uint64_t ring_hits = 0;
  std::uint64_t misses = 0;       // blocks, from the host or the ring
  std::uint64_t ring_misses = 0;  // blocks
  std::uint64_t unplaced = 0;
  std::uint64_t bytes_loaded = 0;
};

// 16 blocks of 512 threads saturate the bus; twice as many shorten the wait where misses are few.
inline constexpr std::int32_t kPageIoBlocks = 32;

struct LoadMissesParams {
  const HotRow* rows = nullptr;              // [batch]
  const SparseMiss* misses = nullptr;        // [batch][max_selected]
  const SparseDiffCounts* counts = nullptr;  // [batch]
  const std::byte* host_rows = nullptr;      // this layer's rows of the host pool: [host pages][64][row_bytes]
  std::byte* device_rows = nullptr;          // the device pool: [device pages][64][row_bytes]
  SwapCounters* counters = nullptr;          // one, added to; null: not counted
  std::int64_t row_bytes = 0;                // > 0. Rows that are no multiple of 16 bytes are copied byte by byte
  std::int32_t batch = 0;                    // <= kMostSwapBatch
  std::int32_t max_selected = 0;             // K
  std::int32_t blocks = kPageIoBlocks;       // of the grid, whatever the batch
  // The stream's previous launch is launch_sparse_diff: this one may start while that one ends.
  bool follows_diff = false;
};

// Every row of the miss lists is in its slot when this is complete, whatever their order.
void launch_load_misses(const LoadMissesParams& params, Stream stream);

// Rows of positions [first_position, first_position + rows) of one (sequence, layer), between the device and the host
// pool.
struct RowRun {
  const std::int32_t* device_pages = nullptr;  // resident: [pages]; hot: the ring's pages
  const std::int32_t* host_pages = nullptr;    // [pages of the sequence]
  std::byte* host_rows = nullptr;              // the layer's rows of the host pool
  std::int64_t first_position = 0;
  std::int32_t rows = 0;         // mostly 64: a finished page; 0: nothing
  std::int32_t ring_tokens = 0;  // hot: C; 0: resident
};

struct MoveRowsParams {
  const RowRun* runs = nullptr;          // [run_count], in memory that the device reads
  std::byte* device_rows = nullptr;      // the device pool
  std::uint64_t* bytes_moved = nullptr;  // one, added to; null: not counted
  std::int64_t row_bytes = 0;
  std::int32_t run_count = 0;
  std::int32_t blocks = kPageIoBlocks;
};

// Device to host, and host to device. Runs never overlap. The host may read the rows after an event behind the launch.
void launch_offload(const MoveRowsParams& params, Stream stream);
void launch_restore(const MoveRowsParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
