#include "sparse/selection_model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/selection/replaced_selection.h"
#include "sparse/selection_trace.h"
#include "tests/model/temporary_folder.h"

namespace hotset::sparse {
namespace {

namespace cuda = kernels::cuda;
using model::TemporaryFolder;

TEST(SelectionModel, ReadsBothForms) {
  const auto churn = parse_selection_model("churn=0.125");
  ASSERT_TRUE(churn.ok());
  EXPECT_EQ(std::get<ChurnModel>(churn.value()).share, 0.125);
  EXPECT_EQ(std::get<ChurnModel>(parse_selection_model("churn=0").value()).share, 0);
  EXPECT_EQ(std::get<ChurnModel>(parse_selection_model("churn=1").value()).share, 1);
  const auto trace = parse_selection_model("trace=a=b.trace");
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(std::get<RecordedModel>(trace.value()).trace, "a=b.trace");
}

TEST(SelectionModel, RefusesOtherText) {
  for (const char* text :
       {"", "churn", "churn=", "churn=-0.1", "churn=1.5", "churn=nan", "churn=0.1x", "trace=", "lru"}) {
    const auto read = parse_selection_model(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(read.error().message.find("--selection-model"), std::string::npos);
  }
}

SelectionRecord record_of(std::uint64_t sequence, std::int32_t layer, std::int64_t position,
                          std::span<const std::int32_t> blocks, std::int32_t block_tokens = 1) {
  SelectionRecord record;
  record.step = 1;
  record.sequence = SequenceId{sequence};
  record.layer = LayerId{layer};
  record.position = position;
  record.block_tokens = block_tokens;
  record.blocks = blocks;
  return record;
}

class Traces : public ::testing::Test {
 protected:
  template <class Write>
  Result<RecordedSelections> read_back(const Write& write, std::int64_t most = 1 << 20) {
    const auto path = folder_.path() / "t.trace";
    {
      auto writer = TraceWriter::create(path, {.model = "m", .algorithm = "lowrank", .layers = 2, .hot_ring = 128});
      EXPECT_TRUE(writer.ok());
      write(*writer.value());
    }
    return read_recorded_selections(path, most);
  }
  TemporaryFolder folder_;
};

TEST_F(Traces, KeepsRowsThatEveryLayerHas) {
  const std::vector<std::int32_t> a{0, 3, 9}, b{1, 2}, c{4, 5, 6, 7}, whole{};
  const auto read = read_back([&](TraceWriter& writer) {
    SelectionRecord prompt = record_of(7, 0, 8, b);
    prompt.prefill = true;
    writer.observe(prompt);
    SelectionRecord everything = record_of(7, 0, 8, whole);
    everything.everything = true;
    writer.observe(everything);
    for (std::int64_t position : {9, 10, 11}) {
      writer.observe(record_of(7, 0, position, a));
      writer.observe(record_of(5, 0, position + 20, c));  // never in layer 1
      if (position < 11) writer.observe(record_of(7, 1, position, position == 9 ? b : c));
    }
  });
  ASSERT_TRUE(read.ok()) << read.error().message;
  const RecordedSelections& recorded = read.value();
  EXPECT_EQ(recorded.layers, 2);
  EXPECT_EQ(recorded.block_tokens, 1);
  ASSERT_EQ(recorded.sequences.size(), 1U);
  const auto& sequence = recorded.sequences.front();
  EXPECT_EQ(sequence.first_length, 10);
  ASSERT_EQ(sequence.count, 2);
  ASSERT_EQ(recorded.rows.size(), 4U);
  const auto row = [&](std::int64_t layer, std::int64_t step) {
    const auto& found = recorded.rows[static_cast<std::size_t>(sequence.first_row + layer * sequence.count + step)];
    EXPECT_EQ(found.blocks, 10 + step);
    const auto begin = recorded.blocks.begin() + found.at;
    return std::vector<std::int32_t>(begin, begin + found.count);
  };
  EXPECT_EQ(row(0, 0), a);
  EXPECT_EQ(row(0, 1), a);
  EXPECT_EQ(row(1, 0), b);
  EXPECT_EQ(row(1, 1), c);
}

TEST_F(Traces, StopsAtAGapAndAtTheLimit) {
  const std::vector<std::int32_t> blocks{0, 3};
  const auto rows = [&](std::initializer_list<std::int64_t> positions) {
    return [&blocks, positions = std::vector(positions)](TraceWriter& writer) {
      for (const std::int64_t position : positions)
        for (const std::int32_t layer : {0, 1}) writer.observe(record_of(1, layer, position, blocks));
    };
  };
  EXPECT_EQ(read_back(rows({9, 10, 12, 13})).value().sequences.front().count, 2);
  EXPECT_EQ(read_back(rows({9, 10, 11, 12}), 15).value().sequences.front().count, 3);
}

TEST_F(Traces, RefusesWhatCannotBeReplayed) {
  const std::vector<std::int32_t> blocks{0, 1};
  const auto nothing = read_back([](TraceWriter&) {});
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kInvalidArgument);
  const auto mixed = read_back([&](TraceWriter& writer) {
    writer.observe(record_of(1, 0, 40, blocks));
    writer.observe(record_of(1, 1, 40, blocks, 16));
  });
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_recorded_selections(folder_.path() / "none").error().code, ErrorCode::kNotFound);
}

// Each entry stays in its part, and about `share` of them change a step.
TEST(Churn, ChangesItsShare) {
  constexpr std::int64_t kEntries = 500, kWidth = 16, kSteps = 64;
  for (const double share : {0.0, 0.05, 0.5, 1.0}) {
    const auto fixed = static_cast<std::uint64_t>(share * 4294967296.0);
    const std::uint64_t seed = cuda::churn_seed(3, 77);
    std::int64_t changed = 0;
    for (std::int64_t i = 0; i < kEntries; ++i) {
      std::int64_t before = -1;
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const std::int64_t block = cuda::churned_block(seed, fixed, 32000 + step, i, 4, kWidth);
        ASSERT_GE(block, 4 + i * kWidth);
        ASSERT_LT(block, 4 + (i + 1) * kWidth);
        changed += step > 0 && block != before;
        before = block;
      }
    }
    // A new place is the old one once in kWidth times.
    const double expected = share * (1.0 - 1.0 / kWidth);
    EXPECT_NEAR(static_cast<double>(changed) / (kEntries * (kSteps - 1)), expected, 0.01) << share;
  }
  EXPECT_NE(cuda::churn_seed(3, 77), cuda::churn_seed(3, 78));
  EXPECT_NE(cuda::churn_seed(3, 77), cuda::churn_seed(4, 77));
}

