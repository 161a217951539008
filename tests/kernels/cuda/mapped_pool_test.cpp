// Pools over a GPU's memory, as the engine makes them.
#include "kernels/cuda/mapped_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "storage/kv_pools.h"
#include "tests/kernels/cuda/gpu_test.h"

namespace hotset::kernels::cuda {
namespace {

using MappedPool = GpuTest;

constexpr KvGeometry kRows{.layers = 3, .kv_heads = 2, .key_dim = 64, .value_dim = 64, .dtype = KvDType::kBF16};
constexpr std::int64_t kPlenty = std::int64_t{1} << 30;

KvLayout layout_with_metadata() {
  return KvLayout::uniform(
      kRows, {.kind = MetadataGeometry::Kind::kIndexKeys, .kv_heads = 1, .dim = 64, .dtype = KvDType::kBF16});
}

TEST_F(MappedPool, HostAndDeviceSeeTheSameRows) {
  constexpr std::int32_t kPages = 50;
  const KvLayout layout = layout_with_metadata();
  const storage::HostPool host = storage::HostPool::create(layout, kPages, mapped_pool_memory(kPlenty)).value();
  const std::int64_t bytes = kRows.page_bytes();
  std::vector<std::byte> page(static_cast<std::size_t>(bytes));
  for (std::int32_t layer = 0; layer < kRows.layers; ++layer) {
    ASSERT_EQ(host.page(LayerId{layer}, HostPage{49})[bytes - 1], std::byte{0});
    std::memset(host.page(LayerId{layer}, HostPage{7}), 10 + layer, page.size());
    HOTSET_CUDA_CHECK(
        cudaMemcpy(page.data(), host.device_rows(LayerId{layer}) + 7 * bytes, page.size(), cudaMemcpyDefault));
    EXPECT_EQ(page, std::vector<std::byte>(page.size(), std::byte(10 + layer))) << "layer " << layer;
    cudaPointerAttributes attributes = {};
    HOTSET_CUDA_CHECK(cudaPointerGetAttributes(&attributes, host.page(LayerId{layer}, HostPage{7})));
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost) << "pinned";
    EXPECT_EQ(static_cast<std::byte*>(attributes.devicePointer), host.device_rows(LayerId{layer}) + 7 * bytes);
  }
  cudaPointerAttributes metadata = {};
  HOTSET_CUDA_CHECK(cudaPointerGetAttributes(&metadata, host.metadata(2, HostPage{0})));
  EXPECT_EQ(static_cast<std::byte*>(metadata.devicePointer), host.device_metadata(2));
}

TEST_F(MappedPool, RowsGoFromTheDevicePoolToTheHostPool) {
  const KvLayout layout = layout_with_metadata();
  const storage::HostPool host = storage::HostPool::create(layout, 4, mapped_pool_memory(kPlenty)).value();
  const storage::DevicePool device =
      storage::DevicePool::create(layout, {.rows = 5, .metadata = 6}, device_pool_memory).value();
  const auto bytes = static_cast<std::size_t>(kRows.page_bytes());
  HOTSET_CUDA_CHECK(cudaMemset(device.page(PageId{4}), 0x5A, bytes));
  HOTSET_CUDA_CHECK(cudaMemcpy(host.page(LayerId{1}, HostPage{2}), device.page(PageId{4}), bytes, cudaMemcpyDefault));
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  const std::byte* const page = host.page(LayerId{1}, HostPage{2});
  EXPECT_EQ(std::vector<std::byte>(page, page + bytes), std::vector<std::byte>(bytes, std::byte{0x5A}));
  std::vector<std::byte> zeros(bytes, std::byte{1});
  HOTSET_CUDA_CHECK(cudaMemcpy(zeros.data(), device.page(PageId{3}), bytes, cudaMemcpyDefault));
  EXPECT_EQ(zeros, std::vector<std::byte>(bytes)) << "memory begins with zeros";
}

TEST_F(MappedPool, MoreThanMayBeUsedIsRefusedByName) {
  const std::int64_t one_pool = 10 * kRows.layers * kRows.page_bytes();
  const PoolMemoryFactory factory = mapped_pool_memory(one_pool + one_pool / 2);
  const KvLayout layout = KvLayout::uniform(kRows);
  const auto first = storage::HostPool::create(layout, 10, factory);
  ASSERT_TRUE(first.ok());
  const Error second = storage::HostPool::create(layout, 10, factory).error();
  EXPECT_EQ(second.code, ErrorCode::kOverloaded);
  EXPECT_EQ(second.param, "--host-kv");
  EXPECT_NE(second.message.find("use a smaller --host-kv"), std::string::npos) << second.message;
  EXPECT_NE(second.message.find(std::to_string(one_pool / 2)), std::string::npos) << second.message;
}

// Whatever this driver does with the limit of locked memory, pinnable_bytes() says so beforehand, and leaves the limit
// as it was.
TEST_F(MappedPool, TheLimitOfLockedMemoryIsKnownBeforePinning) {
  constexpr std::int64_t kLimit = std::int64_t{4} << 20;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small = {.rlim_cur = std::min<rlim_t>(kLimit, before.rlim_max), .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  const std::optional<std::int64_t> pinnable = pinnable_bytes();
  const auto pinned = mapped_pool_memory(kPlenty)(8 * kLimit);
  rlimit after = {};
  EXPECT_EQ(getrlimit(RLIMIT_MEMLOCK, &after), 0);
  EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(after.rlim_cur, small.rlim_cur);
  EXPECT_EQ(after.rlim_max, small.rlim_max);
  EXPECT_EQ(pinned.ok(), !pinnable.has_value()) << "the limit binds exactly where it was said to";
  if (pinnable) {
    EXPECT_EQ(*pinnable, std::max<std::int64_t>(static_cast<std::int64_t>(small.rlim_cur) - kPinnedElsewhere, 0));
    EXPECT_NE(pinned.error().message.find("ulimit -l"), std::string::npos) << pinned.error().message;
  }
  std::cout << "this driver " << (pinnable ? "holds to" : "does not ask for") << " the limit of locked memory\n";
  const rlimit unlimited = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  if (setrlimit(RLIMIT_MEMLOCK, &unlimited) == 0) {
    EXPECT_FALSE(pinnable_bytes().has_value());
    EXPECT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  }
}

TEST_F(MappedPool, MoreThanTheGpuHasIsRefusedByName) {
  const KvLayout layout = KvLayout::uniform(kRows);
  const Error refused =
      storage::DevicePool::create(layout, {.rows = 1 << 30, .metadata = 0}, device_pool_memory).error();
  EXPECT_EQ(refused.code, ErrorCode::kOverloaded);
  EXPECT_EQ(refused.param, "--device-kv-tokens");
  HOTSET_CUDA_CHECK(cudaGetLastError());  // no later launch finds the failure
}

}  // namespace
}  // namespace hotset::kernels::cuda
