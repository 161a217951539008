// The diff on the device against its specification, step by step: outputs, every state array, and what must stay as it
// was.
#include <cstring>
#include <memory>
#include <numeric>

#include "core/concat.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/sparse_diff.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/hot_sequences.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kPoison = 0x5B;
constexpr std::int32_t kPoison32 = 0x5B5B5B5B;
constexpr std::uint16_t kPoison16 = 0x5B5B;

using SparseDiffTest = GpuTest;

template <class T>
std::vector<T> downloaded(const DeviceBuffer<T>& buffer) {
  std::vector<T> values(buffer.size());
  buffer.download(values.data(), values.size());
  return values;
}

// A batch of sequences and its arrays on the device. Every state array has one poisoned place behind H.
class DiffBatch {
 public:
  DiffBatch(std::vector<std::unique_ptr<HotSequence>> sequences, std::int32_t most_selected, std::int32_t most_blocks)
      : sequences_(std::move(sequences)),
        stride_(most_blocks + 1),
        blocks_(sequences_.size() * stride_),
        lru_(sequences_.size() * stride_),
        rows_(sequences_.size()),
        lengths_(sequences_.size()),
        selected_(sequences_.size() * most_selected),
        selected_counts_(sequences_.size()),
        slot_of_(selected_.size()),
        misses_(selected_.size()),
        counts_(sequences_.size()) {
    std::vector<std::int32_t> blocks(blocks_.size(), kPoison32);
    std::vector<std::uint16_t> lru(lru_.size(), kPoison16);
    std::vector<HotRow> rows(sequences_.size());
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      const sparse::HotBufferShape& shape = sequences_[b]->shape();
      std::fill_n(blocks.begin() + b * stride_, shape.hot_blocks, -1);
      std::iota(lru.begin() + b * stride_, lru.begin() + b * stride_ + shape.hot_blocks, std::uint16_t{0});
      rows[b] = {.block_of_slot = blocks_.data() + b * stride_,
                 .lru = lru_.data() + b * stride_,
                 .hot_blocks = shape.hot_blocks,
                 .block_tokens = shape.block_tokens,
                 .ring_recent = shape.ring_recent,
                 .ring_tokens = shape.ring_tokens};
    }
    blocks_.upload(blocks.data(), blocks.size());
    lru_.upload(lru.data(), lru.size());
    rows_.upload(rows.data(), rows.size());
    params_ = {.rows = rows_.data(),
               .lengths = lengths_.data(),
               .selected = selected_.data(),
               .selected_counts = selected_counts_.data(),
               .slot_of = slot_of_.data(),
               .misses = misses_.data(),
               .counts = counts_.data(),
               .batch = static_cast<std::int32_t>(sequences_.size()),
               .max_selected = most_selected,
               .max_hot_blocks = most_blocks};
  }

  [[nodiscard]] HotSequence& sequence(std::size_t b) { return *sequences_[b]; }
  [[nodiscard]] std::size_t size() const { return sequences_.size(); }

  // The sequences have made their step. One fatal failure with the first difference.
  void run_and_compare() {
    upload_step();
    before_ = {.blocks = downloaded(blocks_), .lru = downloaded(lru_)};
    launch_once();
    const auto slot_of = downloaded(slot_of_);
    const auto misses = downloaded(misses_);
    const auto counts = downloaded(counts_);
    const auto blocks = downloaded(blocks_);
    const auto lru = downloaded(lru_);
    const auto width = static_cast<std::size_t>(params_.max_selected);
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      const HotSequence& s = *sequences_[b];
      const sparse::HotBufferShape& shape = s.shape();
      SCOPED_TRACE(concat("row ", b, " H ", shape.hot_blocks, " B ", shape.block_tokens, " R ", shape.ring_recent,
                          " C ", shape.ring_tokens, " newest ", s.newest(), " n ", s.selected().size(), " K ", width,
                          s.padded() ? " padded" : ""));
      const SparseDiffCounts expected{.hits = s.diff().hits,
                                      .ring_hits = s.diff().ring_hits,
                                      .misses = static_cast<std::int32_t>(s.diff().misses.size()),
                                      .ring_misses = s.ring_misses(),
                                      .unplaced = s.diff().unplaced};
      const SparseDiffCounts& got = counts[b];
      ASSERT_TRUE(got == expected) << "hits " << got.hits << " of " << expected.hits << ", ring hits " << got.ring_hits
                                   << " of " << expected.ring_hits << ", misses " << got.misses << " of "
                                   << expected.misses << ", from the ring " << got.ring_misses << " of "
                                   << expected.ring_misses << ", unplaced " << got.unplaced << " of "
                                   << expected.unplaced;
      for (std::size_t i = 0; i < width; ++i) {
        const std::int32_t slot = i < s.diff().slot_of.size() ? s.diff().slot_of[i] : -1;
        ASSERT_EQ(slot_of[b * width + i], slot) << "slot_of[" << i << "]";
        const SparseMiss& miss = misses[b * width + i];
        if (i < s.diff().misses.size()) {
          const sparse::Miss& wanted = s.diff().misses[i];
          ASSERT_TRUE(miss.block == wanted.block && miss.slot == wanted.slot &&
                      (miss.from_ring == 1) == (wanted.source == sparse::MissSource::kRing) && miss.from_ring <= 1)
              << "miss " << i << ": block " << miss.block << " slot " << miss.slot << " ring " << miss.from_ring
              << ", expected block " << wanted.block << " slot " << wanted.slot;
        } else {
          ASSERT_EQ(miss.block, kPoison32) << "behind the miss list, at " << i;
        }
      }
      for (std::int32_t slot = 0; slot < shape.hot_blocks; ++slot) {
        ASSERT_EQ(blocks[b * stride_ + slot], s.buffer().block_of_slot()[slot]) << "block_of_slot[" << slot << "]";
        ASSERT_EQ(lru[b * stride_ + slot], s.buffer().lru()[slot]) << "lru[" << slot << "]";
      }
      ASSERT_EQ(blocks[b * stride_ + shape.hot_blocks], kPoison32);
      ASSERT_EQ(lru[b * stride_ + shape.hot_blocks], kPoison16);
    }
  }

  // The last step from the same state again: in one launch, and each row in a launch of its own. Every array comes out
  // the same, bit for bit.
  void repeat_and_compare() {
    const Arrays wanted = arrays();
    for (const bool alone : {false, true}) {
      blocks_.upload(before_.blocks.data(), before_.blocks.size());
      lru_.upload(before_.lru.data(), before_.lru.size());
      if (!alone) {
        launch_once();
      } else {
        poison_outputs();
        for (std::size_t b = 0; b < sequences_.size(); ++b) launch_sparse_diff(row_alone(b), nullptr);
        HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
      }
      const Arrays got = arrays();
      const char* const how = alone ? "every row alone" : "once more";
      ASSERT_EQ(got.slot_of, wanted.slot_of) << how;
      ASSERT_EQ(got.misses, wanted.misses) << how;
      ASSERT_EQ(got.counts, wanted.counts) << how;
      ASSERT_EQ(got.state.blocks, wanted.state.blocks) << how;
      ASSERT_EQ(got.state.lru, wanted.state.lru) << how;
    }
  }

 private:
  struct State {
    std::vector<std::int32_t> blocks;
    std::vector<std::uint16_t> lru;
  };
  struct Arrays {
    std::vector<std::int32_t> slot_of;
    std::vector<SparseMiss> misses;
    std::vector<SparseDiffCounts> counts;
    State state;
  };

  [[nodiscard]] Arrays arrays() const {
    return {.slot_of = downloaded(slot_of_),
            .misses = downloaded(misses_),
            .counts = downloaded(counts_),
            .state = {.blocks = downloaded(blocks_), .lru = downloaded(lru_)}};
  }
  void poison_outputs() {
    slot_of_.fill_bytes(kPoison);
    misses_.fill_bytes(kPoison);
    counts_.fill_bytes(kPoison);
  }
  void launch_once() {
    poison_outputs();
    launch_sparse_diff(params_, nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }
  [[nodiscard]] SparseDiffParams row_alone(std::size_t b) const {
    const std::size_t first = b * static_cast<std::size_t>(params_.max_selected);
    SparseDiffParams params = params_;
    params.rows += b;
    params.lengths += b;
    params.selected += first;
    params.selected_counts += b;
    params.slot_of += first;
    params.misses += first;
    params.counts += b;
    params.batch = 1;
    return params;
  }

  void upload_step() {
    const auto width = static_cast<std::size_t>(params_.max_selected);
    std::vector<std::int32_t> selected(selected_.size(), 0);  // behind n: valid blocks that must not count
    std::vector<std::int32_t> counts, lengths;
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      const HotSequence& s = *sequences_[b];
      std::ranges::copy(s.selected(), selected.begin() + b * width);
      counts.push_back(static_cast<std::int32_t>(s.padded() ? width : s.selected().size()));
      lengths.push_back(s.length());
    }
    selected_.upload(selected.data(), selected.size());
    selected_counts_.upload(counts.data(), counts.size());
    lengths_.upload(lengths.data(), lengths.size());
  }

  std::vector<std::unique_ptr<HotSequence>> sequences_;
  std::size_t stride_;
  DeviceBuffer<std::int32_t> blocks_;
  DeviceBuffer<std::uint16_t> lru_;
  DeviceBuffer<HotRow> rows_;
  DeviceBuffer<std::int32_t> lengths_, selected_, selected_counts_, slot_of_;
  DeviceBuffer<SparseMiss> misses_;
  DeviceBuffer<SparseDiffCounts> counts_;
  SparseDiffParams params_;
  State before_;  // of the last step
};

