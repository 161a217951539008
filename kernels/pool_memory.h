// Memory for a pool of the KV cache as a kernel library gives it: who makes a pool passes the factory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "core/result.h"

namespace hotset::kernels {

// Zeroed, aligned to at least 4,096 bytes; given back with the last copy of `owner`. Empty: both addresses are null.
struct PoolMemory {
  std::byte* host = nullptr;    // where the host reads and writes it; null: it can't
  std::byte* device = nullptr;  // where the device's code does; without a device the same as `host`
  std::int64_t bytes = 0;
  std::shared_ptr<void> owner;
};

// `bytes` >= 0. Expected failures are kOverloaded (less memory than that, or it may not be used so) with a message that
// a pool completes by its option's name: "...: use a smaller --host-kv".
using PoolMemoryFactory = std::function<Result<PoolMemory>(std::int64_t bytes)>;

}  // namespace hotset::kernels
