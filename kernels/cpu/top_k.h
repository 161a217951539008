// Exact top-k of one row; the contract is TopKParams.
#pragma once

#include <cstdint>

namespace hotset::kernels {

struct TopKRow {
  const float* scores;  // [length]; only [first, last) is read
  std::int64_t length;
  std::int64_t first, last;  // forced: [0, first) and [last, length)
  std::int32_t k;            // >= 0
};

// How many top_k_row() will choose: min(max(k, forced), length).
[[nodiscard]] std::int64_t top_k_count(const TopKRow& row);

// Writes the chosen positions, ascending, to out and returns their number. Linear time. scratch: [length].
std::int32_t top_k_row(const TopKRow& row, std::uint32_t* scratch, std::int32_t* out);

}  // namespace hotset::kernels
