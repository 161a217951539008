#include "storage/kv_pools.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace hotset::storage {
namespace {

constexpr KvGeometry kGeometry{.layers = 3, .kv_heads = 2, .key_dim = 8, .value_dim = 8, .dtype = KvDType::kBF16};
const KvLayout kLayout = KvLayout::uniform(kGeometry);
constexpr std::int64_t kRowBytes = 2 * 2 * 8 * 2;
constexpr std::int64_t kMetadataPageBytes = 64 * 8 * 2;

// The middle layer keeps no metadata.
KvLayout layout_with_metadata() {
  return {.rows = kGeometry,
          .metadata = {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 8, .dtype = KvDType::kBF16},
          .metadata_of_layer = {0, -1, 1},
          .metadata_layers = 2};
}

TEST(AnonymousMemory, IsZeroAndWritable) {
  Result<AnonymousMemory> memory = AnonymousMemory::allocate(5'000'001);
  ASSERT_TRUE(memory.ok());
  std::byte* data = memory.value().data();
  EXPECT_EQ(memory.value().bytes(), 5'000'001);
  for (const std::int64_t at : {0, 4096, 5'000'000}) {
    EXPECT_EQ(data[at], std::byte{0});
    data[at] = std::byte{7};
    EXPECT_EQ(data[at], std::byte{7});
  }
}

TEST(AnonymousMemory, MovesLeaveOneOwner) {
  AnonymousMemory first = AnonymousMemory::allocate(4096).value();
  std::byte* data = first.data();
  AnonymousMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): moved-from is empty by contract
  EXPECT_EQ(first.bytes(), 0);
  AnonymousMemory third = AnonymousMemory::allocate(8192).value();
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.bytes(), 4096);
  EXPECT_EQ(second.data(), nullptr);  // NOLINT(bugprone-use-after-move): as above
  EXPECT_EQ(second.bytes(), 0);
  third.data()[4095] = std::byte{1};
}

TEST(AnonymousMemory, SizesThatNoSystemHasAreErrors) {
  EXPECT_EQ(AnonymousMemory::allocate(0).value().data(), nullptr);
  EXPECT_EQ(AnonymousMemory::allocate(-1).error().code, ErrorCode::kInvalidArgument);
  const Result<AnonymousMemory> huge = AnonymousMemory::allocate(std::numeric_limits<std::int64_t>::max());
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().code, ErrorCode::kOverloaded);
  EXPECT_NE(huge.error().message.find("9223372036854775807"), std::string::npos);
}

TEST(DevicePool, PagesAndRowsTileTheMemory) {
  const DevicePool pool = DevicePool::create(kLayout, {.rows = 4, .metadata = 0}).value();
  EXPECT_EQ(pool.pages().rows, 4);
  for (std::int32_t page = 0; page < 4; ++page) {
    EXPECT_EQ(pool.page(PageId{page}) - pool.base(), page * 64 * kRowBytes);
    for (const std::int64_t offset : {0, 1, 63})
      EXPECT_EQ(pool.row(slot_of(PageId{page}, offset)) - pool.base(), (page * 64 + offset) * kRowBytes);
  }
  std::memset(pool.page(PageId{3}), 1, static_cast<std::size_t>(kGeometry.page_bytes()));
  EXPECT_EQ(pool.page(PageId{3})[-1], std::byte{0});
}

TEST(HostPool, IsLayerMajor) {
  const HostPool pool = HostPool::create(kLayout, 5).value();
  const std::byte* base = pool.row(LayerId{0}, HostSlot{0});
  std::set<const std::byte*> rows;
  for (std::int32_t layer = 0; layer < 3; ++layer)
    for (std::int32_t page = 0; page < 5; ++page) {
      EXPECT_EQ(pool.page(LayerId{layer}, HostPage{page}) - base, (layer * 5 + page) * 64 * kRowBytes);
      for (std::int64_t offset = 0; offset < 64; ++offset)
        rows.insert(pool.row(LayerId{layer}, host_slot_of(HostPage{page}, offset)));
    }
  EXPECT_EQ(rows.size(), 3U * 5 * 64);
  std::memset(pool.page(LayerId{2}, HostPage{4}), 1, static_cast<std::size_t>(kGeometry.page_bytes()));
}

