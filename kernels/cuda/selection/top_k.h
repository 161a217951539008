// Exact top-k of many rows on the device; what it gives is TopKParams of kernels/backend.h, bit for bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// All pointers are the device's. A row of length 0 (a padded one) gets count 0 and -1 everywhere.
struct TopKDeviceParams {
  const float* scores = nullptr;  // [rows, stride]; any alignment
  std::int64_t stride = 0;
  const std::int64_t* lengths = nullptr;  // [rows], each <= max_length
  const std::int64_t* first = nullptr;    // [rows]; null: 0
  const std::int64_t* last = nullptr;     // [rows], >= first; null: the length
  const std::int32_t* k = nullptr;        // [rows], >= 0
  std::int64_t rows = 0;
  std::int64_t max_length = 0;      // on the host: no row is longer; <= 2^30. Decides how many blocks share a row
  std::int32_t* out = nullptr;      // [rows, out_stride]; ascending, unused entries are -1
  std::int64_t out_stride = 0;      // >= every row's count
  std::int32_t* counts = nullptr;   // [rows] = min(max(k, forced), length)
  std::int32_t blocks_per_row = 0;  // 0: chosen; 1, 2, 4, 8 or 16: at most (tests). Before Hopper always 1
  std::int32_t threads = 0;         // of a block. 0: chosen; 256, 512 or 1024 (tests)
};

void launch_top_k(const TopKDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
