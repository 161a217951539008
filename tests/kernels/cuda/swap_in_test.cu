// Swap-in: after it every byte of the device pool is what the specification's miss lists make of the pool before. And
// the offload: every byte of the host pool.
#include <cstring>
#include <memory>
#include <numeric>

#include "core/concat.h"
#include "core/kv_geometry.h"
#include "core/splitmix.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/swap_in.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/kernels/cuda/hot_sequences.h"

namespace hotset::kernels::cuda {
namespace {

void fill_random(std::byte* bytes, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = 0; i < count; i += 8) {
    seed = splitmix64(seed + i);
    std::memcpy(bytes + i, &seed, std::min<std::size_t>(8, count - i));
  }
}

std::vector<std::int32_t> shuffled_pages(std::size_t count, std::uint64_t seed) {
  std::vector<std::int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  std::ranges::shuffle(pages, std::mt19937_64(seed));
  return pages;
}

// Empty, or where the first difference is, in rows.
std::string first_difference(const std::vector<std::byte>& got, const std::byte* wanted, std::int64_t row_bytes) {
  if (std::memcmp(got.data(), wanted, got.size()) == 0) return {};
  std::size_t at = 0;
  while (got[at] == wanted[at]) ++at;
  const auto byte = static_cast<std::int64_t>(at);
  return concat("page ", byte / row_bytes / kPageTokens, " row ", byte / row_bytes % kPageTokens, " byte ",
                byte % row_bytes, " is ", static_cast<int>(got[at]), ", not ", static_cast<int>(wanted[at]));
}

struct Case {
  std::int64_t row_bytes;
  std::int32_t io_blocks;
  bool aligned = true;  // else the device pool begins 8 bytes behind a 16-byte boundary
};

constexpr std::int32_t kMostSelectedHere = 96;
constexpr std::int32_t kMostHotHere = 80;

// A batch whose pages lie anywhere in both pools, and the specification's device pool beside it.
class SwapInBatch {
 public:
  SwapInBatch(const Case& c, std::size_t batch, std::uint64_t seed) : case_(c) {
    constexpr std::int64_t kHot[] = {1, 8, 33, 64, 80};
    constexpr std::int64_t kBlockTokens[] = {1, 2, 8, 16, 64};
    constexpr std::int64_t kRings[] = {1, 16, 63, 100};
    constexpr std::int64_t kSpread = 100;
    std::mt19937_64 random(seed);
    std::size_t device_pages = 3, host_pages = 2;  // some belong to nobody
    for (std::size_t b = 0; b < batch; ++b) {
      const auto shape =
          sparse::make_hot_buffer_shape(kHot[random() % 5], kBlockTokens[random() % 5], kRings[random() % 4]);
      sequences_.push_back(std::make_unique<HotSequence>(random(), shape.value(), kMostSelectedHere, kSpread));
      device_pages += device_pages_of(b);
      // Steps add at most 41 positions each.
      host_pages_of_.push_back(static_cast<std::size_t>(kSpread * shape.value().block_tokens / kPageTokens + 12));
      host_pages += host_pages_of_.back();
    }
    device_tables_ = shuffled_pages(device_pages, seed + 1);
    host_tables_ = shuffled_pages(host_pages, seed + 2);
    host_pool_ = std::make_unique<MappedHostMemory>(host_pages * kPageTokens * c.row_bytes);
    fill_random(host_pool_->host(), host_pool_->bytes(), seed + 3);
    pool_.resize(device_pages * kPageTokens * c.row_bytes);
    fill_random(pool_.data(), pool_.size(), seed + 4);
    upload();
  }

