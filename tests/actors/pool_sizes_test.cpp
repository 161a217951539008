#include "actors/pool_sizes.h"

#include <gtest/gtest.h>

namespace hotset::actors {
namespace {

constexpr KvGeometry kGeometry{.layers = 4, .kv_heads = 1, .key_dim = 8, .value_dim = 8, .dtype = KvDType::kF32};
const KvLayout kLayout = KvLayout::uniform(kGeometry);
const std::int64_t kPageBytes = kPageTokens * kGeometry.token_bytes();  // 16 KiB

TEST(PoolSizes, DefaultsAreBoundedByContextsAndByMemory) {
  ServerConfig config;
  config.max_batch = 2;
  const PoolSizes roomy = choose_pool_sizes(config, kLayout, 640, 1 << 30).value();
  EXPECT_EQ(roomy.device_pages, 2 * 11 * 4);
  EXPECT_EQ(roomy.host_pages, 2 * 2 * 11);
  const PoolSizes tight = choose_pool_sizes(config, kLayout, 640, 40 * kPageBytes).value();
  EXPECT_EQ(tight.device_pages, 10 * 4);
  EXPECT_EQ(tight.host_pages, 16);
  const auto none = choose_pool_sizes(config, kLayout, 640, 3 * kPageBytes);
  ASSERT_FALSE(none.ok());
}

TEST(PoolSizes, ADefaultDoesNotShrinkWithTheOtherPoolButTakesWhatItLeaves) {
  ServerConfig config;
  config.max_batch = 2;
  config.device_kv_tokens = 64;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 640, 1 << 30).value().host_pages, 2 * 2 * 11);
  config.device_kv_tokens = 64 * 100;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 640, 1 << 30).value().host_pages, 200);
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 640, 110 * kPageBytes).value().host_pages, 10);
  config.device_kv_tokens = 0;
  config.host_kv_bytes = 90 * kPageBytes;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 640, 100 * kPageBytes).value().device_pages, 10 * 4);
  config.host_kv_bytes = 100 * kPageBytes;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 640, 100 * kPageBytes).error().param, "--device-kv-tokens");
}

TEST(PoolSizes, GivenSizesAreTakenOrRefusedByName) {
  ServerConfig config;
  config.device_kv_tokens = 512 + 63;
  config.host_kv_bytes = 10 * kPageBytes + 1;
  const PoolSizes sizes = choose_pool_sizes(config, kLayout, 1 << 20, 18 * kPageBytes).value();
  EXPECT_EQ(sizes.device_pages, 8 * 4);
  EXPECT_EQ(sizes.host_pages, 10);
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 1 << 20, 17 * kPageBytes).error().param, "--host-kv");
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 1 << 20, 7 * kPageBytes).error().param, "--device-kv-tokens");
  config.device_kv_tokens = 63;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 1 << 20, 1 << 30).error().param, "--device-kv-tokens");
  config.device_kv_tokens = std::int64_t{1} << 62;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 1 << 20, 1 << 30).error().param, "--device-kv-tokens");
  config.device_kv_tokens = 64;
  config.host_kv_bytes = kPageBytes - 1;
  EXPECT_EQ(choose_pool_sizes(config, kLayout, 1 << 20, 1 << 30).error().param, "--host-kv");
}

TEST(PoolSizes, MetadataIsCountedInBothTiersAndCoversTheHostPool) {
  // 64 bytes a token and layer beside rows of 64 bytes.
  const MetadataGeometry metadata{.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 16};
  const KvLayout layout = KvLayout::uniform(kGeometry, metadata);
  ASSERT_EQ(layout.metadata_page_bytes(), kPageBytes);
  ServerConfig config;
  config.device_kv_tokens = 64 * 8;
  config.host_kv_bytes = 10 * 2 * kPageBytes;
  const PoolSizes sizes = choose_pool_sizes(config, layout, 1 << 20, (8 + 10 * 3) * kPageBytes).value();
  EXPECT_EQ(sizes.device_pages, 8 * 4);
  EXPECT_EQ(sizes.host_pages, 10);
  EXPECT_EQ(sizes.metadata_pages, 10 * 4);
  EXPECT_EQ(choose_pool_sizes(config, layout, 1 << 20, (8 + 10 * 3) * kPageBytes - 1).error().param, "--host-kv");
  config.device_metadata_tokens = 64 * 3;
  EXPECT_EQ(choose_pool_sizes(config, layout, 1 << 20, (8 + 3 + 10 * 2) * kPageBytes).value().metadata_pages, 3 * 4);
  config.device_metadata_tokens = 63;
  EXPECT_EQ(choose_pool_sizes(config, layout, 1 << 20, 1 << 30).error().param, "--device-metadata-tokens");
  config.device_metadata_tokens = std::int64_t{1} << 62;
  EXPECT_EQ(choose_pool_sizes(config, layout, 1 << 20, 1 << 30).error().param, "--device-metadata-tokens");
}

