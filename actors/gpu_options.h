// What a GPU's engine takes of a server's options. Plain functions that need no GPU; errors name the option.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/config.h"
#include "core/result.h"
#include "kernels/activations.h"

namespace hotset::actors {

struct GpuTakes {
  kernels::ElementType compute = kernels::ElementType::kBF16;
  bool fp8_weights = false;  // multiplied by as they are
  bool fp8_rows = false;     // of the KV cache
  std::int64_t batch = 0;    // rows of a step at most
};

[[nodiscard]] Result<void> check_gpu_options(const ServerConfig& config, const GpuTakes& takes);

// `fp8_matrices`: of the model, those that the GPU multiplies by as they are.
[[nodiscard]] Result<void> check_fp8_matrices(const ServerConfig& config, std::size_t fp8_matrices);

}  // namespace hotset::actors
