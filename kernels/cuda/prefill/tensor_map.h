// Descriptions of tensors in global memory for the bulk tensor copies of Hopper. Host only.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace hotset::kernels::cuda {

// bf16 numbers [pages][64 rows][heads][channels], boxes of 64 channels of one head in the 64 rows of a page, 128-byte
// swizzle; channels behind the last one come as zeros. Strides in bytes, multiples of 16; `base` 16-byte aligned.
[[nodiscard]] CUtensorMap map_rows(const std::byte* base, std::int32_t channels, std::int32_t heads,
                                   std::int64_t head_stride, std::int64_t row_stride);

}  // namespace hotset::kernels::cuda
