// Metadata of new tokens, written into their pages on the device: StoreMetadataParams of kernels/backend.h. Pages get
// the CPU's bytes (but for the signs of zero bounds): projection, scales and codes are computed in the same order.
// New rows of a step bring theirs along: kernels/cuda/new_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

inline constexpr std::int32_t kMostLowRank = 256;

// Where metadata goes: of row r to position positions[r] of the sequence whose metadata pages of this layer are
// pages[r * page_stride ...]. All pointers are the device's.
struct MetadataTarget {
  std::byte* pool = nullptr;  // metadata page p lies at pool + p * geometry.page_bytes(); 16-byte aligned
  const std::int32_t* pages = nullptr;
  std::int64_t page_stride = 0;             // 0: all rows are of one sequence; else no two rows share a page
  const std::int64_t* positions = nullptr;  // [rows]; negative: a padded row, for which nothing is written
};

// Rows of one sequence stand in ascending position; padded rows may stand anywhere but between rows of one page.
struct StoreMetadataDeviceParams {
  MetadataGeometry geometry;
  const void* keys = nullptr;  // [rows, kv_heads * dim] float32, or bfloat16; row stride in numbers below
  bool keys_are_bf16 = false;
  std::int64_t stride = 0;
  const float* basis = nullptr;  // kLowRankKeys: [kv_heads, dim, rank], rank even and at most kMostLowRank
  MetadataTarget target;
  std::int64_t rows = 0;
};

void launch_store_metadata(const StoreMetadataDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
