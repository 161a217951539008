// Descriptions of arrays for the tensor copy engine. For .cu files of this folder.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace hotset::kernels::cuda {

struct TensorDimension {
  std::uint64_t size = 0;    // elements; copies beyond it give zeros
  std::uint64_t stride = 0;  // bytes, a multiple of 16; that of the first dimension is not read
  std::uint32_t box = 0;     // elements of one copy
};

// Innermost dimension first. `swizzle`: boxes of 128 bytes in the first dimension, swizzled over 128 bytes. Throws
// CudaError where the driver refuses.
[[nodiscard]] CUtensorMap make_tensor_map(CUtensorMapDataType type, const void* data,
                                          std::span<const TensorDimension> dimensions, bool swizzle);

}  // namespace hotset::kernels::cuda
