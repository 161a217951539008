// Exact top-k of one row; the contract is TopKParams.
#pragma once

#include <cstdint>

namespace hotset::kernels {

// Writes the min(k, length) chosen positions, ascending, to out and returns their number. k >= 0.
std::int32_t top_k_row(const float* scores, std::int64_t length, std::int32_t k, std::int32_t* out);

}  // namespace hotset::kernels
