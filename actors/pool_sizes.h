// Sizes of the two pools from the options and the memory that is there.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "core/kv_geometry.h"
#include "core/result.h"

namespace hotset::actors {

struct PoolSizes {
  std::int32_t device_pages = 0;    // rows of one layer each
  std::int32_t metadata_pages = 0;  // of one layer each
  std::int32_t host_pages = 0;      // rows and metadata of all layers each
};

// Default of the device pool: what max_batch contexts need, at most a quarter of the memory; of the host pool: twice
// that (or twice a larger device pool), at most 40 % of the memory, and what a given device pool leaves; of the
// device's metadata: all that the host pool holds, because hot sequences keep the metadata of all their tokens there.
// kInvalidArgument names --device-kv-tokens, --device-metadata-tokens or --host-kv when a given size holds no page or
// is larger than the memory, and when the memory is too small for any default.
Result<PoolSizes> choose_pool_sizes(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                                    std::int64_t usable_bytes);

// The same where the device has memory of its own, `device_bytes` for both its pools. Defaults: of the device's
// metadata all that the host pool holds, at most a quarter of the device's memory; of the device pool what max_batch
// contexts need, at most what is left there; of the host pool twice max_batch contexts, at most 60 % of the host's
// memory.
Result<PoolSizes> choose_split_pool_sizes(const ServerConfig& config, const KvLayout& layout, std::int64_t max_context,
                                          std::int64_t device_bytes, std::int64_t host_bytes);

}  // namespace hotset::actors
