// Lists of pool rows for sparse_attention (SlotType::kInt32) from what a step has on the device: page tables, the
// selection and the sparse diff's slots. The lists are those of sparse::TieredKv::all_slots and selected_slots.
#pragma once

#include <cstdint>

#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's. A batch row attends to
// - its whole sequence, rows 0 ... length - 1 ascending: where `blocks` is null or its count is negative. Resident rows
//   only: a hot one, whose rows are not all there, gets an empty list;
// - else to its selected blocks, in their order. All of them are whole but the last, which is cut at the length. A
//   block that is negative or begins behind the length gives holes (-1), and so does a hot row's block with slot -1.
// Entries of `slots` behind a row's count are left alone.
struct SlotListsParams {
  const HotRow* rows = nullptr;                // of batch row r: rows[r * row_stride]; resident ones: hot_blocks 0
  std::int64_t row_stride = 1;                 // 0: all rows are of one sequence
  const std::int32_t* lengths = nullptr;       // [batch]: newest position + 1; 0: a padded row, count 0
  const std::int32_t* blocks = nullptr;        // [batch][max_selected], ascending
  const std::int32_t* block_counts = nullptr;  // [batch], <= max_selected
  const std::int32_t* slot_of = nullptr;       // [batch][max_selected] of the sparse diff; read for hot rows only
  std::int32_t* slots = nullptr;               // out [batch][slot_stride]: page * 64 + offset; below 2^31
  std::int32_t* counts = nullptr;              // out [batch]
  std::int64_t slot_stride = 0;                // >= max_count
  std::int64_t max_count = 0;                  // no list is longer: what is behind is cut
  std::int32_t max_selected = 0;
  // B of the selections, a power of two up to 64; that of the hot rows. Where batch rows differ: [batch], with 0 for
  // rows that attend to everything.
  std::int32_t block_tokens = 1;
  const std::int32_t* row_block_tokens = nullptr;
  std::int32_t batch = 0;
};

void launch_slot_lists(const SlotListsParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