TEST(DevicePool, MetadataPagesTileTheirMemory) {
  const DevicePool pool = DevicePool::create(layout_with_metadata(), {.rows = 3, .metadata = 4}).value();
  std::byte* const base = pool.metadata(MetadataPageId{0});
  for (std::int32_t page = 0; page < 4; ++page) {
    EXPECT_EQ(pool.metadata(MetadataPageId{page}) - base, page * kMetadataPageBytes);
    std::memset(pool.metadata(MetadataPageId{page}), page + 1, kMetadataPageBytes);
  }
  for (std::int32_t page = 0; page < 4; ++page) {
    EXPECT_EQ(base[page * kMetadataPageBytes], std::byte(page + 1));
    EXPECT_EQ(base[(page + 1) * kMetadataPageBytes - 1], std::byte(page + 1));
  }
  EXPECT_EQ(pool.page(PageId{0})[0], std::byte{0});
  EXPECT_EQ(pool.row(slot_of(PageId{2}, 63))[kRowBytes - 1], std::byte{0});
}

TEST(HostPool, MetadataIsLayerMajorWithoutGapsForLayersThatKeepNone) {
  const HostPool pool = HostPool::create(layout_with_metadata(), 5).value();
  std::byte* const base = pool.metadata(0, HostPage{0});
  for (std::int32_t layer = 0; layer < 2; ++layer)
    for (std::int32_t page = 0; page < 5; ++page) {
      EXPECT_EQ(pool.metadata(layer, HostPage{page}) - base, (layer * 5 + page) * kMetadataPageBytes);
      std::memset(pool.metadata(layer, HostPage{page}), layer * 5 + page + 1, kMetadataPageBytes);
    }
  for (std::int32_t page = 0; page < 10; ++page) {
    EXPECT_EQ(base[page * kMetadataPageBytes], std::byte(page + 1));
    EXPECT_EQ(base[(page + 1) * kMetadataPageBytes - 1], std::byte(page + 1));
  }
  EXPECT_EQ(pool.row(LayerId{2}, host_slot_of(HostPage{4}, 63))[kRowBytes - 1], std::byte{0});
}

// More than 2^32 rows' bytes: offsets that were computed in 32 bits would land elsewhere. Untouched pages cost nothing.
// Memory as a GPU's driver gives it: the device has other addresses than the host, or the host has none.
TEST(HostPool, TakesItsMemoryFromTheCaller) {
  std::vector<std::int64_t> asked;
  auto* const elsewhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);  // only compared
  const auto allocate = [&](std::int64_t bytes) -> Result<kernels::PoolMemory> {
    asked.push_back(bytes);
    Result<kernels::PoolMemory> memory = anonymous_pool_memory(bytes);
    memory.value().device = elsewhere;
    return memory;
  };
  const KvLayout layout = layout_with_metadata();
  const HostPool host = HostPool::create(layout, 5, allocate).value();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0], 5 * layout.rows.layers * layout.rows.page_bytes());
  EXPECT_EQ(asked[1], 5 * layout.metadata_page_bytes());
  EXPECT_EQ(host.device_rows(LayerId{0}), elsewhere);
  EXPECT_EQ(host.device_rows(LayerId{1}) - elsewhere,
            host.page(LayerId{1}, HostPage{0}) - host.page(LayerId{0}, HostPage{0}));
  EXPECT_EQ(host.device_metadata(1) - host.device_metadata(0),
            host.metadata(1, HostPage{0}) - host.metadata(0, HostPage{0}));
  const DevicePool device = DevicePool::create(layout, {.rows = 3, .metadata = 4}, allocate).value();
  EXPECT_EQ(device.page(PageId{2}) - elsewhere, 2 * layout.rows.page_bytes());
  EXPECT_EQ(device.metadata(MetadataPageId{1}) - elsewhere, layout.metadata.page_bytes());
}