struct Seen {
  std::int64_t steps = 0, hits = 0, ring_hits = 0, misses = 0, ring_misses = 0, unplaced = 0, padded = 0;
};

Seen run_steps(DiffBatch& batch, int steps, std::uint64_t seed) {
  Seen seen;
  std::mt19937_64 random(seed);
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE(concat("step ", step, " seed ", test_seed()));
    for (std::size_t b = 0; b < batch.size(); ++b) {
      HotSequence& s = batch.sequence(b);
      s.step(random() % 8 == 0);
      seen.steps += s.padded() ? 0 : 1;
      seen.padded += s.padded() ? 1 : 0;
      seen.hits += s.diff().hits;
      seen.ring_hits += s.diff().ring_hits;
      seen.misses += static_cast<std::int64_t>(s.diff().misses.size());
      seen.ring_misses += s.ring_misses();
      seen.unplaced += s.diff().unplaced;
    }
    batch.run_and_compare();
    if (step % 10 == 9 && !::testing::Test::HasFatalFailure()) batch.repeat_and_compare();
    if (::testing::Test::HasFatalFailure()) return seen;
  }
  return seen;
}

// Shapes by turns from `hot_blocks`, with every block and ring size.
DiffBatch batch_of(std::size_t size, const std::vector<std::int64_t>& hot_blocks, std::int32_t most_selected,
                   std::uint64_t seed) {
  constexpr std::int64_t kBlockTokens[] = {1, 1, 2, 4, 8, 8, 16, 32, 64};
  constexpr std::int64_t kRings[] = {1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 1000};
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<HotSequence>> sequences;
  for (std::size_t b = 0; b < size; ++b) {
    const std::int64_t hot = hot_blocks[b % hot_blocks.size()];
    const auto shape = sparse::make_hot_buffer_shape(hot, kBlockTokens[random() % std::size(kBlockTokens)],
                                                     kRings[random() % std::size(kRings)]);
    const std::int64_t spread = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(4 * hot + 300));
    sequences.push_back(std::make_unique<HotSequence>(random(), shape.value(), most_selected, spread));
  }
  return {std::move(sequences), most_selected, static_cast<std::int32_t>(*std::ranges::max_element(hot_blocks))};
}

