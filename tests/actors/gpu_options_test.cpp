#include "actors/gpu_options.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace hotset::actors {
namespace {

constexpr GpuTakes kHopper{.fp8_weights = true, .fp8_rows = true, .batch = 512};
constexpr GpuTakes kOlder{.batch = 512};
constexpr GpuTakes kHopperInF32{.compute = kernels::ElementType::kF32, .fp8_rows = true, .batch = 512};

void expect_refused(const Result<void>& checked, const std::string& param, const char* words) {
  ASSERT_FALSE(checked.ok()) << param << ", " << words;
  EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(checked.error().param, param) << checked.error().message;
  EXPECT_TRUE(checked.error().message.starts_with(param)) << checked.error().message;
  EXPECT_NE(checked.error().message.find(words), std::string::npos) << checked.error().message;
}

TEST(GpuOptions, EveryOptionThatAGpuRefusesIsNamed) {
  struct Case {
    const char* param;
    const char* words;
    std::function<void(ServerConfig&)> change;
    GpuTakes takes = kHopper;
  };
  const Case cases[] = {
      {"--verify-rate", "use --device cpu", [](auto& config) { config.verify_rate = 0.5; }},
      {"--fill-kv", "use --load-format dummy", [](auto& config) { config.synthetic_prompts = true; }},
      {"--selection-model", "use --load-format dummy", [](auto& config) { config.selection_model = "churn=0.1"; }},
      {"--selection-model", "there are no selections",
       [](auto& config) {
         config.selection_model = "churn=0.1";
         config.load_format = "dummy";
         config.algorithm = "dense";
       }},
      {"--max-batch", "--max-batch 513: a GPU step has at most 512", [](auto& config) { config.max_batch = 513; }},
      {"--kv-dtype", "use bf16", [](auto& config) { config.kv_dtype = KvDTypeChoice::kFp8; }, kOlder},
      {"--weight-dtype", "bf16: with --compute-dtype f32",
       [](auto& config) { config.weight_type = WeightTypeChoice::kBF16; }, kHopperInF32},
      {"--weight-dtype", "fp8: with --compute-dtype f32",
       [](auto& config) { config.weight_type = WeightTypeChoice::kFp8; }, kHopperInF32},
      {"--weight-dtype", "(Hopper)", [](auto& config) { config.weight_type = WeightTypeChoice::kFp8; }, kOlder},
  };
  for (const Case& one : cases) {
    ServerConfig config;
    one.change(config);
    expect_refused(check_gpu_options(config, one.takes), one.param, one.words);
  }
}

TEST(GpuOptions, WhatAGpuTakesIsTaken) {
  EXPECT_TRUE(check_gpu_options({}, kHopper).ok());
  EXPECT_TRUE(check_gpu_options({}, kOlder).ok());
  EXPECT_TRUE(check_gpu_options({}, kHopperInF32).ok());
  EXPECT_TRUE(check_gpu_options({.max_batch = 512}, kHopper).ok());
  EXPECT_TRUE(check_gpu_options({.kv_dtype = KvDTypeChoice::kFp8}, kHopper).ok());
  EXPECT_TRUE(check_gpu_options({.kv_dtype = KvDTypeChoice::kFp8}, kHopperInF32).ok());
  EXPECT_TRUE(check_gpu_options({.weight_type = WeightTypeChoice::kFp8}, kHopper).ok());
  EXPECT_TRUE(check_gpu_options({.weight_type = WeightTypeChoice::kBF16}, kHopper).ok());
  EXPECT_TRUE(check_gpu_options({.weight_type = WeightTypeChoice::kBF16}, kOlder).ok());
  ServerConfig measuring{.load_format = "dummy"};
  measuring.selection_model = "churn=0.1";
  measuring.synthetic_prompts = true;
  EXPECT_TRUE(check_gpu_options(measuring, kHopper).ok());
}

TEST(GpuOptions, Fp8WeightsAreNotMade) {
  const ServerConfig fp8{.weight_type = WeightTypeChoice::kFp8};
  expect_refused(check_fp8_matrices(fp8, 0), "--weight-dtype", "none are made");
  EXPECT_TRUE(check_fp8_matrices(fp8, 1).ok());
  EXPECT_TRUE(check_fp8_matrices({}, 0).ok());
}

TEST(GpuOptions, HostMemoryForThePool) {
  EXPECT_EQ(host_pool_bytes(1000, 256, std::nullopt), 744);
  EXPECT_EQ(host_pool_bytes(1000, 256, 500), 500);
  EXPECT_EQ(host_pool_bytes(1000, 256, 800), 744);
  EXPECT_EQ(host_pool_bytes(200, 256, std::nullopt), 0);
  EXPECT_EQ(host_pool_bytes(200, 256, 100), 0);
}

TEST(GpuOptions, MemoryForThePools) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const auto pools = [](std::int64_t option, const GpuMemory& memory) {
    return gpu_pool_bytes({.gpu_memory_bytes = option * kGiB}, memory);
  };
  const GpuMemory before{.free = 100 * kGiB, .weights = 15 * kGiB, .workspace = 5 * kGiB};
  EXPECT_EQ(pools(0, before).value(), 70 * kGiB);
  EXPECT_EQ(pools(60, before).value(), 40 * kGiB);
  EXPECT_EQ(pools(100, before).value(), 80 * kGiB);
  // The option counts weights that are loaded, what is free doesn't.
  const GpuMemory after{.free = 85 * kGiB, .loaded = 15 * kGiB, .workspace = 5 * kGiB};
  EXPECT_EQ(pools(60, after).value(), 40 * kGiB);
  EXPECT_EQ(pools(100, after).value(), 80 * kGiB);

  const auto expect_named = [](const Result<std::int64_t>& refused, const char* words) {
    ASSERT_FALSE(refused.ok()) << words;
    EXPECT_EQ(refused.error().param, "--gpu-memory");
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  };
  expect_named(pools(101, before), "--gpu-memory 101.0 GiB: the GPU has 100.0 GiB free");
  EXPECT_EQ(pools(101, after).value(), 80 * kGiB);
  for (const GpuMemory& memory : {before, after})
    expect_named(pools(20, memory), "20.0 GiB may be used, the weights take 15.0 GiB, the workspace 5.0 GiB");
  expect_named(pools(0, {.free = 20 * kGiB, .weights = 18 * kGiB}), "18.0 GiB may be used");
}

}  // namespace
}  // namespace hotset::actors
