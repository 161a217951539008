// Rows as the launches of device_attention*.cpp take them: how many together (which device_memory_plan.cpp counts on),
// of what type, how far apart.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/dense_backend.h"

namespace hotset::model {

inline constexpr std::int64_t kPieceTokens = 4096;  // of earlier rows brought or expanded at once; whole prefill tiles
inline constexpr std::int64_t kSelectedRows = 256;  // of a prompt that select together

inline kernels::cuda::ActivationType type_of(kernels::ElementType type) {
  return type == kernels::ElementType::kF32 ? kernels::cuda::ActivationType::kF32
                                            : kernels::cuda::ActivationType::kBF16;
}

// Of rows that are `width` wide.
inline std::int64_t stride_or(std::int64_t stride, std::int64_t width) { return stride == 0 ? width : stride; }

}  // namespace hotset::model