// Rows of the device and pages of the host have 32-bit numbers: defaults keep to that, what is asked for is refused.
TEST(PoolSizes, NoMoreThanCanBeNumbered) {
  constexpr std::int64_t kMemory = std::int64_t{1} << 50, kContext = std::int64_t{1} << 28;
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  ServerConfig config;
  config.max_batch = 4096;
  for (const PoolSizes& sizes : {choose_pool_sizes(config, kLayout, kContext, kMemory).value(),
                                 choose_split_pool_sizes(config, kLayout, kContext, kMemory, kMemory).value()}) {
    EXPECT_EQ(sizes.device_pages, kMost / (4 * kPageTokens) * 4);
    EXPECT_EQ(sizes.host_pages, 2 * (kMost / (4 * kPageTokens)));
  }
  const auto refused = [&] {
    const auto one = choose_pool_sizes(config, kLayout, kContext, kMemory);
    const auto split = choose_split_pool_sizes(config, kLayout, kContext, kMemory, kMemory);
    EXPECT_EQ(one.error().message, split.error().message);
    return split.error().param;
  };
  config.device_kv_tokens = (kMost / (4 * kPageTokens) + 1) * kPageTokens;
  EXPECT_EQ(refused(), "--device-kv-tokens");
  config.device_kv_tokens = 64;
  config.host_kv_bytes = (kMost / kPageTokens + 1) * kPageBytes;
  EXPECT_EQ(refused(), "--host-kv");
}

TEST(SplitPoolSizes, DefaultsAreBoundedByContextsAndByEachMemory) {
  ServerConfig config;
  config.max_batch = 2;
  const PoolSizes roomy = choose_split_pool_sizes(config, kLayout, 640, 1 << 30, 1 << 30).value();
  EXPECT_EQ(roomy.device_pages, 2 * 11 * 4);
  EXPECT_EQ(roomy.host_pages, 2 * 2 * 11);
  EXPECT_EQ(roomy.metadata_pages, 0);
  const PoolSizes tight = choose_split_pool_sizes(config, kLayout, 640, 9 * kPageBytes + 1, 30 * kPageBytes).value();
  EXPECT_EQ(tight.device_pages, 9 * 4);
  EXPECT_EQ(tight.host_pages, 18);
  EXPECT_EQ(choose_split_pool_sizes(config, kLayout, 640, kPageBytes - 1, 1 << 30).error().param, "--device-kv-tokens");
  EXPECT_EQ(choose_split_pool_sizes(config, kLayout, 640, 1 << 30, kPageBytes).error().param, "--host-kv");
}

TEST(SplitPoolSizes, GivenSizesAreTakenOrRefusedByName) {
  const MetadataGeometry metadata{.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 16};
  const KvLayout layout = KvLayout::uniform(kGeometry, metadata);  // metadata as large as rows
  ServerConfig config;
  config.device_kv_tokens = 64 * 8 + 63;
  config.host_kv_bytes = 10 * 2 * kPageBytes + 1;
  const auto sizes = [&](std::int64_t device, std::int64_t host) {
    return choose_split_pool_sizes(config, layout, 1 << 20, device * kPageBytes, host * kPageBytes);
  };
  // Metadata of all that the host holds, at most a quarter of the device's memory.
  EXPECT_EQ(sizes(100, 20).value().metadata_pages, 10 * 4);
  EXPECT_EQ(sizes(12, 20).value().metadata_pages, 3 * 4);
  EXPECT_EQ(sizes(12, 20).value().device_pages, 8 * 4);
  EXPECT_EQ(sizes(12, 20).value().host_pages, 10);
  EXPECT_EQ(sizes(100, 19).error().param, "--host-kv");
  EXPECT_EQ(sizes(10, 20).value().metadata_pages, 2 * 4);
  EXPECT_EQ(sizes(9, 20).error().param, "--device-kv-tokens");
  config.device_metadata_tokens = 64 * 7;
  EXPECT_EQ(sizes(15, 20).value().metadata_pages, 7 * 4);
  EXPECT_EQ(sizes(14, 20).error().param, "--device-kv-tokens");
  for (const std::int64_t bad : {std::int64_t{63}, std::int64_t{1} << 62}) {
    config.device_metadata_tokens = bad;
    EXPECT_EQ(sizes(100, 20).error().param, "--device-metadata-tokens");
  }
  config.device_metadata_tokens = 0;
  config.device_kv_tokens = 63;
  EXPECT_EQ(sizes(100, 20).error().param, "--device-kv-tokens");
  config.host_kv_bytes = 2 * kPageBytes - 1;
  EXPECT_EQ(sizes(100, 20).error().param, "--host-kv");
}

}  // namespace
}  // namespace hotset::actors
