#include "sparse/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "sparse/hot_buffer.h"
#include "tests/seed.h"

namespace hotset::sparse {
namespace {

struct Row {
  std::int64_t position = 0;
  std::vector<std::int32_t> blocks;
};
using Rows = std::vector<Row>;

SelectionRecord record_of(const Row& row, std::int32_t block_tokens = 1, std::int32_t layer = 0,
                          std::uint64_t sequence = 1) {
  SelectionRecord record;
  record.sequence = SequenceId{sequence};
  record.layer = LayerId{layer};
  record.position = row.position;
  record.block_tokens = block_tokens;
  record.blocks = row.blocks;
  return record;
}

void add(SelectionHistory& history, const Rows& rows, std::int32_t block_tokens = 1, std::int32_t layer = 0,
         std::uint64_t sequence = 1) {
  for (const Row& row : rows) ASSERT_TRUE(history.add(record_of(row, block_tokens, layer, sequence)).ok());
}

ReplayOptions options_of(std::vector<std::int64_t> sizes, std::int64_t hot_ring, std::int64_t skip) {
  return {std::move(sizes), {ReplayPolicy::kLru, ReplayPolicy::kBelady}, hot_ring, skip};
}

ReplayResult run(const SelectionHistory& history, const ReplayOptions& options) {
  auto result = replay(history, options);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result).value() : ReplayResult{};
}

std::vector<std::int32_t> from_to(std::int32_t first, std::int32_t end) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(end - first));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Selections of up to `most` of the blocks below `blocks`, at positions that follow each other from `first` on.
Rows random_rows(std::mt19937_64& random, std::int64_t first, std::size_t count, std::int32_t blocks,
                 std::size_t most) {
  const std::vector<std::int32_t> all = from_to(0, blocks);
  Rows rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i].position = first + static_cast<std::int64_t>(i);
    const std::size_t size = std::uniform_int_distribution<std::size_t>(0, most)(random);
    std::ranges::sample(all, std::back_inserter(rows[i].blocks), static_cast<std::ptrdiff_t>(size), random);
  }
  return rows;
}

// The least counted misses of any policy, by trying every content of the buffer after every row.
std::int64_t fewest_misses(const Rows& rows, const HotBufferShape& shape, std::size_t skip) {
  std::map<std::uint32_t, std::int64_t> reached{{0, 0}};  // blocks in the buffer as bits -> fewest misses so far
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::uint32_t placed = 0;
    std::uint32_t costly = 0;
    for (const std::int32_t block : rows[i].blocks) {
      if (block + 1 > rows[i].position + 1 - shape.ring_recent) continue;
      placed |= 1U << block;
      if (block <= rows[i].position - shape.ring_tokens) costly |= 1U << block;
    }
    std::map<std::uint32_t, std::int64_t> next;
    for (const auto& [content, misses] : reached) {
      const std::int64_t after = misses + (i < skip ? 0 : std::popcount(costly & ~content));
      const std::uint32_t others = content & ~placed;
      for (std::uint32_t kept = others;; kept = (kept - 1) & others) {  // every subset of the others
        if (std::popcount(kept | placed) <= shape.hot_blocks) {
          const auto [at, added] = next.try_emplace(kept | placed, after);
          if (!added) at->second = std::min(at->second, after);
        }
        if (kept == 0) break;
      }
    }
    reached = std::move(next);
  }
  return std::ranges::min_element(reached, {}, [](const auto& entry) { return entry.second; })->second;
}