  void run_and_compare() {
    const std::vector<std::byte> before = pool_;
    std::vector<std::int32_t> selected(sequences_.size() * kMostSelectedHere, 0), counts, lengths;
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      HotSequence& s = *sequences_[b];
      s.step(b % 5 == 3);
      std::ranges::copy(s.selected(), selected.begin() + b * kMostSelectedHere);
      counts.push_back(static_cast<std::int32_t>(s.selected().size()));
      lengths.push_back(s.length());
      apply_misses(b);
    }
    selected_.upload(selected.data(), selected.size());
    selected_counts_.upload(counts.data(), counts.size());
    lengths_.upload(lengths.data(), lengths.size());
    slot_of_.fill_bytes(0x5B);
    launch_swap_in({.diff = {.rows = rows_.data(),
                             .lengths = lengths_.data(),
                             .selected = selected_.data(),
                             .selected_counts = selected_counts_.data(),
                             .slot_of = slot_of_.data(),
                             .misses = misses_.data(),
                             .counts = counts_.data(),
                             .batch = static_cast<std::int32_t>(sequences_.size()),
                             .max_selected = kMostSelectedHere,
                             .max_hot_blocks = kMostHotHere},
                    .host_rows = host_pool_->device(),
                    .device_rows = device_rows(),
                    .counters = counters_.data(),
                    .row_bytes = case_.row_bytes,
                    .io_blocks = case_.io_blocks},
                   nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<std::byte> got(pool_.size());
    HOTSET_CUDA_CHECK(cudaMemcpy(got.data(), device_rows(), got.size(), cudaMemcpyDeviceToHost));
    ASSERT_EQ(first_difference(got, pool_.data(), case_.row_bytes), "");
    compare_slots();
    repeat_loads(before);
    if (::testing::Test::HasFatalFailure()) return;
    SwapCounters counters;
    counters_.download(&counters, 1);
    EXPECT_EQ(counters.hits, expected_.hits);
    EXPECT_EQ(counters.ring_hits, expected_.ring_hits);
    EXPECT_EQ(counters.misses, expected_.misses);
    EXPECT_EQ(counters.ring_misses, expected_.ring_misses);
    EXPECT_EQ(counters.unplaced, expected_.unplaced);
    EXPECT_EQ(counters.bytes_loaded, expected_.bytes_loaded);
  }

  [[nodiscard]] const SwapCounters& expected() const { return expected_; }

 private:
  // The same miss lists into the same pool once more, with other grids, and every row in a launch of its own.
  void repeat_loads(const std::vector<std::byte>& before) {
    LoadMissesParams params{.rows = rows_.data(),
                            .misses = misses_.data(),
                            .counts = counts_.data(),
                            .host_rows = host_pool_->device(),
                            .device_rows = device_rows(),
                            .row_bytes = case_.row_bytes,
                            .batch = static_cast<std::int32_t>(sequences_.size()),
                            .max_selected = kMostSelectedHere};
    for (const std::int32_t blocks : {case_.io_blocks, 5, 0}) {  // 0: every row alone
      HOTSET_CUDA_CHECK(cudaMemcpy(device_rows(), before.data(), before.size(), cudaMemcpyHostToDevice));
      if (blocks > 0) {
        params.blocks = blocks;
        launch_load_misses(params, nullptr);
      }
      for (std::size_t b = 0; blocks == 0 && b < sequences_.size(); ++b) {
        LoadMissesParams alone = params;
        alone.rows += b;
        alone.misses += b * kMostSelectedHere;
        alone.counts += b;
        alone.batch = 1;
        launch_load_misses(alone, nullptr);
      }
      HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
      std::vector<std::byte> got(pool_.size());
      HOTSET_CUDA_CHECK(cudaMemcpy(got.data(), device_rows(), got.size(), cudaMemcpyDeviceToHost));
      ASSERT_EQ(first_difference(got, pool_.data(), case_.row_bytes), "") << blocks << " blocks";
    }
  }
  [[nodiscard]] std::size_t buffer_pages(std::size_t b) const {
    const sparse::HotBufferShape& shape = sequences_[b]->shape();
    return static_cast<std::size_t>(pages_for_tokens(std::int64_t{shape.hot_blocks} * shape.block_tokens));
  }
  [[nodiscard]] std::size_t device_pages_of(std::size_t b) const {
    return buffer_pages(b) + static_cast<std::size_t>(pages_for_tokens(sequences_[b]->shape().ring_tokens));
  }
  [[nodiscard]] std::byte* device_rows() const { return device_pool_.data() + (case_.aligned ? 0 : 8); }

