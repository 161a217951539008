#include "sparse/kv_usage.h"

#include <algorithm>
#include <vector>

#include "core/kv_geometry.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::sparse {
namespace {

template <class Id>
std::int64_t count(const std::vector<std::vector<Id>>& pages) {
  std::int64_t sum = 0;
  for (const std::vector<Id>& of_layer : pages) sum += static_cast<std::int64_t>(of_layer.size());
  return sum;
}

void raise(std::int64_t& peak, std::int64_t now) { peak = std::max(peak, now); }

}  // namespace

void measure(const SequenceKv& kv, const KvLayout& layout, const TierTraffic& traffic, KvUsage& usage) {
  const std::int64_t row_pages = count(kv.device_pages);
  const std::int64_t metadata_pages = count(kv.metadata_pages);
  std::int64_t tables = row_pages * static_cast<std::int64_t>(sizeof(PageId)) +
                        metadata_pages * static_cast<std::int64_t>(sizeof(MetadataPageId));
  if (kv.mode == KvMode::kHot)  // a block and a place in the order for each slot
    tables += 2 * static_cast<std::int64_t>(sizeof(std::int32_t)) * kv.hot_shape.hot_blocks * layout.rows.layers;
  const auto host_pages = static_cast<std::int64_t>(kv.host_pages.size());
  if (kv.mode != KvMode::kParked) tables += host_pages * static_cast<std::int64_t>(sizeof(HostPage));
  raise(usage.device_row_bytes, row_pages * layout.rows.page_bytes());
  raise(usage.device_metadata_bytes, metadata_pages * layout.metadata.page_bytes());
  raise(usage.device_table_bytes, tables);
  raise(usage.host_bytes, host_pages * (layout.rows.layers * layout.rows.page_bytes() + layout.metadata_page_bytes()));
  count_traffic(traffic, usage);
}

void count_traffic(const TierTraffic& traffic, KvUsage& usage) {
  usage.hits = traffic.hits;
  usage.ring_hits = traffic.ring_hits;
  usage.misses = traffic.misses;
  usage.bytes_loaded = traffic.bytes_loaded;
  usage.bytes_offloaded = traffic.bytes_offloaded;
}

}  // namespace hotset::sparse
