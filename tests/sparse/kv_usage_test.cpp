#include "sparse/kv_usage.h"

#include <gtest/gtest.h>

#include "core/kv_geometry.h"
#include "sparse/sequence_kv.h"
#include "sparse/tiered_kv.h"

namespace hotset::sparse {
namespace {

// Rows of 16 bytes and metadata of 8 bytes a token, in two layers.
KvLayout layout() {
  constexpr KvGeometry kRows{.layers = 2, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .dtype = KvDType::kF32};
  return KvLayout::uniform(kRows, {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 2});
}

TEST(KvUsage, PeaksStayAndSumsFollow) {
  SequenceKv kv;
  kv.mode = KvMode::kResident;
  kv.host_pages = {HostPage{0}, HostPage{1}, HostPage{2}};
  kv.device_pages = {{PageId{0}, PageId{1}, PageId{2}}, {PageId{3}, PageId{4}, PageId{5}}};
  kv.metadata_pages = {{MetadataPageId{0}}, {MetadataPageId{1}}};
  TierTraffic traffic{.hits = 1, .ring_hits = 2, .misses = 3, .bytes_loaded = 4, .bytes_offloaded = 5};
  KvUsage usage;
  measure(kv, layout(), traffic, usage);
  EXPECT_EQ(usage.device_row_bytes, 6 * 64 * 16);
  EXPECT_EQ(usage.device_metadata_bytes, 2 * 64 * 8);
  EXPECT_EQ(usage.device_table_bytes, (6 + 2 + 3) * 4);
  EXPECT_EQ(usage.host_bytes, 3 * 64 * 2 * (16 + 8));

  kv.mode = KvMode::kHot;  // fewer pages, and two buffers of three blocks each
  kv.device_pages = {{PageId{0}}, {PageId{1}}};
  kv.hot_shape = make_hot_buffer_shape(3, 16, 1).value();
  traffic.misses = 30;
  measure(kv, layout(), traffic, usage);
  EXPECT_EQ(usage.device_row_bytes, 6 * 64 * 16);
  EXPECT_EQ(usage.device_table_bytes, (2 + 2 + 3) * 4 + 2 * (3 + 3) * 4);
  EXPECT_EQ(usage.misses, 30);
  EXPECT_EQ(usage.hits, 1);
  EXPECT_EQ(usage.ring_hits, 2);
  EXPECT_EQ(usage.bytes_loaded, 4);
  EXPECT_EQ(usage.bytes_offloaded, 5);
  KvUsage two = usage;
  two += usage;
  EXPECT_EQ(two.host_bytes, 2 * usage.host_bytes);
  EXPECT_EQ(two.misses, 60);
}

}  // namespace
}  // namespace hotset::sparse
