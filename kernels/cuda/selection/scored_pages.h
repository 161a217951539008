// Rows of a batch that select, and where on the device the metadata lies of what they may select from.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"

namespace hotset::kernels::cuda {

// Rows of one launch; launchers split larger batches (row_batches.h).
inline constexpr std::int64_t kMostLaunchRows = 1024;

// All pointers are the device's. Metadata page p lies at pool + p * geometry.page_bytes(). What lies behind a row's
// length is read at most as far as its page goes, and never shows.
struct ScoredPages {
  MetadataGeometry geometry;
  const std::byte* pool = nullptr;           // 16-byte aligned
  const std::int32_t* pages = nullptr;       // [rows, page_stride] metadata page ids, in the order of the tokens
  std::int64_t page_stride = 0;              // >= pages_for_tokens(max_length)
  const std::int64_t* query_rows = nullptr;  // [rows] row of the queries that each row takes; null: its own number
  const std::int64_t* lengths = nullptr;     // [rows] tokens; 0: a padded row, for which nothing is read or written
  const std::int32_t* k = nullptr;           // [rows] or null: rows of at most k tokens select everything: not scored
  std::int64_t rows = 0;
  std::int64_t max_length = 0;  // on the host: no row is longer
  float* scores = nullptr;      // [rows, stride]; entries from a row's length on are left alone
  std::int64_t stride = 0;      // >= max_length
};

}  // namespace hotset::kernels::cuda
