// Label gpu. Captured launches: replayed, few, and never with an address that is no longer theirs.
#include "model/decode_graphs.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace hotset::model {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int64_t kBytes = 64;

class DecodeGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::find_gpu().ok()) GTEST_SKIP() << "no GPU here";
    stream_.emplace();
    copy_ = cuda::allocate_pinned(kBytes);
  }
  // A step of `rows` fills `memory` with that number. Returns how often it was launched one by one or captured.
  int run(DecodeGraphs& graphs, std::int32_t rows, void* memory) {
    int launched = 0;
    graphs.run({.rows = rows}, *stream_, [&] {
      ++launched;
      stream_->fill_bytes(memory, rows, kBytes);
    });
    return launched;
  }
  int byte_of(const void* memory) {
    stream_->copy(memory, copy_->data(), kBytes);
    stream_->synchronize();
    return *static_cast<const unsigned char*>(copy_->data());
  }

  std::optional<cuda::DeviceStream> stream_;
  std::unique_ptr<kernels::Memory> copy_;
};

TEST_F(DecodeGraphsTest, AShapeIsLaunchedThenCapturedThenReplayed) {
  cuda::DeviceArena arena;
  const auto memory = arena.allocate(kBytes);
  DecodeGraphs graphs(4);
  EXPECT_EQ(run(graphs, 1, memory->data()), 1);
  EXPECT_EQ(graphs.captured(), 0U);
  EXPECT_EQ(run(graphs, 1, memory->data()), 1);
  EXPECT_EQ(graphs.captured(), 1U);
  EXPECT_EQ(run(graphs, 2, memory->data()), 1);
  EXPECT_EQ(byte_of(memory->data()), 2);
  EXPECT_EQ(run(graphs, 1, memory->data()), 0);
  EXPECT_EQ(byte_of(memory->data()), 1);
  EXPECT_EQ(graphs.replays(), 2U);
}

TEST_F(DecodeGraphsTest, TheLeastRecentlyUsedGo) {
  cuda::DeviceArena arena;
  const auto memory = arena.allocate(kBytes);
  DecodeGraphs graphs(3);
  for (const std::int32_t rows : {1, 2, 3, 1, 2, 3}) run(graphs, rows, memory->data());
  EXPECT_EQ(graphs.captured(), 3U);
  EXPECT_EQ(run(graphs, 1, memory->data()), 0);  // 2 is the oldest now
  EXPECT_EQ(run(graphs, 4, memory->data()), 1);
  EXPECT_EQ(graphs.shapes(), 3U);
  EXPECT_EQ(run(graphs, 3, memory->data()), 0);
  EXPECT_EQ(run(graphs, 1, memory->data()), 0);
  EXPECT_EQ(run(graphs, 2, memory->data()), 1);  // again as if it were new; 4 goes
  EXPECT_EQ(byte_of(memory->data()), 2);
  EXPECT_EQ(run(graphs, 3, memory->data()), 0);
  for (std::int32_t rows = 10; rows < 60; ++rows) run(graphs, rows, memory->data());
  EXPECT_EQ(graphs.shapes(), 3U);
  EXPECT_EQ(byte_of(memory->data()), 59);
}

TEST_F(DecodeGraphsTest, MemoryThatMovesVoidsWhatWasCaptured) {
  cuda::GrowingMemory growing;
  DecodeGraphs graphs(4);
  run(graphs, 1, growing.reserve(kBytes));
  run(graphs, 1, growing.reserve(kBytes));
  EXPECT_EQ(run(graphs, 1, growing.reserve(kBytes)), 0);
  void* const memory = growing.reserve(std::int64_t{8} << 20);
  EXPECT_EQ(byte_of(memory), 0);
  EXPECT_EQ(run(graphs, 1, memory), 1);  // captured anew
  EXPECT_EQ(byte_of(memory), 1);
  EXPECT_EQ(run(graphs, 1, memory), 0);
}

// The device has no memory for a graph: the step runs one by one, and the next time there is room.
TEST_F(DecodeGraphsTest, AShapeThatCannotBeCapturedIsLaunched) {
  cuda::DeviceArena arena;
  const auto memory = arena.allocate(kBytes);
  DecodeGraphs graphs(4);
  for (const std::int32_t rows : {1, 1, 2}) run(graphs, rows, memory->data());
  EXPECT_EQ(graphs.captured(), 1U);
  bool full = true;
  int starts = 0;
  graphs.run(
      {.rows = 2}, *stream_,
      [&] {
        if (std::exchange(full, false)) throw std::bad_alloc();
        stream_->fill_bytes(memory->data(), 7, kBytes);
      },
      [&] { ++starts; });
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(byte_of(memory->data()), 7);
  EXPECT_EQ(graphs.captured(), 0U);
  EXPECT_EQ(run(graphs, 2, memory->data()), 1);
  EXPECT_EQ(run(graphs, 2, memory->data()), 0);
  EXPECT_EQ(graphs.captured(), 1U);
}

}  // namespace
}  // namespace hotset::model
