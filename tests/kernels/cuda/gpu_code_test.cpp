// Which GPUs a build has code for. Needs none.
#include <gtest/gtest.h>

#include <string>

#include "core/concat.h"
#include "kernels/cuda/device.h"

namespace hotset::kernels::cuda {
namespace {

DeviceInfo gpu_of(int major, int minor) {
  return {.name = "a GPU", .capability_major = major, .capability_minor = minor, .total_bytes = 1 << 20};
}

TEST(CheckHasCode, RefusesGpusThatNoKernelRunsOn) {
  constexpr int kBuilt[] = {800, 900};
  struct Capability {
    int major, minor;
  };
  for (const auto [major, minor] : {Capability{8, 0}, {8, 6}, {8, 9}, {9, 0}}) {
    const auto gpu = check_has_code(gpu_of(major, minor), kBuilt);
    ASSERT_TRUE(gpu.ok()) << major << "." << minor;
    EXPECT_EQ(gpu.value().capability_minor, minor);
  }
  for (const auto [major, minor] : {Capability{7, 5}, {10, 0}, {10, 3}, {12, 0}}) {
    const auto gpu = check_has_code(gpu_of(major, minor), kBuilt);
    ASSERT_FALSE(gpu.ok()) << major << "." << minor;
    EXPECT_EQ(gpu.error().code, ErrorCode::kUnavailable);
    const std::string words = concat("a GPU) has compute capability ", major, ".", minor);
    EXPECT_NE(gpu.error().message.find(words), std::string::npos) << gpu.error().message;
    EXPECT_NE(gpu.error().message.find("code for 8.0 and 9.0"), std::string::npos) << gpu.error().message;
  }
  constexpr int kHopperAlone[] = {900};
  EXPECT_FALSE(check_has_code(gpu_of(8, 0), kHopperAlone).ok());
  constexpr int kLater[] = {860};
  EXPECT_FALSE(check_has_code(gpu_of(8, 0), kLater).ok());
}

}  // namespace
}  // namespace hotset::kernels::cuda