TEST(Recorded, RowsGoForthAndBack) {
  std::vector<std::int32_t> seen;
  for (std::int64_t step = -3; step < 8; ++step) seen.push_back(cuda::recorded_row(step, 4));
  EXPECT_EQ(seen, (std::vector<std::int32_t>{3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1}));
  for (const std::int64_t step : {-2, 0, 5}) EXPECT_EQ(cuda::recorded_row(step, 1), 0);
}

TEST(Recorded, BlocksSpreadOverTheLength) {
  for (const std::int64_t recorded : {1, 2, 100, 129, 1000}) {
    for (const std::int64_t now : {1, 50, 100, 129, 500, 1000, 7001}) {
      const std::int64_t near = cuda::near_blocks(recorded, now, 1);
      std::int64_t before = -1;
      for (std::int64_t block = 0; block < recorded; ++block) {
        const std::int64_t place = cuda::spread_block(block, recorded, now, near);
        ASSERT_GE(place, now < recorded ? before : before + 1) << recorded << " " << now << " " << block;
        ASSERT_LT(place, now);
        ASSERT_TRUE(recorded != now || place == block);
        before = place;
      }
      ASSERT_EQ(before, recorded == 1 || now == 1 ? before : now - 1);
    }
  }
}

}  // namespace
}  // namespace hotset::sparse