TEST(HostPool, RefusedMemoryNamesTheOption) {
  const auto refuse = [](std::int64_t) -> Result<kernels::PoolMemory> {
    return Error{ErrorCode::kOverloaded, "no memory", {}};
  };
  const Error host = HostPool::create(kLayout, 5, refuse).error();
  EXPECT_EQ(host.message, "no memory: use a smaller --host-kv");
  EXPECT_EQ(host.param, "--host-kv");
  EXPECT_EQ(DevicePool::create(kLayout, {.rows = 3, .metadata = 0}, refuse).error().param, "--device-kv-tokens");
}

TEST(HostPool, OffsetsAre64Bit) {
  const KvGeometry geometry{.layers = 8, .kv_heads = 8, .key_dim = 128, .value_dim = 128, .dtype = KvDType::kF32};
  const HostPool host = HostPool::create(KvLayout::uniform(geometry), 20'000).value();
  const std::byte* base = host.row(LayerId{0}, HostSlot{0});
  std::byte* last = host.row(LayerId{7}, host_slot_of(HostPage{19'999}, 63));
  EXPECT_EQ(last - base, (std::int64_t{8} * 20'000 * 64 - 1) * 8192);
  *last = std::byte{1};
  const DevicePool device = DevicePool::create(KvLayout::uniform(geometry), {.rows = 20'000, .metadata = 0}).value();
  EXPECT_EQ(device.page(PageId{19'999}) - device.base(), std::int64_t{19'999} * 64 * 8192);
}

TEST(Pools, ErrorsNameTheOption) {
  EXPECT_EQ(DevicePool::create(kLayout, {}).error().param, "--device-kv-tokens");
  EXPECT_EQ(DevicePool::create(kLayout, {.rows = -3, .metadata = 0}).error().code, ErrorCode::kInvalidArgument);
  const Error metadata = DevicePool::create(layout_with_metadata(), {.rows = 3, .metadata = 0}).error();
  EXPECT_EQ(metadata.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(metadata.param, "--device-metadata-tokens");
  EXPECT_NE(metadata.message.find("--device-metadata-tokens"), std::string::npos);
  EXPECT_EQ(HostPool::create(kLayout, 0).error().param, "--host-kv");
  EXPECT_NE(HostPool::create(kLayout, 0).error().message.find("--host-kv"), std::string::npos);
  EXPECT_EQ(HostPool::create(KvLayout{}, 4).error().code, ErrorCode::kInvalidArgument);

  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  KvGeometry vast = kGeometry;
  vast.kv_heads = 1 << 16;
  vast.key_dim = vast.value_dim = 1 << 20;
  for (const Error& error : {DevicePool::create(KvLayout::uniform(vast), {.rows = kMost, .metadata = 0}).error(),
                             HostPool::create(KvLayout::uniform(vast), kMost).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message.find("larger than any memory"), std::string::npos);
  }
  vast.kv_heads = kMost;  // no such model
  EXPECT_EQ(DevicePool::create(KvLayout::uniform(vast), {.rows = 1, .metadata = 0}).error().code,
            ErrorCode::kInvalidArgument);
  // Fits 63 bits, but no address space.
  vast.kv_heads = 1 << 10;
  vast.key_dim = vast.value_dim = 1 << 10;
  const Error refused = HostPool::create(KvLayout::uniform(vast), 1 << 28).error();
  EXPECT_EQ(refused.code, ErrorCode::kOverloaded);
  EXPECT_NE(refused.message.find("--host-kv"), std::string::npos);
}

}  // namespace
}  // namespace hotset::storage
