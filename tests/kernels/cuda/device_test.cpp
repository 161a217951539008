// Label gpu. Memory of arenas and memory that grows: what they take, what they give back.
#include "kernels/cuda/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class DeviceMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!find_gpu().ok()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_F(DeviceMemory, SizesOfGrowingMemoryAreAtMostAnEighthTooLarge) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 10'000; ++i) {
    const auto bytes = static_cast<std::int64_t>(random() >> (24 + random() % 32));
    const std::int64_t size = GrowingMemory::size_for(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, std::max<std::int64_t>(bytes + bytes / 8, bytes + 256)) << bytes;
    EXPECT_EQ(GrowingMemory::size_for(size), size);
  }
  EXPECT_EQ(GrowingMemory::size_for(std::int64_t{1} << 30), std::int64_t{1} << 30);
}

TEST_F(DeviceMemory, WhatHasGrownTakesItsSizeAlone) {
  const std::int64_t before = held_device_bytes();
  {
    GrowingMemory growing;
    std::int64_t last = 0;
    for (std::int64_t bytes = 100; bytes < 40 * kMiB; bytes += bytes / 3) {
      const std::uint64_t moves = GrowingMemory::moves();
      void* const data = growing.reserve(bytes);
      EXPECT_EQ(growing.reserve(0), data);
      EXPECT_EQ(growing.reserve(bytes / 2), data);
      EXPECT_EQ(held_device_bytes() - before, GrowingMemory::size_for(bytes));
      EXPECT_EQ(GrowingMemory::moves() > moves, GrowingMemory::size_for(bytes) > last);
      last = GrowingMemory::size_for(bytes);
    }
  }
  EXPECT_EQ(held_device_bytes(), before);
}

TEST_F(DeviceMemory, AnArenaTakesLittleMoreThanItGives) {
  const std::int64_t before = held_device_bytes();
  std::mt19937_64 random(7);
  DeviceArena arena;
  std::vector<std::unique_ptr<Memory>> parts;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  std::int64_t given = 0;
  parts.push_back(arena.allocate(1000));
  EXPECT_LE(held_device_bytes() - before, 2 * kMiB);
  for (int i = 0; i < 400; ++i) {
    const auto bytes = static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (4 + random() % 22)));
    parts.push_back(arena.allocate(bytes));
    const auto at = reinterpret_cast<std::uintptr_t>(parts.back()->data());
    EXPECT_EQ(at % 256, 0U);
    ranges.emplace_back(at, at + static_cast<std::uintptr_t>(bytes));
    given += bytes;
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) EXPECT_GE(ranges[i].first, ranges[i - 1].second);
  EXPECT_LE(held_device_bytes() - before, given + given / 4 + 64 * kMiB);
  parts.clear();
  EXPECT_EQ(held_device_bytes(), before);
  const auto again = arena.allocate(kMiB);
  EXPECT_NE(again->data(), nullptr);
}

}  // namespace
}  // namespace hotset::kernels::cuda
