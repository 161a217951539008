// What a GPU's engine takes of a server's options. Plain functions that need no GPU; errors name the option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

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

// Bytes of the GPU's memory.
struct GpuMemory {
  std::int64_t free = 0;       // now
  std::int64_t loaded = 0;     // weights that are there, so no longer in `free`
  std::int64_t weights = 0;    // weights to come
  std::int64_t workspace = 0;  // to come
};

// What --gpu-memory (without it: nine tenths of what is free) leaves for the pools: more than nothing. More than is
// free is refused before weights are loaded, and cut after that.
[[nodiscard]] Result<std::int64_t> gpu_pool_bytes(const ServerConfig& config, const GpuMemory& memory);

// What a pinned host pool may take of `usable` bytes of the machine's memory: less what else is pinned, and no more
// than the driver pins for pools (kernels/cuda/mapped_pool.h; absent: any).
[[nodiscard]] std::int64_t host_pool_bytes(std::int64_t usable, std::int64_t pinned_elsewhere,
                                           std::optional<std::int64_t> pinnable);

// "12.3 GiB".
[[nodiscard]] std::string gib(std::int64_t bytes);

}  // namespace hotset::actors
