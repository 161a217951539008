#include "kernels/cuda/selection/replaced_selection.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/kv_geometry.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/device_vectors.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/seed.h"

namespace hotset::kernels::cuda {
namespace {

using ReplacedSelection = GpuTest;
constexpr std::int64_t kStride = 2100;
constexpr std::int32_t kCanary = -77;
constexpr std::uint64_t kShare = std::uint64_t{1} << 29;  // an eighth

// Rows as top-k leaves them: forced blocks at both ends, the others evenly between.
struct Batch {
  std::vector<std::int32_t> selections, counts, lengths, block_tokens, sequences;
  std::vector<std::int64_t> blocks, first, last;

  void add(std::int64_t length, std::int32_t budget, std::int32_t sink, std::int32_t window, std::int32_t sequence,
           std::int32_t tokens = 1) {
    const std::int64_t total = ceil_div(length, std::int64_t{tokens});
    const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(budget, total));
    lengths.push_back(static_cast<std::int32_t>(length));
    blocks.push_back(total);
    first.push_back(std::min<std::int64_t>(sink, total));
    last.push_back(std::max(first.back(), total - window));
    block_tokens.push_back(tokens);
    sequences.push_back(sequence);
    counts.push_back(count);
    const std::size_t at = selections.size();
    selections.resize(at + kStride, kCanary);
    for (std::int64_t i = 0; i < count; ++i)
      selections[at + static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * total / std::max(count, 1));
    std::int32_t* const row = selections.data() + at;
    for (std::int64_t i = 0; i < first.back() && i < count; ++i) row[i] = static_cast<std::int32_t>(i);
    for (std::int64_t i = 1; i <= total - last.back() && i <= count; ++i)
      row[count - i] = static_cast<std::int32_t>(total - i);
  }
  [[nodiscard]] std::size_t rows() const { return counts.size(); }
  [[nodiscard]] std::vector<std::int32_t> row(std::size_t index) const {
    const auto begin = selections.begin() + static_cast<std::ptrdiff_t>(index * kStride);
    return {begin, begin + counts[index]};
  }
};

// What the launch makes of the batch; the canaries behind the rows are checked.
template <class Launch>
Batch launched(const Batch& before, std::int32_t layer, const Launch& launch) {
  const auto selections = to_device(before.selections);
  const auto counts = to_device(before.counts), lengths = to_device(before.lengths);
  const auto tokens = to_device(before.block_tokens), sequences = to_device(before.sequences);
  const auto blocks = to_device(before.blocks), first = to_device(before.first), last = to_device(before.last);
  launch(ReplacedRows{.selections = selections.data(),
                      .counts = counts.data(),
                      .stride = kStride,
                      .lengths = lengths.data(),
                      .blocks = blocks.data(),
                      .first = first.data(),
                      .last = last.data(),
                      .block_tokens = tokens.data(),
                      .sequences = sequences.data(),
                      .sequence_stride = 1,
                      .layer = layer,
                      .rows = static_cast<std::int32_t>(before.rows())});
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  Batch after = before;
  selections.download(after.selections.data(), after.selections.size());
  counts.download(after.counts.data(), after.counts.size());
  for (std::size_t row = 0; row < after.rows(); ++row) {
    for (std::int64_t i = before.counts[row]; i < kStride; ++i)
      EXPECT_EQ(after.selections[row * kStride + static_cast<std::size_t>(i)], kCanary) << "row " << row << ", " << i;
  }
  return after;
}

TEST_F(ReplacedSelection, ChurnIsTheFormula) {
  Batch batch;
  batch.add(32700, 2048, 4, 64, 9);
  batch.add(2048, 2048, 0, 0, 10);  // everything
  batch.add(0, 0, 4, 64, 11);       // padding
  batch.add(5001, 68, 4, 64, 12);   // forced ones alone
  batch.add(5000, 100, 0, 0, -3);
  const Batch after =
      launched(batch, 5, [](const ReplacedRows& rows) { launch_churn({.rows = rows, .share = kShare}, nullptr); });
  EXPECT_EQ(after.counts, batch.counts);
  for (std::size_t row = 0; row < batch.rows(); ++row) {
    SCOPED_TRACE(row);
    std::vector<std::int32_t> expected = batch.row(row);
    const std::int64_t competing = batch.last[row] - batch.first[row];
    const std::int64_t chosen = batch.counts[row] - (batch.blocks[row] - competing);
    for (std::int64_t i = 0; i < chosen; ++i) {
      expected[static_cast<std::size_t>(batch.first[row] + i)] = static_cast<std::int32_t>(churned_block(
          churn_seed(5, batch.sequences[row]), kShare, batch.lengths[row], i, batch.first[row], competing / chosen));
    }
    EXPECT_EQ(after.row(row), expected);
    EXPECT_TRUE(std::is_sorted(expected.begin(), expected.end(), std::less_equal<>())) << "ascending, unique";
  }
}

TEST_F(ReplacedSelection, RecordedRowsAreSpreadAndThinned) {
  std::mt19937_64 random(test_seed());
  // Two sequences of 2 layers, 3 and 1 rows, of recorded lengths near 3,000.
  std::vector<RecordedSequence> sequences{{0, 3000, 3}, {6, 2990, 1}};
  std::vector<RecordedRow> rows;
  std::vector<std::int32_t> blocks;
  for (const RecordedSequence& sequence : sequences) {
    for (std::int32_t i = 0; i < 2 * sequence.rows; ++i) {
      const auto total = static_cast<std::int32_t>(sequence.first_length) + i % sequence.rows;
      const std::int32_t count = 1 + static_cast<std::int32_t>(random() % 2500);
      std::vector<std::int32_t> all(static_cast<std::size_t>(total)), some;
      std::iota(all.begin(), all.end(), 0);
      std::sample(all.begin(), all.end(), std::back_inserter(some), count, random);
      rows.push_back({static_cast<std::int64_t>(blocks.size()), count, total});
      blocks.insert(blocks.end(), some.begin(), some.end());
    }
  }
  Batch batch;
  for (const std::int64_t length : {3000, 3001, 3005, 2999, 32000, 700, 2100}) {
    for (const std::int32_t sequence : {0, 1, 5, -1}) batch.add(length, 512, 4, 64, sequence);
  }
  batch.add(0, 0, 4, 64, 1);
  batch.add(400, 512, 4, 64, 1);      // everything
  batch.add(9000, 512, 0, 0, 1, 16);  // blocks of another size
  const auto sequences_there = to_device(sequences);
  const auto rows_there = to_device(rows);
  const auto blocks_there = to_device(blocks);
  const RecordedTables tables{.sequences = sequences_there.data(),
                              .rows = rows_there.data(),
                              .blocks = blocks_there.data(),
                              .sequence_count = 2,
                              .block_tokens = 1};
  const auto launch = [&](const ReplacedRows& replaced) {
    launch_recorded({.rows = replaced, .tables = tables, .recorded_layer = 1}, nullptr);
  };
  const Batch after = launched(batch, 7, launch);
  EXPECT_EQ(launched(batch, 7, launch).selections, after.selections);
  for (std::size_t row = 0; row < batch.rows(); ++row) {
    SCOPED_TRACE(row);
    std::vector<std::int32_t> expected = batch.row(row);
    const std::int64_t now = batch.blocks[row];
    if (batch.counts[row] > 0 && batch.counts[row] < now && batch.block_tokens[row] == 1) {
      const RecordedSequence& sequence = sequences[static_cast<std::uint32_t>(batch.sequences[row]) % 2];
      const RecordedRow& recorded =
          rows[static_cast<std::size_t>(sequence.first_row + sequence.rows +
                                        recorded_row(batch.lengths[row] - sequence.first_length, sequence.rows))];
      const std::int64_t taken = std::min(recorded.count, batch.counts[row]);
      const std::int64_t near = near_blocks(recorded.blocks, now, 1);
      expected.clear();
      for (std::int64_t i = 0; i < taken; ++i) {
        const auto block = static_cast<std::int32_t>(spread_block(
            blocks[static_cast<std::size_t>(recorded.at + i * recorded.count / taken)], recorded.blocks, now, near));
        if (expected.empty() || expected.back() != block) expected.push_back(block);
      }
    }
    EXPECT_EQ(after.row(row), expected);
    EXPECT_TRUE(std::is_sorted(expected.begin(), expected.end(), std::less_equal<>())) << "ascending, unique";
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