TEST_F(SparseDiffTest, ManySmallBuffersOverManySteps) {
  DiffBatch batch =
      batch_of(512, {1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 127, 128, 129, 200, 256, 300}, 320, test_seed());
  const Seen seen = run_steps(batch, 240, test_seed() + 1);
  if (HasFatalFailure()) return;
  EXPECT_GT(seen.steps, 100'000);
  EXPECT_GT(seen.hits, 1000);
  EXPECT_GT(seen.ring_hits, 1000);
  EXPECT_GT(seen.misses, 1000);
  EXPECT_GT(seen.ring_misses, 1000);
  EXPECT_GT(seen.unplaced, 1000);
  EXPECT_GT(seen.padded, 1000);
}

TEST_F(SparseDiffTest, TargetSizes) {
  DiffBatch batch = batch_of(24, {4096, 4095, 2048, 2049, 3000, 4096}, 2048, test_seed() + 2);
  run_steps(batch, 60, test_seed() + 3);
}

TEST_F(SparseDiffTest, MoreEntriesThanTheTunedShape) {
  DiffBatch batch = batch_of(9, {8192, 4097, 8191, 4096, 5, 6000}, 4095, test_seed() + 4);
  run_steps(batch, 40, test_seed() + 5);
}

TEST_F(SparseDiffTest, LargestSizes) {
  DiffBatch batch = batch_of(7, {16'384, 16'383, 8193, 4096, 12'000}, 4096, test_seed() + 6);
  run_steps(batch, 40, test_seed() + 7);
}

TEST_F(SparseDiffTest, OneRowOfOneBlock) {
  DiffBatch batch = batch_of(1, {1}, 1, test_seed() + 8);
  run_steps(batch, 60, test_seed() + 9);
}

// Blocks a multiple of 2^19 apart share the bits that the table keeps of them. Two families of them: members of one
// displace the other's, so that probes meet blocks of their own family.
TEST_F(SparseDiffTest, BlocksThatShareTheirLowBits) {
  constexpr std::int32_t kApart = 1 << 19;
  constexpr std::int32_t kMembers = 4000;
  constexpr std::size_t kSize = 2048;
  const auto shape = sparse::make_hot_buffer_shape(kSize, 1, 16).value();
  sparse::HotBuffer buffer(shape);
  DeviceBuffer<std::int32_t> blocks(kSize), length(1), selected(kSize), count(1), slot_of(kSize);
  DeviceBuffer<std::uint16_t> lru(kSize);
  DeviceBuffer<SparseMiss> misses(kSize);
  DeviceBuffer<SparseDiffCounts> counts(1);
  DeviceBuffer<HotRow> rows(1);
  blocks.fill_bytes(0xFF);
  std::vector<std::uint16_t> order(kSize);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  lru.upload(order.data(), order.size());
  const HotRow row{.block_of_slot = blocks.data(),
                   .lru = lru.data(),
                   .hot_blocks = kSize,
                   .block_tokens = 1,
                   .ring_recent = shape.ring_recent,
                   .ring_tokens = shape.ring_tokens};
  rows.upload(&row, 1);
  constexpr std::int32_t kLength = kMembers * kApart + 100;
  length.upload(&kLength, 1);
  constexpr auto kCount = static_cast<std::int32_t>(kSize);
  count.upload(&kCount, 1);
  std::mt19937_64 random(test_seed() + 10);
  sparse::SparseDiff expected;
  for (int step = 0; step < 8; ++step) {
    std::vector<std::int32_t> entries;  // some come twice
    while (entries.size() < kSize)
      entries.push_back(static_cast<std::int32_t>(random() % kMembers) * kApart + 5 +
                        static_cast<std::int32_t>(random() % 2));
    buffer.diff(entries, kLength - 1, expected);
    selected.upload(entries.data(), entries.size());
    launch_sparse_diff({.rows = rows.data(),
                        .lengths = length.data(),
                        .selected = selected.data(),
                        .selected_counts = count.data(),
                        .slot_of = slot_of.data(),
                        .misses = misses.data(),
                        .counts = counts.data(),
                        .batch = 1,
                        .max_selected = kCount,
                        .max_hot_blocks = kCount},
                       nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    const auto got = downloaded(slot_of);
    for (std::size_t i = 0; i < kSize; ++i)
      ASSERT_EQ(got[i], expected.slot_of[i]) << "step " << step << " entry " << i << " block " << entries[i];
    const auto kept = downloaded(blocks);
    const auto kept_order = downloaded(lru);
    for (std::size_t slot = 0; slot < kSize; ++slot) {
      ASSERT_EQ(kept[slot], buffer.block_of_slot()[slot]) << "step " << step << " slot " << slot;
      ASSERT_EQ(kept_order[slot], buffer.lru()[slot]) << "step " << step << " place " << slot;
    }
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda
