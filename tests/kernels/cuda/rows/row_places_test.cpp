#include "kernels/cuda/row_places.h"

#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/rows/page_tables.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kBehind = 3;  // entries of the outputs behind the last row, which stay as they are

struct Places {
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> pages, offsets;
  bool operator==(const Places&) const = default;
};
Places poisoned(std::size_t rows) {
  const std::size_t size = rows + kBehind;
  return {std::vector<std::int64_t>(size, -99), std::vector<std::int32_t>(size, -99),
          std::vector<std::int32_t>(size, -99)};
}

// Rows of a batch (of `rows` tables) or a chunk of one sequence (table 0 of one).
struct Batch {
  std::vector<TableShape> shapes;
  std::vector<std::int64_t> positions, kept;  // kept: those of the metadata
  std::vector<std::int32_t> metadata_pages;   // [shapes][metadata_stride]
  std::int64_t metadata_stride = 0;
};

class RowPlaces : public GpuTest {
 protected:
  static Places run(const Batch& batch, const PageTables& tables, bool metadata) {
    const std::size_t count = batch.positions.size();
    const bool chunk = batch.shapes.size() == 1;
    const Places before = poisoned(count);
    const auto positions = to_device(batch.positions), kept = to_device(batch.kept), slots = to_device(before.slots);
    const auto metadata_pages = to_device(batch.metadata_pages);
    const auto pages = to_device(before.pages), offsets = to_device(before.offsets);
    launch_row_places({.positions = positions.data(),
                       .rows = tables.rows(),
                       .row_stride = chunk ? 0 : 1,
                       .slots = slots.data(),
                       .metadata_positions = metadata ? kept.data() : nullptr,
                       .metadata_pages = metadata ? metadata_pages.data() : nullptr,
                       .metadata_stride = chunk ? 0 : batch.metadata_stride,
                       .pages = metadata ? pages.data() : nullptr,
                       .offsets = metadata ? offsets.data() : nullptr,
                       .count = static_cast<std::int64_t>(count)},
                      nullptr);
    return {to_host(slots), to_host(pages), to_host(offsets)};
  }

  static void check(const Batch& batch, const PageTables& tables) {
    Places expected = poisoned(batch.positions.size());
    for (std::size_t i = 0; i < batch.positions.size(); ++i) {
      const std::size_t table = batch.shapes.size() == 1 ? 0 : i;
      const std::int64_t position = batch.positions[i], kept = batch.kept[i];
      expected.slots[i] = position < 0 ? -1 : tables.new_row(table, position);
      expected.pages[i] = kept < 0 ? -1
                                   : batch.metadata_pages[table * static_cast<std::size_t>(batch.metadata_stride) +
                                                          static_cast<std::size_t>(kept / kPageTokens)];
      expected.offsets[i] = kept < 0 ? 0 : static_cast<std::int32_t>(kept % kPageTokens);
    }
    const Places got = run(batch, tables, true);
    for (std::size_t i = 0; i < expected.slots.size(); ++i) {
      ASSERT_TRUE(got.slots[i] == expected.slots[i] && got.pages[i] == expected.pages[i] &&
                  got.offsets[i] == expected.offsets[i])
          << "row " << i << " of " << batch.positions.size() << ": slot " << got.slots[i] << ", expected "
          << expected.slots[i] << "; page " << got.pages[i] << ", expected " << expected.pages[i] << "; offset "
          << got.offsets[i] << ", expected " << expected.offsets[i];
    }
    Places slots_alone = poisoned(batch.positions.size());
    slots_alone.slots = expected.slots;
    EXPECT_EQ(run(batch, tables, false), slots_alone) << "without metadata, " << batch.positions.size() << " rows";
  }

  // Metadata pages are numbered without regard to those of the rows.
  void add_metadata(Batch& batch, std::int64_t tokens) {
    batch.metadata_stride = pages_for_tokens(tokens) + 2;
    for (std::size_t i = 0; i < batch.shapes.size() * static_cast<std::size_t>(batch.metadata_stride); ++i) {
      batch.metadata_pages.push_back(static_cast<std::int32_t>(random_.integer(0, 1 << 20)));
    }
    for (std::size_t i = 0; i < batch.positions.size(); ++i) {
      batch.kept.push_back(i % 4 == 2 ? -1 : batch.positions[i]);
    }
  }

  Random random_;
};

TEST_F(RowPlaces, ResidentAndHotRowsOfABatch) {
  for (const std::int64_t rows : {2, 127, 128, 129, 512}) {
    Batch batch;
    for (std::int64_t row = 0; row < rows; ++row) {
      TableShape shape{.tokens = random_.integer(1, 3000)};
      if (row % 3 == 1) {
        shape.block_tokens = 1 << random_.integer(0, 6);
        shape.hot_blocks = static_cast<std::int32_t>(random_.integer(1, 100));
        shape.ring_tokens = static_cast<std::int32_t>(round_up(random_.integer(65, 400), shape.block_tokens));
      }
      batch.shapes.push_back(shape);
      batch.positions.push_back(row % 5 == 4 ? -1 : row % 7 == 0 ? 0 : shape.tokens - 1);
    }
    add_metadata(batch, 3000);
    check(batch, PageTables(batch.shapes, random_));
    if (HasFatalFailure()) return;
  }
}

TEST_F(RowPlaces, ChunkOfOneSequence) {
  for (const TableShape& shape :
       {TableShape{.tokens = 1200}, TableShape{.tokens = 1200, .hot_blocks = 65, .ring_tokens = 700}}) {
    Batch batch;
    batch.shapes = {shape};
    for (std::int64_t position = 190; position < 850; ++position) batch.positions.push_back(position);
    batch.positions.push_back(-1);
    add_metadata(batch, shape.tokens);
    check(batch, PageTables(batch.shapes, random_));
    if (HasFatalFailure()) return;
  }
}

TEST_F(RowPlaces, NoRows) {
  Batch batch;
  batch.shapes = {{.tokens = 64}};
  EXPECT_EQ(run(batch, PageTables(batch.shapes, random_), false), poisoned(0));
}

}  // namespace
}  // namespace hotset::kernels::cuda
