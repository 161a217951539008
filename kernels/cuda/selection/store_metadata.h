// Metadata of new tokens, written into their pages on the device: StoreMetadataParams of kernels/backend.h. Pages get
// the CPU's bytes (but for the signs of zero bounds): projection, scales and codes are computed in the same order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// Row r is position positions[r] of the sequence at batch row batch_rows[r], whose metadata pages of this layer are
// pages[batch_rows[r] * page_stride ...], as in ScoredPages.
struct MetadataTables {
  const std::int32_t* pages = nullptr;
  std::int64_t page_stride = 0;
  const std::int32_t* batch_rows = nullptr;  // [rows]; null: row r is of batch row r
  const std::int64_t* positions = nullptr;   // [rows]; negative: a padded row
};

// All pointers are the device's. The rows of one page stand next to each other, in ascending position; padded rows may
// stand anywhere but between them.
struct StoreMetadataDeviceParams {
  MetadataGeometry geometry;
  const void* keys = nullptr;  // [rows, kv_heads * dim] float32, or bfloat16; row stride in numbers below
  bool keys_are_bf16 = false;
  std::int64_t stride = 0;
  const float* basis = nullptr;  // kLowRankKeys: [kv_heads, dim, rank]
  std::byte* pool = nullptr;     // metadata page p lies at pool + p * geometry.page_bytes(); 4-byte aligned
  // Each row's page and place in it, or, where `positions` is not null, page tables to find them in.
  const std::int32_t* pages = nullptr;    // [rows] metadata page of each row; -1: a padded row, nothing is written
  const std::int32_t* offsets = nullptr;  // [rows] its position in the page, 0 ... 63
  MetadataTables tables;
  std::int64_t rows = 0;
};

// Low rank: rank at most 256.
void launch_store_metadata(const StoreMetadataDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