  std::byte* pool_row(std::size_t b, std::size_t first_page, std::int64_t row) {
    const std::int64_t page = device_tables_[first_device_page_[b] + first_page + row / kPageTokens];
    return pool_.data() + (page * kPageTokens + row % kPageTokens) * case_.row_bytes;
  }
  const std::byte* host_row(std::size_t b, std::int64_t position) {
    const std::int64_t page = host_tables_[first_host_page_[b] + position / kPageTokens];
    return host_pool_->host() + (page * kPageTokens + position % kPageTokens) * case_.row_bytes;
  }

  // What the specification's misses do, row by row, to the pool's copy.
  void apply_misses(std::size_t b) {
    const HotSequence& s = *sequences_[b];
    const sparse::HotBufferShape& shape = s.shape();
    for (const sparse::Miss& miss : s.diff().misses) {
      const bool from_ring = miss.source == sparse::MissSource::kRing;
      for (std::int64_t i = 0; i < shape.block_tokens; ++i) {
        const std::int64_t position = std::int64_t{miss.block} * shape.block_tokens + i;
        std::byte* target = pool_row(b, 0, std::int64_t{miss.slot} * shape.block_tokens + i);
        const std::byte* source =
            from_ring ? pool_row(b, buffer_pages(b), position % shape.ring_tokens) : host_row(b, position);
        std::memcpy(target, source, static_cast<std::size_t>(case_.row_bytes));
      }
      if (!from_ring) expected_.bytes_loaded += static_cast<std::uint64_t>(shape.block_tokens * case_.row_bytes);
    }
    expected_.hits += static_cast<std::uint64_t>(s.diff().hits);
    expected_.ring_hits += static_cast<std::uint64_t>(s.diff().ring_hits);
    expected_.misses += s.diff().misses.size();
    expected_.ring_misses += static_cast<std::uint64_t>(s.ring_misses());
    expected_.unplaced += static_cast<std::uint64_t>(s.diff().unplaced);
  }

  void compare_slots() {
    std::vector<std::int32_t> slots(slot_of_.size());
    slot_of_.download(slots.data(), slots.size());
    for (std::size_t b = 0; b < sequences_.size(); ++b) {
      const std::vector<std::int32_t>& wanted = sequences_[b]->diff().slot_of;
      for (std::size_t i = 0; i < kMostSelectedHere; ++i)
        ASSERT_EQ(slots[b * kMostSelectedHere + i], i < wanted.size() ? wanted[i] : -1)
            << "row " << b << " entry " << i;
    }
  }

  void upload() {
    const std::size_t batch = sequences_.size();
    device_pages_ = DeviceBuffer<std::int32_t>(device_tables_.size());
    device_pages_.upload(device_tables_.data(), device_tables_.size());
    host_pages_ = DeviceBuffer<std::int32_t>(host_tables_.size());
    host_pages_.upload(host_tables_.data(), host_tables_.size());
    device_pool_ = DeviceBuffer<std::byte>(pool_.size() + 16);
    HOTSET_CUDA_CHECK(cudaMemcpy(device_rows(), pool_.data(), pool_.size(), cudaMemcpyHostToDevice));
    blocks_ = DeviceBuffer<std::int32_t>(batch * kMostHotHere);
    blocks_.fill_bytes(0xFF);
    lru_ = DeviceBuffer<std::uint16_t>(batch * kMostHotHere);
    std::vector<std::uint16_t> order(lru_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint16_t>(i % kMostHotHere);
    lru_.upload(order.data(), order.size());
    std::vector<HotRow> rows(batch);
    std::size_t device_page = 0, host_page = 0;
    for (std::size_t b = 0; b < batch; ++b) {
      const sparse::HotBufferShape& shape = sequences_[b]->shape();
      first_device_page_.push_back(device_page);
      first_host_page_.push_back(host_page);
      rows[b] = {.block_of_slot = blocks_.data() + b * kMostHotHere,
                 .lru = lru_.data() + b * kMostHotHere,
                 .device_pages = device_pages_.data() + device_page,
                 .host_pages = host_pages_.data() + host_page,
                 .hot_blocks = shape.hot_blocks,
                 .block_tokens = shape.block_tokens,
                 .ring_recent = shape.ring_recent,
                 .ring_tokens = shape.ring_tokens};
      device_page += device_pages_of(b);
      host_page += host_pages_of_[b];
    }
    rows_ = DeviceBuffer<HotRow>(batch);
    rows_.upload(rows.data(), batch);
    lengths_ = DeviceBuffer<std::int32_t>(batch);
    selected_counts_ = DeviceBuffer<std::int32_t>(batch);
    selected_ = DeviceBuffer<std::int32_t>(batch * kMostSelectedHere);
    slot_of_ = DeviceBuffer<std::int32_t>(batch * kMostSelectedHere);
    misses_ = DeviceBuffer<SparseMiss>(batch * kMostSelectedHere);
    counts_ = DeviceBuffer<SparseDiffCounts>(batch);
    counters_ = DeviceBuffer<SwapCounters>(1);
    counters_.fill_bytes(0);
  }

  Case case_;
  std::vector<std::unique_ptr<HotSequence>> sequences_;
  std::vector<std::size_t> host_pages_of_, first_device_page_, first_host_page_;
  std::vector<std::int32_t> device_tables_, host_tables_;
  std::unique_ptr<MappedHostMemory> host_pool_;
  std::vector<std::byte> pool_;  // the specification's
  SwapCounters expected_;
  DeviceBuffer<std::byte> device_pool_;
  DeviceBuffer<std::int32_t> device_pages_, host_pages_, blocks_, lengths_, selected_, selected_counts_, slot_of_;
  DeviceBuffer<std::uint16_t> lru_;
  DeviceBuffer<HotRow> rows_;
  DeviceBuffer<SparseMiss> misses_;
  DeviceBuffer<SparseDiffCounts> counts_;
  DeviceBuffer<SwapCounters> counters_;
};

class SwapInTest : public GpuTestWithParam<Case> {};

TEST_P(SwapInTest, EveryByteOfThePool) {
  SwapInBatch batch(GetParam(), 11, test_seed() + 10);
  for (int step = 0; step < 8; ++step) {
    SCOPED_TRACE(concat("step ", step, " seed ", test_seed()));
    batch.run_and_compare();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(batch.expected().misses, batch.expected().ring_misses);
  EXPECT_GT(batch.expected().ring_misses, 0U);
}

TEST_P(SwapInTest, OneSequence) {
  SwapInBatch batch(GetParam(), 1, test_seed() + 11);
  for (int step = 0; step < 4; ++step) {
    batch.run_and_compare();
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, SwapInTest,
                         ::testing::Values(Case{656, 32}, Case{656, 1}, Case{656, 200}, Case{576, 16}, Case{1152, 32},
                                           Case{2048, 32}, Case{8192, 24}, Case{64, 32}, Case{16, 32}, Case{100, 32},
                                           Case{33, 7}, Case{656, 32, false}),
                         [](const auto& info) {
                           return concat("Bytes", info.param.row_bytes, "Blocks", info.param.io_blocks,
                                         info.param.aligned ? "" : "Unaligned");
                         });

TEST_F(GpuTest, LargestBatch) {
  SwapInBatch batch({64, 32}, kMostSwapBatch, test_seed() + 12);
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(concat("step ", step, " seed ", test_seed()));
    batch.run_and_compare();
    if (HasFatalFailure()) return;
  }
}

class MoveRowsTest : public GpuTestWithParam<std::int64_t> {};

TEST_P(MoveRowsTest, ToTheHostAndBackAndNothingElse) {
  const std::int64_t row_bytes = GetParam();
  constexpr std::size_t kDevicePages = 40, kHostPages = 60;
  // Each run has 8 device and 10 host pages of the tables. The ring's wrap lies inside a page, and inside a run.
  std::vector<RowRun> runs = {{.first_position = 64, .rows = 64},
                              {.first_position = 0, .rows = 17},
                              {.first_position = 128, .rows = 64, .ring_tokens = 80},
                              {.first_position = 192, .rows = 0, .ring_tokens = 80},
                              {.first_position = 300, .rows = 200, .ring_tokens = 448}};
  MappedHostMemory host(kHostPages * kPageTokens * row_bytes);
  fill_random(host.host(), host.bytes(), test_seed() + 20);
  std::vector<std::byte> expected(host.host(), host.host() + host.bytes());
  std::vector<std::byte> pool(kDevicePages * kPageTokens * row_bytes);
  fill_random(pool.data(), pool.size(), test_seed() + 21);
  const auto device_tables = shuffled_pages(kDevicePages, test_seed() + 22);
  const auto host_tables = shuffled_pages(kHostPages, test_seed() + 23);
  DeviceBuffer<std::byte> device_pool(pool.size());
  device_pool.upload(pool.data(), pool.size());
  DeviceBuffer<std::int32_t> device_pages(kDevicePages), host_pages(kHostPages);
  device_pages.upload(device_tables.data(), kDevicePages);
  host_pages.upload(host_tables.data(), kHostPages);
  std::uint64_t bytes = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    RowRun& run = runs[r];
    run.device_pages = device_pages.data() + 8 * r;
    run.host_pages = host_pages.data() + 10 * r;
    run.host_rows = host.device();
    bytes += static_cast<std::uint64_t>(run.rows * row_bytes);
    for (std::int64_t position = run.first_position; position < run.first_position + run.rows; ++position) {
      const std::int64_t row = run.ring_tokens > 0 ? position % run.ring_tokens : position;
      const std::int64_t source = device_tables[8 * r + row / kPageTokens] * kPageTokens + row % kPageTokens;
      const std::int64_t target = host_tables[10 * r + position / kPageTokens] * kPageTokens + position % kPageTokens;
      std::memcpy(expected.data() + target * row_bytes, pool.data() + source * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  }
  DeviceBuffer<RowRun> device_runs(runs.size());
  device_runs.upload(runs.data(), runs.size());
  DeviceBuffer<std::uint64_t> offloaded(1);
  offloaded.fill_bytes(0);
  for (const std::int32_t blocks : {3, 32}) {
    if (blocks == 32) fill_random(host.host(), host.bytes(), test_seed() + 20);
    launch_offload({.runs = device_runs.data(),
                    .device_rows = device_pool.data(),
                    .bytes_moved = offloaded.data(),
                    .row_bytes = row_bytes,
                    .run_count = static_cast<std::int32_t>(runs.size()),
                    .blocks = blocks},
                   nullptr);
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<std::byte> got(host.host(), host.host() + host.bytes());
    ASSERT_EQ(first_difference(got, expected.data(), row_bytes), "") << blocks << " blocks";
  }
  std::uint64_t counted = 0;
  offloaded.download(&counted, 1);
  EXPECT_EQ(counted, 2 * bytes);

  // And back: other rows on the host.
  fill_random(host.host(), host.bytes(), test_seed() + 24);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (std::int64_t position = runs[r].first_position; position < runs[r].first_position + runs[r].rows; ++position) {
      const std::int64_t row = runs[r].ring_tokens > 0 ? position % runs[r].ring_tokens : position;
      const std::int64_t target = device_tables[8 * r + row / kPageTokens] * kPageTokens + row % kPageTokens;
      const std::int64_t source = host_tables[10 * r + position / kPageTokens] * kPageTokens + position % kPageTokens;
      std::memcpy(pool.data() + target * row_bytes, host.host() + source * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  }
  launch_restore({.runs = device_runs.data(),
                  .device_rows = device_pool.data(),
                  .row_bytes = row_bytes,
                  .run_count = static_cast<std::int32_t>(runs.size())},
                 nullptr);
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<std::byte> restored(pool.size());
  device_pool.download(restored.data(), restored.size());
  EXPECT_EQ(first_difference(restored, pool.data(), row_bytes), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, MoveRowsTest, ::testing::Values(16, 100, 576, 656, 2048, 8192));

}  // namespace
}  // namespace hotset::kernels::cuda
