// The hot buffer against the slow model, over random shapes, positions and selections.

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "sparse/hot_buffer.h"
#include "tests/seed.h"
#include "tests/sparse/sparse_diff_model.h"

namespace hotset::sparse {
namespace {

struct Seen {
  std::int64_t steps = 0, hits = 0, ring_hits = 0, host_misses = 0, slack_misses = 0, evictions = 0, ignored = 0,
               unplaced = 0, turnovers = 0, short_ones = 0;
};

class Episode {
 public:
  Episode(std::mt19937_64& random, Seen& seen)
      : random_(random),
        seen_(seen),
        shape_(random_shape()),
        buffer_(shape_),
        model_(shape_),
        newest_(pick(0, 500)),
        rows_(shape_, newest_) {}

  void run(std::int64_t steps) {
    for (std::int64_t step = 0; step < steps; ++step) {
      const std::vector<std::int32_t> selected = random_selection();
      SCOPED_TRACE(concat("H ", shape_.hot_blocks, " B ", shape_.block_tokens, " R ", shape_.ring_recent, " step ",
                          step, " newest ", newest_));
      const std::vector<std::int32_t> before = model_.block_of_slot;
      buffer_.diff(selected, newest_, diff_);
      const SparseDiff expected = model_.diff(selected, newest_);
      ASSERT_EQ(diff_.slot_of, expected.slot_of);
      ASSERT_EQ(diff_.misses, expected.misses);
      ASSERT_EQ(diff_.hits, expected.hits);
      ASSERT_EQ(diff_.ring_hits, expected.ring_hits);
      ASSERT_EQ(diff_.unplaced, expected.unplaced);
      ASSERT_TRUE(std::ranges::equal(buffer_.block_of_slot(), model_.block_of_slot));
      ASSERT_TRUE(std::ranges::equal(buffer_.lru(), model_.lru));
      ASSERT_EQ(rows_.apply(selected, diff_), "");
      count(before);
      // Mostly one token per step; at times none, or several that selected nothing here.
      newest_ += pick(0, 9) > 0 ? 1 : pick(0, 40);
      rows_.advance_to(newest_);
    }
  }

 private:
  std::int64_t pick(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  template <class T, std::size_t N>
  T one_of(const T (&values)[N]) {
    return values[pick(0, N - 1)];
  }

  HotBufferShape random_shape() {
    const std::int64_t block_tokens = one_of({1, 1, 2, 4, 8, 8, 16, 16, 32, 64, 64});
    const std::int64_t ring = one_of({1, 1, 2, 15, 16, 17, 63, 64, 65, 100, 128});
    return make_hot_buffer_shape(one_of({1, 2, 3, 4, 7, 16, 33}), block_tokens, ring).value();
  }

  // 0: everything new, 1: most of the last selection again, 2: as 1, mixed with invalid and repeated entries, 3: short,
  // 4: more than the buffer holds.
  std::vector<std::int32_t> random_selection() {
    const std::int64_t blocks = newest_ / shape_.block_tokens + 1;
    const std::int64_t kind = pick(0, 9) == 0 ? 4 : pick(0, 3);
    const std::int64_t most = kind == 4 ? 2 * shape_.hot_blocks + 4 : kind == 3 ? 1 : shape_.hot_blocks;
    const std::int64_t size = kind == 3 ? pick(0, most) : most;
    std::vector<std::int32_t> selected;
    if (kind == 1 || kind == 2)
      for (const std::int32_t block : last_)
        if (pick(0, 4) > 0) selected.push_back(block);
    for (std::int64_t tries = 0; tries < 2 * size && static_cast<std::int64_t>(selected.size()) < size; ++tries) {
      const auto block = static_cast<std::int32_t>(pick(0, blocks - 1));
      if (std::ranges::find(selected, block) == selected.end()) selected.push_back(block);
    }
    selected.resize(std::min(selected.size(), static_cast<std::size_t>(size)));
    if (pick(0, 1) == 0)
      std::ranges::sort(selected);
    else
      std::ranges::shuffle(selected, random_);
    if (kind == 0) ++seen_.turnovers;
    if (kind == 3) ++seen_.short_ones;
    last_ = selected;
    if (kind == 2) spoil(selected, blocks);
    return selected;
  }

  void spoil(std::vector<std::int32_t>& selected, std::int64_t blocks) {
    constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    const auto beyond = static_cast<std::int32_t>(blocks);
    for (std::int64_t i = pick(1, 6); i > 0; --i) {
      const bool repeat = pick(0, 1) == 0 && !selected.empty();
      const std::int32_t entry = repeat ? selected[pick(0, static_cast<std::int64_t>(selected.size()) - 1)]
                                        : one_of({-1, -2, kLeast, kMost, beyond, beyond + 1});
      selected.insert(selected.begin() + pick(0, static_cast<std::int64_t>(selected.size())), entry);
    }
  }

  void count(const std::vector<std::int32_t>& before) {
    ++seen_.steps;
    seen_.hits += diff_.hits;
    seen_.ring_hits += diff_.ring_hits;
    seen_.unplaced += diff_.unplaced;
    seen_.ignored += std::ranges::count(diff_.slot_of, -1) - diff_.unplaced;
    for (const Miss& miss : diff_.misses) {
      ++(miss.source == MissSource::kHost ? seen_.host_misses : seen_.slack_misses);
      seen_.evictions += before[static_cast<std::size_t>(miss.slot)] >= 0;
    }
  }

  std::mt19937_64& random_;
  Seen& seen_;
  HotBufferShape shape_;
  HotBuffer buffer_;
  SparseDiffModel model_;
  std::int64_t newest_;
  DeviceRowsModel rows_;
  SparseDiff diff_;
  std::vector<std::int32_t> last_;
};

TEST(HotBufferProperty, EqualsTheModelAndItsSlotsHoldTheRows) {
  std::mt19937_64 random(test_seed(20'260'101));
  Seen seen;
  for (int episode = 0; episode < 4000 && !HasFatalFailure(); ++episode) Episode(random, seen).run(250);
  EXPECT_EQ(seen.steps, 1'000'000);
  for (const std::int64_t count : {seen.hits, seen.ring_hits, seen.host_misses, seen.slack_misses, seen.evictions,
                                   seen.ignored, seen.unplaced, seen.turnovers, seen.short_ones})
    EXPECT_GT(count, 100'000);
}

}  // namespace
}  // namespace hotset::sparse
