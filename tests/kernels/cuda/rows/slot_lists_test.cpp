// The lists of sparse::TieredKv: all_slots and selected_slots, with slots of the specification of the diff.
#include "kernels/cuda/slot_lists.h"

#include <set>

#include "core/concat.h"
#include "sparse/hot_buffer.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/rows/page_tables.h"

namespace hotset::kernels::cuda {
namespace {

using SlotLists = GpuTest;
constexpr std::int32_t kPoison = 0x5B5B5B5B;
constexpr std::int32_t kEverything = -1;

// One batch row. The blocks are ascending; slots: of the diff.
struct Sequence {
  TableShape shape;
  std::int64_t length = 0;
  bool everything = false;
  std::vector<std::int32_t> blocks{}, slots{};
};

std::vector<std::int32_t> random_blocks(Random& random, std::int64_t blocks, std::int64_t count) {
  std::set<std::int32_t> out;
  while (static_cast<std::int64_t>(out.size()) < std::min(count, blocks)) {
    out.insert(static_cast<std::int32_t>(random.integer(0, blocks - 1)));
  }
  return {out.begin(), out.end()};
}

Sequence resident(Random& random, std::int32_t block_tokens, std::int64_t length, std::int64_t selected) {
  Sequence out{.shape = {.tokens = length}, .length = length};
  out.blocks = random_blocks(random, ceil_div(length, block_tokens), selected);
  if (!out.blocks.empty()) out.blocks.back() = static_cast<std::int32_t>((length - 1) / block_tokens);
  return out;
}

// After a few steps: parts of the selection are in the buffer, parts in the ring.
Sequence hot(Random& random, std::int32_t block_tokens, std::int64_t hot_blocks, std::int64_t recent,
             std::int64_t length, std::int64_t selected) {
  const sparse::HotBufferShape shape = sparse::make_hot_buffer_shape(hot_blocks, block_tokens, recent).value();
  Sequence out{.shape = {.tokens = length,
                         .hot_blocks = shape.hot_blocks,
                         .block_tokens = shape.block_tokens,
                         .ring_tokens = shape.ring_tokens},
               .length = length};
  sparse::HotBuffer buffer(shape);
  sparse::SparseDiff diff;
  for (std::int64_t step = 3; step >= 0; --step) {
    const std::int64_t newest = std::max<std::int64_t>(length - 1 - step, 0);
    const std::int64_t blocks = newest / block_tokens + 1;
    out.blocks = random_blocks(random, blocks, selected);
    for (std::int64_t i = 0; i < 4 && static_cast<std::size_t>(i) < out.blocks.size(); ++i) {
      out.blocks[out.blocks.size() - 1 - static_cast<std::size_t>(i)] = static_cast<std::int32_t>(blocks - 1 - i);
    }
    std::ranges::sort(out.blocks);
    out.blocks.erase(std::unique(out.blocks.begin(), out.blocks.end()), out.blocks.end());
    buffer.diff(out.blocks, newest, diff);
  }
  out.slots = diff.slot_of;
  return out;
}

std::vector<std::int64_t> expected_list(const Sequence& sequence, const PageTables& tables, std::size_t at,
                                        std::int32_t block_tokens) {
  std::vector<std::int64_t> out;
  if (sequence.everything) {
    for (std::int64_t position = 0; position < sequence.length; ++position) {
      out.push_back(tables.resident_row(at, position));
    }
    return out;
  }
  for (std::size_t i = 0; i < sequence.blocks.size(); ++i) {
    for (std::int32_t offset = 0; offset < block_tokens; ++offset) {
      const std::int64_t position = std::int64_t{sequence.blocks[i]} * block_tokens + offset;
      if (position >= sequence.length) break;
      if (sequence.shape.hot_blocks == 0) {
        out.push_back(tables.resident_row(at, position));
      } else if (sequence.slots[i] < 0) {
        out.push_back(-1);
      } else if (sequence.slots[i] < sequence.shape.hot_blocks) {
        out.push_back(tables.buffer_row(at, std::int64_t{sequence.slots[i]} * block_tokens + offset));
      } else {
        out.push_back(tables.ring_row(at, position));
      }
    }
  }
  return out;
}

struct Lists {
  std::vector<std::int32_t> slots, counts;
};

// Batch rows [first, first + batch).
Lists device_lists(const std::vector<Sequence>& sequences, const PageTables& tables, std::int32_t block_tokens,
                   std::size_t first, std::size_t batch, std::int64_t max_count, std::int64_t stride,
                   bool without_selection = false) {
  std::size_t most = 1;
  for (const Sequence& sequence : sequences) most = std::max(most, sequence.blocks.size());
  std::vector<std::int32_t> lengths, blocks(batch * most, 1 << 30), block_counts, slot_of(batch * most, -1);
  for (std::size_t i = 0; i < batch; ++i) {
    const Sequence& sequence = sequences[first + i];
    lengths.push_back(static_cast<std::int32_t>(sequence.length));
    block_counts.push_back(sequence.everything ? kEverything : static_cast<std::int32_t>(sequence.blocks.size()));
    std::ranges::copy(sequence.blocks, blocks.begin() + static_cast<std::ptrdiff_t>(i * most));
    std::ranges::copy(sequence.slots, slot_of.begin() + static_cast<std::ptrdiff_t>(i * most));
  }
  const auto device_lengths = to_device(lengths);
  const auto device_blocks = to_device(blocks);
  const auto device_counts = to_device(block_counts);
  const auto device_slot_of = to_device(slot_of);
  DeviceBuffer<std::int32_t> slots(batch * static_cast<std::size_t>(stride)), counts(batch + 1);
  slots.fill_bytes(0x5B);
  counts.fill_bytes(0x5B);
  launch_slot_lists({.rows = tables.rows() + first,
                     .lengths = device_lengths.data(),
                     .blocks = without_selection ? nullptr : device_blocks.data(),
                     .block_counts = without_selection ? nullptr : device_counts.data(),
                     .slot_of = device_slot_of.data(),
                     .slots = slots.data(),
                     .counts = counts.data(),
                     .slot_stride = stride,
                     .max_count = max_count,
                     .max_selected = static_cast<std::int32_t>(most),
                     .block_tokens = block_tokens,
                     .batch = static_cast<std::int32_t>(batch)},
                    nullptr);
  return {to_host(slots), to_host(counts)};
}

void expect_lists(const std::vector<Sequence>& sequences, const PageTables& tables, std::int32_t block_tokens,
                  const Lists& got, std::size_t first, std::size_t batch, std::int64_t max_count, std::int64_t stride) {
  ASSERT_EQ(got.counts[batch], kPoison);
  for (std::size_t i = 0; i < batch; ++i) {
    const Sequence& sequence = sequences[first + i];
    std::vector<std::int64_t> expected = expected_list(sequence, tables, first + i, block_tokens);
    if (static_cast<std::int64_t>(expected.size()) > max_count) expected.resize(static_cast<std::size_t>(max_count));
    const std::string what =
        concat("B ", block_tokens, ", batch row ", first + i, ", length ", sequence.length, ", H ",
               sequence.shape.hot_blocks, ", ring ", sequence.shape.ring_tokens, ", stride ", stride);
    ASSERT_EQ(got.counts[i], static_cast<std::int32_t>(expected.size())) << what;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(stride); ++rank) {
      const std::int64_t slot = got.slots[i * static_cast<std::size_t>(stride) + rank];
      ASSERT_EQ(slot, rank < expected.size() ? expected[rank] : kPoison) << what << ", rank " << rank;
    }
  }
}

TEST_F(SlotLists, AsTheTieredKvMakesThem) {
  Random random;
  for (const std::int32_t block : {1, 2, 4, 16, 64}) {
    std::vector<Sequence> all;
    all.push_back(resident(random, block, 5000, 512 / block));
    all.push_back(hot(random, block, 2048 / block, 128, 9000, 1024 / block));
    all.push_back({.shape = {.tokens = 64}, .length = 0});  // padded
    all.push_back(hot(random, block, 2048 / block, 1000, 4001, 2048 / block));
    all.push_back(resident(random, block, 1, 1));
    all.push_back({.shape = {.tokens = 3001}, .length = 3001, .everything = true});
    all.push_back(hot(random, block, 256 / block + 1, 64, 130, 64 / block + 1));
    for (std::size_t i = 0; i < all.back().slots.size(); i += 2) all.back().slots[i] = -1;  // found no slot
    all.push_back({.shape = {.tokens = 700}, .length = 700});                               // selects nothing
    all.push_back(resident(random, block, 64 * 5, 64 * 5 / block));
    std::vector<TableShape> shapes;
    std::int64_t longest = 0;
    for (const Sequence& sequence : all) shapes.push_back(sequence.shape);
    const PageTables tables(shapes, random);
    for (std::size_t i = 0; i < all.size(); ++i) {
      longest = std::max(longest, static_cast<std::int64_t>(expected_list(all[i], tables, i, block).size()));
    }
    for (const std::int64_t max_count : {longest, longest + 1500, std::int64_t{130}, std::int64_t{1}}) {
      for (const std::int64_t stride : {round_up(max_count, 4), max_count + 3}) {
        const Lists got = device_lists(all, tables, block, 0, all.size(), max_count, stride);
        ASSERT_NO_FATAL_FAILURE(expect_lists(all, tables, block, got, 0, all.size(), max_count, stride));
        for (std::size_t i = 0; i < all.size(); ++i) {
          const Lists alone = device_lists(all, tables, block, i, 1, max_count, stride);
          ASSERT_NO_FATAL_FAILURE(expect_lists(all, tables, block, alone, i, 1, max_count, stride));
        }
      }
    }
  }
}

// A hot row without a selection has an empty list.
TEST_F(SlotLists, EverythingOfLongSequences) {
  Random random;
  std::vector<Sequence> all;
  for (const std::int64_t length : {131'072, 0, 131'071, 1, 63, 64, 65, 70'001}) {
    all.push_back({.shape = {.tokens = length}, .length = length, .everything = true});
  }
  std::vector<TableShape> shapes;
  for (const Sequence& sequence : all) shapes.push_back(sequence.shape);
  shapes.push_back({.tokens = 100, .hot_blocks = 64, .block_tokens = 1, .ring_tokens = 128});
  const PageTables tables(shapes, random);
  const Lists got = device_lists(all, tables, 1, 0, all.size(), 131'072, 131'072, true);
  ASSERT_NO_FATAL_FAILURE(expect_lists(all, tables, 1, got, 0, all.size(), 131'072, 131'072));
  all.push_back({.shape = shapes.back(), .length = 100, .everything = true});
  const Lists hot_row = device_lists(all, tables, 1, all.size() - 1, 1, 100, 100);
  EXPECT_EQ(hot_row.counts[0], 0);
  EXPECT_EQ(hot_row.slots[0], kPoison);
}

// Entries that no sequence has give holes and do not read outside the tables.
TEST_F(SlotLists, BlocksThatDoNotExistAreHoles) {
  Random random;
  const PageTables tables({{.tokens = 100}}, random);
  std::vector<Sequence> all(1);
  all[0] = {.shape = {.tokens = 100}, .length = 100, .blocks = {-1, 2, 7, 1 << 20}};
  const Lists got = device_lists(all, tables, 16, 0, 1, 64, 64);
  ASSERT_EQ(got.counts[0], 64);
  for (std::int64_t rank = 0; rank < 64; ++rank) {
    EXPECT_EQ(got.slots[static_cast<std::size_t>(rank)],
              rank / 16 == 1 ? tables.resident_row(0, 32 + rank % 16) : std::int64_t{-1})
        << rank;
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