TEST(Replay, BeladyIsTheBestOfAllPolicies) {
  std::mt19937_64 random(test_seed(20'260'402));
  std::int64_t better_than_lru = 0;
  std::int64_t copies = 0;
  for (int round = 0; round < 1'500; ++round) {
    // From 64 + ring on the first blocks leave the slack while the rows go on.
    const std::int64_t ring = std::uniform_int_distribution<std::int64_t>(1, 3)(random);
    const std::int64_t first = round % 2 == 0 ? 1'000 : 62 + ring;
    const Rows rows = random_rows(random, first, 9, 8, 4);
    const std::size_t skip = round % 3;
    SelectionHistory history;
    add(history, rows);
    if (history.budget_tokens() == 0) continue;
    const std::int64_t size = history.budget_tokens() + std::uniform_int_distribution<std::int64_t>(0, 3)(random);
    const ReplayResult result = run(history, options_of({size}, ring, static_cast<std::int64_t>(skip)));
    const ReplayCounts& lru = result.runs[0].layers[0].counts;
    const ReplayCounts& belady = result.runs[1].layers[0].counts;
    ASSERT_EQ(belady.misses, fewest_misses(rows, make_hot_buffer_shape(size, 1, ring).value(), skip)) << round;
    ASSERT_LE(belady.misses, lru.misses);
    better_than_lru += belady.misses < lru.misses ? 1 : 0;
    copies += lru.ring_copies;
  }
  EXPECT_GT(better_than_lru, 100);
  EXPECT_GT(copies, 100);
}

TEST(Replay, LruCountsAreThoseOfTheHotBuffer) {
  std::mt19937_64 random(test_seed(20'260'402));
  for (const std::int32_t block_tokens : {1, 4, 16}) {
    SelectionHistory history;
    std::vector<Rows> layers;
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      layers.push_back(random_rows(random, 40 * block_tokens, 400, 40, 12));
      add(history, layers.back(), block_tokens, layer);
    }
    constexpr std::int64_t kRing = 20;
    constexpr std::int64_t kSkip = 5;
    const std::vector<std::int64_t> sizes{12 * block_tokens, 20 * block_tokens, 40 * block_tokens,
                                          1'000 * block_tokens};
    const ReplayResult result = run(history, options_of(sizes, kRing, kSkip));
    ASSERT_EQ(result.runs.size(), 2 * sizes.size());
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      EXPECT_EQ(result.runs[s].hot_buffer_tokens, sizes[s]);
      ASSERT_EQ(result.runs[s].layers.size(), layers.size());
      std::vector<std::int64_t> row_misses;
      for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        HotBuffer buffer(make_hot_buffer_shape(sizes[s] / block_tokens, block_tokens, kRing).value());
        SparseDiff diff;
        ReplayCounts expected;
        for (std::size_t i = 0; i < layers[layer].size(); ++i) {
          buffer.diff(layers[layer][i].blocks, layers[layer][i].position, diff);
          if (i < kSkip) continue;
          std::int64_t from_host = 0;
          for (const Miss& miss : diff.misses) from_host += miss.source == MissSource::kHost ? 1 : 0;
          ++expected.rows;
          expected.selected += static_cast<std::int64_t>(layers[layer][i].blocks.size());
          expected.misses += from_host;
          expected.ring_copies += static_cast<std::int64_t>(diff.misses.size()) - from_host;
          row_misses.push_back(from_host);
        }
        const ReplayCounts& counts = result.runs[s].layers[layer].counts;
        EXPECT_EQ(counts.rows, expected.rows);
        EXPECT_EQ(counts.selected, expected.selected);
        EXPECT_EQ(counts.misses, expected.misses);
        EXPECT_EQ(counts.ring_copies, expected.ring_copies);
      }
      std::ranges::sort(row_misses);
      const auto rank = [&](double share) {
        return row_misses[static_cast<std::size_t>(std::ceil(share * static_cast<double>(row_misses.size()))) - 1];
      };
      EXPECT_EQ(result.runs[s].median_misses, rank(0.50));
      EXPECT_EQ(result.runs[s].p99_misses, rank(0.99));
    }
    // Nothing is ever evicted from a buffer for every block, so no policy is better.
    EXPECT_EQ(result.runs[3].layers[0].counts.misses, result.runs[7].layers[0].counts.misses);
  }
}

// Each row gives up the c oldest blocks and takes c that were never there: c misses at any size, under any policy.
TEST(Replay, ChurnOfNewBlocksMissesItsShareAtEverySize) {
  constexpr std::int32_t kBlocks = 64, kChurn = 16, kRows = 50;
  SelectionHistory history;
  for (std::int32_t layer = 0; layer < 2; ++layer)
    for (std::int32_t i = 0; i < kRows; ++i) {
      const Row row{5'000 + i, from_to(i * kChurn, i * kChurn + kBlocks)};
      ASSERT_TRUE(history.add(record_of(row, 1, layer)).ok());
    }
  const ReplayResult result = run(history, options_of({kBlocks, 2 * kBlocks, 1'000'000'000'000}, 128, 1));
  ASSERT_EQ(result.runs.size(), 6U);
  for (const ReplayRun& each : result.runs) {
    EXPECT_EQ(each.median_misses, kChurn);
    EXPECT_EQ(each.p99_misses, kChurn);
    for (const LayerReplay& layer : each.layers) {
      EXPECT_EQ(layer.counts.rows, kRows - 1);
      EXPECT_DOUBLE_EQ(layer.counts.miss_share(), 0.25);
      EXPECT_EQ(layer.counts.ring_copies, 0);
    }
  }
  ASSERT_EQ(result.locality.size(), 2U);
  EXPECT_DOUBLE_EQ(result.locality[0].kept, 0.75);
  EXPECT_TRUE(std::isnan(result.locality[0].shared));
  EXPECT_DOUBLE_EQ(result.locality[1].shared, 1.0);
}

// One block a row, H + 1 blocks in turn: LRU always throws out the one that is needed next; the best policy misses once
// in H rows.
TEST(Replay, ARoundThatDoesNotFitIsWhereLruIsWorst) {
  constexpr std::int32_t kSlots = 7;
  constexpr std::int32_t kRounds = 100;
  SelectionHistory history;
  Rows rows;
  for (std::int32_t i = 0; i < kRounds * (kSlots + 1); ++i) rows.push_back({9'000 + i, {i % (kSlots + 1)}});
  add(history, rows);
  const ReplayResult result = run(history, options_of({kSlots, kSlots + 1}, 1, kSlots + 1));
  const auto misses = [&](std::size_t i) { return result.runs[i].layers[0].counts.misses; };
  const std::int64_t counted = (kRounds - 1) * (kSlots + 1);
  EXPECT_EQ(misses(0), counted);
  EXPECT_EQ(misses(1), 0);
  EXPECT_NEAR(static_cast<double>(misses(2)), static_cast<double>(counted) / kSlots, 2.0);
  EXPECT_EQ(misses(3), 0);
}

TEST(Replay, NewRowsAreRingHitsAndThenCopiesNotMisses) {
  // The query's own row, the one that left the newest 4 just now, and one old block.
  SelectionHistory history;
  Rows rows;
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto position = static_cast<std::int32_t>(200 + i);
    rows.push_back({position, {3, position - 4, position}});
  }
  add(history, rows);
  const ReplayResult result = run(history, options_of({3}, 4, 0));
  for (const ReplayRun& each : result.runs) {
    EXPECT_EQ(each.layers[0].counts.selected, 300);
    EXPECT_EQ(each.layers[0].counts.misses, 1) << "the old block, once";
    EXPECT_EQ(each.layers[0].counts.ring_copies, 100);
  }
  EXPECT_EQ(run(history, options_of({3}, 4, 1)).runs[0].layers[0].counts.misses, 0);
  EXPECT_TRUE(run(history, options_of({3}, 4, 500)).runs[0].layers[0].counts.rows == 0);
}

TEST(Replay, LayersAndSequencesAreApart) {
  SelectionHistory history;
  // Layer 0 selects the same, layer 2 always something new, in both sequences; layer 1 is missing.
  for (const std::uint64_t sequence : {7, 3})
    for (std::int32_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(history.add(record_of({1'000 + i, {1, 2}}, 1, 0, sequence)).ok());
      ASSERT_TRUE(history.add(record_of({1'000 + i, {2 * i, 2 * i + 1}}, 1, 2, sequence)).ok());
    }
  EXPECT_EQ(history.sequences(), 2U);
  EXPECT_EQ(history.rows(), 40);
  EXPECT_EQ(history.budget_tokens(), 2);
  const ReplayResult result = run(history, options_of({2}, 1, 0));
  ASSERT_EQ(result.runs[0].layers.size(), 2U);
  EXPECT_EQ(result.runs[0].layers[0].layer, LayerId{0});
  EXPECT_EQ(result.runs[0].layers[0].counts.misses, 2 * 2);
  EXPECT_EQ(result.runs[0].layers[1].layer, LayerId{2});
  EXPECT_EQ(result.runs[0].layers[1].counts.misses, 2 * 20);
  EXPECT_DOUBLE_EQ(result.locality[0].kept, 1.0);
  EXPECT_DOUBLE_EQ(result.locality[1].kept, 0.0);
  EXPECT_TRUE(std::isnan(result.locality[1].shared)) << "the layer before it is not there";
}

TEST(Replay, SharedWithTheLayerBeforeComparesTheSameToken) {
  SelectionHistory history;
  add(history, {{1'000, {1, 2, 3, 4}}, {1'002, {5, 6, 7, 8}}}, 1, 0);
  add(history, {{1'000, {3, 4, 5, 6}}, {1'001, {5, 6, 7, 8}}, {1'002, {5, 6, 7, 8}}}, 1, 1);
  const ReplayResult result = run(history, options_of({4}, 1, 0));
  EXPECT_DOUBLE_EQ(result.locality[1].shared, (2.0 + 4.0) / 8.0);
  EXPECT_DOUBLE_EQ(result.locality[1].kept, (2.0 + 4.0) / 8.0);
}

TEST(Replay, PromptsAndFullAttentionAreNotDecodeSelections) {
  SelectionHistory history;
  SelectionRecord prefill = record_of({500, {1, 2, 3}});
  prefill.prefill = true;
  SelectionRecord everything = record_of({501, {}});
  everything.everything = true;
  ASSERT_TRUE(history.add(prefill).ok());
  ASSERT_TRUE(history.add(everything).ok());
  EXPECT_TRUE(history.empty());
  ASSERT_TRUE(history.add(record_of({502, {1}}, 16)).ok());
  EXPECT_EQ(history.rows(), 1);
  EXPECT_EQ(history.budget_tokens(), 16);
}

TEST(Replay, RowsThatDontFollowEachOtherAreRefused) {
  SelectionHistory history;
  ASSERT_TRUE(history.add(record_of({502, {1}}, 16)).ok());
  EXPECT_NE(history.add(record_of({502, {1}}, 16)).error().message.find("sequence 1, layer 0: position 502"),
            std::string::npos);
  EXPECT_FALSE(history.add(record_of({501, {1}}, 16)).ok());
  EXPECT_FALSE(history.add(record_of({503, {1}}, 8)).ok());
  EXPECT_TRUE(history.add(record_of({503, {1}}, 16)).ok());
}

TEST(Replay, SizesAndRingsThatCantBeAreRefusedByName) {
  SelectionHistory history;
  add(history, {{1'000, {1, 2, 3, 4}}}, 16);
  const auto param = [&](std::int64_t size, std::int64_t ring) {
    const auto result = replay(history, options_of({size}, ring, 0));
    return result.ok() ? std::string() : result.error().param;
  };
  EXPECT_EQ(param(63, 128), "--hot-buffer");
  EXPECT_EQ(param(64, 128), "");
  EXPECT_EQ(param(64, 0), "--hot-ring");
  EXPECT_EQ(param(std::numeric_limits<std::int64_t>::max() / 2, 128), "");
}

}  // namespace
}  // namespace hotset::sparse
