// Where new tokens go, from what a step has on the device: the pool row of each (launch_store_rows), its metadata page
// and its place there (launch_store_metadata).
#pragma once

#include <cstdint>

#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's. A row with a negative position is padding: slot and page -1.
struct RowPlacesParams {
  const std::int64_t* positions = nullptr;  // [count]
  const HotRow* rows = nullptr;             // of row i: rows[i * row_stride]
  std::int64_t row_stride = 1;              // 0: all belong to one sequence
  std::int64_t* slots = nullptr;            // out [count]: resident page or ring
  // Null: no metadata is kept in this layer.
  const std::int64_t* metadata_positions = nullptr;  // [count]; negative: this row keeps none
  const std::int32_t* metadata_pages = nullptr;      // table of row i at metadata_pages + i * metadata_stride
  std::int64_t metadata_stride = 0;                  // 0: all rows have the same
  std::int32_t* pages = nullptr;                     // out [count]
  std::int32_t* offsets = nullptr;                   // out [count]
  std::int64_t count = 0;
};

void launch_row_places(const RowPlacesParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
