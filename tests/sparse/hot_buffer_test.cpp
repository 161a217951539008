#include "sparse/hot_buffer.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "sparse/selection.h"
#include "tests/sparse/allocation_counter.h"
#include "tests/sparse/random_selection.h"

namespace hotset::sparse {
namespace {

using Ints = std::vector<std::int32_t>;
using Misses = std::vector<Miss>;

constexpr std::int64_t kFar = 100'000;  // the ring is far away from the blocks that the scripts use

HotBuffer make_buffer(std::int64_t hot_blocks, std::int64_t block_tokens = 1, std::int64_t ring = 1) {
  return HotBuffer(make_hot_buffer_shape(hot_blocks, block_tokens, ring).value());
}
SparseDiff diff(HotBuffer& buffer, const Ints& selected, std::int64_t newest = kFar) {
  SparseDiff out;
  buffer.diff(selected, newest, out);
  return out;
}
Ints blocks(const HotBuffer& buffer) { return {buffer.block_of_slot().begin(), buffer.block_of_slot().end()}; }
Ints order(const HotBuffer& buffer) { return {buffer.lru().begin(), buffer.lru().end()}; }

TEST(HotBuffer, StartsEmpty) {
  const HotBuffer buffer = make_buffer(3);
  EXPECT_EQ(blocks(buffer), (Ints{-1, -1, -1}));
  EXPECT_EQ(order(buffer), (Ints{0, 1, 2}));
}

TEST(HotBuffer, Point1InvalidAndRepeatedEntriesChangeNothing) {
  HotBuffer buffer = make_buffer(4);
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const SparseDiff first = diff(buffer, {-1, 5, 5, 100'001, kLeast, kMost, 7, 5});
  EXPECT_EQ(first.slot_of, (Ints{-1, 0, -1, -1, -1, -1, 1, -1}));
  EXPECT_EQ(first.misses, (Misses{{5, 0, MissSource::kHost}, {7, 1, MissSource::kHost}}));
  EXPECT_EQ(first.hits, 0);

  const Ints blocks_before = blocks(buffer), order_before = order(buffer);
  const SparseDiff nothing = diff(buffer, {-1, kMost, kLeast, 100'001});
  EXPECT_EQ(nothing.slot_of, (Ints{-1, -1, -1, -1}));
  EXPECT_TRUE(nothing.misses.empty());
  EXPECT_EQ(blocks(buffer), blocks_before);
  EXPECT_EQ(order(buffer), order_before);

  // A repeated hit counts once, and a repeated ring hit too.
  const SparseDiff again = diff(buffer, {7, 7, 100'000, 100'000});
  EXPECT_EQ(again.slot_of, (Ints{1, -1, 4 + 100'000 % 65, -1}));
  EXPECT_EQ(again.hits, 1);
  EXPECT_EQ(again.ring_hits, 1);
}

TEST(HotBuffer, Point1TheLastBlockMayBePartlyFilled) {
  HotBuffer buffer = make_buffer(4, 16);
  // Block 62 starts at 992, block 63 at 1008.
  const SparseDiff out = diff(buffer, {62, 63}, 1000);
  EXPECT_EQ(out.slot_of, (Ints{4 + 992 % 80 / 16, -1}));
}

TEST(HotBuffer, Point2RingSlackAndHost) {
  HotBuffer buffer = make_buffer(4, 16, 128);
  ASSERT_EQ(buffer.shape().ring_tokens, 192);
  // Newest 128: 873 ... 1000, which block 54 (864 ... 879) still overlaps. The ring holds 809 ... 1000.
  const SparseDiff out = diff(buffer, {50, 51, 53, 54, 62}, 1000);
  EXPECT_EQ(out.slot_of, (Ints{0, 1, 2, 4 + 864 % 192 / 16, 4 + 992 % 192 / 16}));
  EXPECT_EQ(out.misses, (Misses{{50, 0, MissSource::kHost}, {51, 1, MissSource::kRing}, {53, 2, MissSource::kRing}}));
  EXPECT_EQ(out.ring_hits, 2);
  // Ring hits leave no trace.
  EXPECT_EQ(blocks(buffer), (Ints{50, 51, 53, -1}));
  EXPECT_EQ(order(buffer), (Ints{3, 0, 1, 2}));

  // Fifteen tokens later block 54 has left the newest 128, and block 51 the slack: it is in the buffer already.
  const SparseDiff later = diff(buffer, {51, 54}, 1007);
  EXPECT_EQ(later.slot_of, (Ints{1, 3}));
  EXPECT_EQ(later.misses, (Misses{{54, 3, MissSource::kRing}}));
  EXPECT_EQ(later.hits, 1);
}

TEST(HotBuffer, Point2ShortSequencesLieInTheRing) {
  HotBuffer buffer = make_buffer(2, 1, 4);
  for (std::int32_t newest = 0; newest < 4; ++newest) {
    Ints all(static_cast<std::size_t>(newest) + 1);
    std::iota(all.begin(), all.end(), 0);
    const SparseDiff out = diff(buffer, all, newest);
    EXPECT_EQ(out.ring_hits, newest + 1);
    EXPECT_EQ(out.slot_of.back(), 2 + newest);
  }
  EXPECT_EQ(blocks(buffer), (Ints{-1, -1}));
}

TEST(HotBuffer, Point3AHitKeepsItsSlot) {
  HotBuffer buffer = make_buffer(3);
  (void)diff(buffer, {10, 20, 30});
  const SparseDiff out = diff(buffer, {30, 10});
  EXPECT_EQ(out.slot_of, (Ints{2, 0}));
  EXPECT_EQ(out.hits, 2);
  EXPECT_TRUE(out.misses.empty());
}

TEST(HotBuffer, Point4VictimsAreTheLeastRecentThatAreNotSelected) {
  HotBuffer buffer = make_buffer(3);
  (void)diff(buffer, {10, 20, 30});
  // Slot 0 is the least recent, but its block comes later in this selection.
  const SparseDiff out = diff(buffer, {90, 10});
  EXPECT_EQ(out.slot_of, (Ints{1, 0}));
  EXPECT_EQ(out.misses, (Misses{{90, 1, MissSource::kHost}}));
  EXPECT_EQ(blocks(buffer), (Ints{10, 90, 30}));
}

TEST(HotBuffer, Point4VictimsInTheOrderOfTheSelection) {
  HotBuffer buffer = make_buffer(3);
  (void)diff(buffer, {10, 20, 30});
  (void)diff(buffer, {20});
  ASSERT_EQ(order(buffer), (Ints{0, 2, 1}));
  const SparseDiff out = diff(buffer, {99, 5, 50});
  EXPECT_EQ(out.slot_of, (Ints{0, 2, 1}));
  EXPECT_EQ(blocks(buffer), (Ints{99, 50, 5}));
  EXPECT_EQ(out.misses.size(), 3U);
  EXPECT_EQ(out.hits, 0);
}

TEST(HotBuffer, Point5NewOrder) {
  HotBuffer buffer = make_buffer(5);
  (void)diff(buffer, {10, 20, 30, 40, 50});
  ASSERT_EQ(order(buffer), (Ints{0, 1, 2, 3, 4}));
  // Hits 3 and 1 keep the order they had, whatever the selection's.
  const SparseDiff out = diff(buffer, {40, 60, 20, 70});
  EXPECT_EQ(out.slot_of, (Ints{3, 0, 1, 2}));
  EXPECT_EQ(order(buffer), (Ints{4, 0, 2, 1, 3}));
}

TEST(HotBuffer, Point6AnEmptySelectionChangesNothing) {
  HotBuffer buffer = make_buffer(2);
  (void)diff(buffer, {10, 20});
  (void)diff(buffer, {10});
  const SparseDiff out = diff(buffer, {});
  EXPECT_TRUE(out.slot_of.empty());
  EXPECT_EQ(order(buffer), (Ints{1, 0}));
  EXPECT_EQ(blocks(buffer), (Ints{10, 20}));
}

TEST(HotBuffer, Point6PositionsAre64Bit) {
  HotBuffer buffer = make_buffer(2, 64, 64);
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kFirst = std::int64_t{kLast} * 64;
  const SparseDiff out = diff(buffer, {kLast, kLast - 1, kLast - 3}, kFirst + 5);
  EXPECT_EQ(out.slot_of, (Ints{static_cast<std::int32_t>(2 + kFirst % 128 / 64),
                               static_cast<std::int32_t>(2 + (kFirst - 64) % 128 / 64), 0}));
  EXPECT_EQ(out.misses, (Misses{{kLast - 3, 0, MissSource::kHost}}));
}

TEST(HotBuffer, MoreBlocksThanSlotsLeaveHolesThatAreCounted) {
  HotBuffer buffer = make_buffer(2);
  (void)diff(buffer, {10, 20});
  const SparseDiff out = diff(buffer, {30, 40, 50, 20, 100'000});
  EXPECT_EQ(out.slot_of, (Ints{0, -1, -1, 1, 2 + 100'000 % 65}));
  EXPECT_EQ(out.unplaced, 2);
  EXPECT_EQ(out.misses, (Misses{{30, 0, MissSource::kHost}}));
  EXPECT_EQ(blocks(buffer), (Ints{30, 20}));
  EXPECT_EQ(diff(buffer, {20, 30}).unplaced, 0);
}

TEST(HotBuffer, SteadyStateAllocatesNothing) {
  HotBuffer buffer = make_buffer(64, 1, 16);
  Ints selected(64);
  SparseDiff out;
  std::int64_t before = 0;
  for (std::int32_t step = 0; step < 1000; ++step) {
    // The first step misses everywhere, which is the most that the vectors ever hold.
    for (std::int32_t i = 0; i < 64; ++i) selected[static_cast<std::size_t>(i)] = i * 100 + step * 7919 % 97;
    buffer.diff(selected, kFar + step, out);
    if (step == 0) before = allocations;
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(out.unplaced, 0);
}

TEST(HotBufferShapeTest, RingIsRoundedUpToBlocks) {
  EXPECT_EQ(make_hot_buffer_shape(1, 1, 1).value().ring_tokens, 65);
  EXPECT_EQ(make_hot_buffer_shape(1, 64, 1).value().ring_tokens, 128);
  EXPECT_EQ(make_hot_buffer_shape(9, 16, 128).value().ring_tokens, 192);
  EXPECT_EQ(make_hot_buffer_shape(9, 16, 100).value().ring_tokens, 176);
}

TEST(HotBufferShapeTest, ErrorsNameTheOption) {
  for (const std::int64_t block : {-1, 0, 3, 48, 65, 128})
    EXPECT_EQ(make_hot_buffer_shape(4, block, 128).error().param, "--sparse-block") << block;
  for (const std::int64_t ring : {std::int64_t{-1}, std::int64_t{0}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(make_hot_buffer_shape(4, 16, ring).error().param, "--hot-ring") << ring;
  for (const std::int64_t count : {std::int64_t{0}, std::numeric_limits<std::int64_t>::max()})
    EXPECT_EQ(make_hot_buffer_shape(count, 16, 128).error().param, "--sparse-window") << count;
}

TEST(HotBufferShapeTest, FollowsTheAlgorithm) {
  const auto streaming = make_streaming(16, 112).value();
  EXPECT_EQ(hot_buffer_shape_for(*streaming, std::nullopt).value(),
            (HotBufferShape{.hot_blocks = 9, .block_tokens = 16, .ring_recent = 128, .ring_tokens = 192}));
  EXPECT_EQ(hot_buffer_shape_for(*streaming, 112).value().ring_recent, 112);
  const Error refused = hot_buffer_shape_for(*streaming, 111).error();
  EXPECT_EQ(refused.param, "--hot-ring");
  EXPECT_NE(refused.message.find("112"), std::string::npos);
  EXPECT_EQ(hot_buffer_shape_for(*make_streaming(16, 300).value(), std::nullopt).value().ring_recent, 300);
  EXPECT_EQ(hot_buffer_shape_for(RandomSelection(1, 8, 20), 1).value(),
            (HotBufferShape{.hot_blocks = 40, .block_tokens = 8, .ring_recent = 1, .ring_tokens = 72}));
}

TEST(HotBufferShapeTest, AGivenBufferHoldsAWholeSelection) {
  const RandomSelection algorithm(1, 8, 20);
  EXPECT_EQ(hot_buffer_shape_for(algorithm, 1, 160).value().hot_blocks, 20);
  EXPECT_EQ(hot_buffer_shape_for(algorithm, 1, 167).value().hot_blocks, 20);
  EXPECT_EQ(hot_buffer_shape_for(algorithm, 1, 168).value().hot_blocks, 21);
  for (const std::int64_t tokens :
       {std::int64_t{-1}, std::int64_t{0}, std::int64_t{159}, std::numeric_limits<std::int64_t>::max()}) {
    const Error refused = hot_buffer_shape_for(algorithm, 1, tokens).error();
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.param, "--hot-buffer");
    EXPECT_NE(refused.message.find("160"), std::string::npos);
  }
  // Twice a budget that is already near the limit: as many as there can be.
  EXPECT_EQ(hot_buffer_shape_for(RandomSelection(1, 1, std::int64_t{1} << 29), 1).value().hot_blocks, 1 << 29);
  EXPECT_EQ(hot_buffer_shape_for(*make_streaming(16, 112).value(), 112, 160).value().hot_blocks, 10);
}

TEST(HotBufferDeathTest, AShapeThatNobodyMadeIsRefused) {
  EXPECT_DEATH(HotBuffer{HotBufferShape{}}, "make_hot_buffer_shape");
}

}  // namespace
}  // namespace hotset::sparse
