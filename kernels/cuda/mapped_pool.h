// Memory for the pools of the KV cache on a GPU.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/pool_memory.h"

namespace hotset::kernels::cuda {

// Host memory that is pinned and that the device reads and writes in place (runtime.h, MappedHostMemory): for the host
// pool. `usable_bytes` is what the process may still use, its control groups included (storage/host_memory.h): pinned
// memory is touched at once, and beyond that the process would be killed. The factory and its copies share it out.
// kOverloaded: more than is left of that, or the driver does not pin it; then the message names the limit of locked
// memory where that is smaller. Throws CudaError without a GPU.
[[nodiscard]] PoolMemoryFactory mapped_pool_memory(std::int64_t usable_bytes);

// What is pinned too: the numbers of steps, buffers of the upload of weights, logits of prompts. More than they take.
inline constexpr std::int64_t kPinnedElsewhere = std::int64_t{256} << 20;

// What pools may pin under the limit of locked memory (ulimit -l) less kPinnedElsewhere, where the driver holds to it;
// absent: there is none, or the driver pins whatever it says, as most do. Asked by pinning a little with the process's
// limit at zero for a moment: at start, while nobody else locks memory.
[[nodiscard]] std::optional<std::int64_t> pinnable_bytes();

// Memory of the current device; the host can't read it: for the device pool. kOverloaded: the device has no such
// piece left.
Result<PoolMemory> device_pool_memory(std::int64_t bytes);

}  // namespace hotset::kernels::cuda
