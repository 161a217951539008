// Row runs as contiguous pieces: what lies together on both sides moves by the copy engines, which leave the
// multiprocessors to others; what is small or scattered by the kernels of page_io.h. On the host, for runs that are
// queued one by one: captured steps have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/page_io.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// From here on a piece is worth a copy of its own. Copies of 256 KiB reach 47 GB/s, of 1 MiB 53, the kernels 51 with
// rows of 4 KiB: alone, what is faster; beside the work of other streams, what leaves them the multiprocessors.
inline constexpr std::int64_t kLeastPieceAlone = 1 << 20;
inline constexpr std::int64_t kLeastPieceBesideWork = 256 << 10;

struct ContiguousPiece {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::int64_t bytes = 0;
};

struct SplitRuns {
  std::vector<ContiguousPiece> pieces;
  std::vector<RowRun> rest;  // at most a page each
};

// `runs` in any order; neighbours that go on where the one before ends become one piece. Their page lists are read on
// the host.
[[nodiscard]] SplitRuns split_runs(std::span<const RowRun> runs, std::byte* device_rows, std::int64_t row_bytes,
                                   std::int64_t least_bytes);

// Queues the copies on a stream that is not the default one, in stream order as a whole. Pieces never overlap; host
// memory is pinned.
void copy_pieces(std::span<const ContiguousPiece> pieces, bool to_host, Stream stream);

}  // namespace hotset::kernels::cuda
