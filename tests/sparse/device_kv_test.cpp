// Rows and metadata of a sequence on their way between a GPU's pool and the host's, through every mode. Pages are large
// enough for copies of their own; some lie together, others don't; then as the planner gives them.
#include "sparse/device_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/mapped_pool.h"
#include "tests/seed.h"

namespace hotset::sparse {
namespace {

namespace cuda = kernels::cuda;

constexpr std::int32_t kLayers = 2;
constexpr std::int32_t kHostPages = 40;
constexpr std::int32_t kDevicePages = 64;
constexpr std::int32_t kMetadataPages = 64;
constexpr std::int64_t kTokens = 11 * kPageTokens + 30;
constexpr std::int64_t kSequencePages = 12;
constexpr HotBufferShape kHot{.hot_blocks = 64, .block_tokens = 1, .ring_recent = 200, .ring_tokens = 264};

KvLayout test_layout() {
  const KvGeometry rows{kLayers, 8, 128, 128, KvGeometry::Layout::kGrouped, KvDType::kBF16};  // pages of 256 KiB
  return KvLayout::uniform(rows, {.kind = MetadataGeometry::Kind::kLowRankKeys, .kv_heads = 8, .dim = 128, .rank = 32});
}

template <class Id>
std::vector<Id> ids(const std::vector<std::int32_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

template <class T>
T require(Result<T> result) {
  EXPECT_TRUE(result.ok());
  return std::move(result).value();
}

class DeviceKvMoves : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto gpu = cuda::find_gpu();
    if (!gpu.ok()) GTEST_SKIP() << "no GPU here";
    backend_ = cuda::make_cuda_backend(gpu.value(), stream_.emplace(), kernels::ElementType::kBF16);
    const KvLayout layout = test_layout();
    device_ = std::make_unique<storage::DevicePool>(
        require(storage::DevicePool::create(layout, {kDevicePages, kMetadataPages}, cuda::device_pool_memory)));
    host_ = std::make_unique<storage::HostPool>(
        require(storage::HostPool::create(layout, kHostPages, cuda::mapped_pool_memory(std::int64_t{1} << 30))));
    kv_ = std::make_unique<DeviceKv>(
        *device_, *host_, *backend_, *stream_,
        DeviceKvLimits{.max_batch = 2, .max_tokens = 20 * kPageTokens, .max_selected = 64, .largest_hot = kHot});
    pinned_ = cuda::allocate_pinned(kDevicePages * layout.rows.page_bytes());
    sequence_.keeps_metadata = true;
    fill_device();
    fill_host();
  }

  // Every pool holds noise of its own.
  void fill_device() {
    upload(device_->base(), kDevicePages * layout().rows.page_bytes());
    upload(device_->metadata_base(), kMetadataPages * layout().metadata.page_bytes());
  }
  void fill_host() {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      fill(host_->row(LayerId{layer}, HostSlot{0}), kHostPages * layout().rows.page_bytes());
      fill(host_->metadata(layer, HostPage{0}), kHostPages * layout().metadata.page_bytes());
    }
  }
  void fill(std::byte* to, std::int64_t bytes) {
    for (std::int64_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t word = random_();
      std::memcpy(to + i, &word, 8);
    }
  }
  void upload(std::byte* to, std::int64_t bytes) {
    fill(static_cast<std::byte*>(pinned_->data()), bytes);
    stream_->copy(pinned_->data(), to, bytes);
    stream_->synchronize();
  }
  [[nodiscard]] std::vector<std::byte> download(const std::byte* from, std::int64_t bytes) const {
    stream_->copy(from, pinned_->data(), bytes);
    stream_->synchronize();
    const auto* const data = static_cast<const std::byte*>(pinned_->data());
    return {data, data + bytes};
  }
  [[nodiscard]] const KvLayout& layout() const { return device_->layout(); }
  [[nodiscard]] std::vector<std::byte> host_bytes(const std::byte* from, std::int64_t bytes) const {
    return {from, from + bytes};
  }

  // Rows [first, end) of a layer on the host, one after the other, and whole metadata pages of [0, pages).
  [[nodiscard]] std::vector<std::byte> rows_on_host(std::int32_t layer, std::int64_t first, std::int64_t end) const {
    std::vector<std::byte> out;
    const std::int64_t bytes = layout().rows.row_bytes();
    for (std::int64_t position = first; position < end; ++position) {
      const HostPage page = sequence_.host_pages[static_cast<std::size_t>(position / kPageTokens)];
      const std::byte* const row = host_->row(LayerId{layer}, host_slot_of(page, position % kPageTokens));
      out.insert(out.end(), row, row + bytes);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::byte> metadata_on_host(std::int32_t layer, std::int64_t pages) const {
    std::vector<std::byte> out;
    for (std::int64_t page = 0; page < pages; ++page) {
      const std::byte* const from = host_->metadata(layer, sequence_.host_pages[static_cast<std::size_t>(page)]);
      out.insert(out.end(), from, from + layout().metadata.page_bytes());
    }
    return out;
  }
  // The same of the device; `offset`: pages before those of the rows, `ring`: rows repeat after so many (0: never).
  [[nodiscard]] std::vector<std::byte> rows_on_device(std::int32_t layer, std::int64_t first, std::int64_t end,
                                                      std::int64_t offset = 0, std::int64_t ring = 0) const {
    const std::vector<std::byte> pool = download(device_->base(), kDevicePages * layout().rows.page_bytes());
    const auto& pages = sequence_.device_pages[static_cast<std::size_t>(layer)];
    std::vector<std::byte> out;
    const std::int64_t bytes = layout().rows.row_bytes();
    for (std::int64_t position = first; position < end; ++position) {
      const std::int64_t at = ring == 0 ? position : position % ring;
      const PageId page = pages[static_cast<std::size_t>(offset + at / kPageTokens)];
      const auto row = pool.begin() + slot_of(page, at % kPageTokens).value() * bytes;
      out.insert(out.end(), row, row + bytes);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::byte> metadata_on_device(std::int32_t layer, std::int64_t pages) const {
    std::vector<std::byte> out;
    for (std::int64_t page = 0; page < pages; ++page) {
      const MetadataPageId id =
          sequence_.metadata_pages[static_cast<std::size_t>(layer)][static_cast<std::size_t>(page)];
      const std::vector<std::byte> bytes = download(device_->metadata(id), layout().metadata.page_bytes());
      out.insert(out.end(), bytes.begin(), bytes.end());
    }
    return out;
  }

  void apply(const KvOp& op) {
    kv_->begin_step();
    kv_->apply(sequence_, op, traffic_);
    kv_->end_step();
    kv_->synchronize();
  }
  // [layers][pages] of two tables.
  static std::vector<std::int32_t> both(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::mt19937_64 random_{test_seed()};
  std::optional<cuda::DeviceStream> stream_;
  std::unique_ptr<kernels::DenseBackend> backend_;
  std::unique_ptr<storage::DevicePool> device_;
  std::unique_ptr<storage::HostPool> host_;
  std::unique_ptr<kernels::Memory> pinned_;
  SequenceKv sequence_;
  TierTraffic traffic_;
  std::unique_ptr<DeviceKv> kv_;
};

TEST_F(DeviceKvMoves, ThroughEveryMode) {
  // Seven pages together on both sides, a few apart, two together on the device alone.
  const std::vector<std::int32_t> host = {3, 4, 5, 6, 7, 8, 9, 20, 31, 30, 12, 13};
  const std::vector<std::int32_t> first = {10, 11, 12, 13, 14, 15, 16, 2, 3, 4, 40, 41};
  const std::vector<std::int32_t> second = {50, 20, 21, 22, 23, 24, 25, 26, 5, 60, 61, 62};
  apply({.kind = KvOp::Kind::kAddHostPages, .host_pages = ids<HostPage>(host)});
  apply({.kind = KvOp::Kind::kEnterResident});
  apply({.kind = KvOp::Kind::kAddDevicePages, .device_pages = ids<PageId>(both(first, second))});
  std::vector<std::int32_t> numbers(kSequencePages);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::vector<std::int32_t> others(kSequencePages);
  std::iota(others.rbegin(), others.rend(), 20);
  apply({.kind = KvOp::Kind::kAddMetadataPages, .metadata_pages = ids<MetadataPageId>(both(numbers, others))});

  // Finished pages go to the host by themselves, the last one when the sequence is parked.
  kv_->begin_step();
  kv_->commit_rows(sequence_, kTokens, traffic_);
  kv_->end_step();
  kv_->synchronize();
  std::vector<std::vector<std::byte>> rows, metadata;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    rows.push_back(rows_on_device(layer, 0, kTokens));
    metadata.push_back(metadata_on_device(layer, kSequencePages));
    const std::int64_t finished = kTokens / kPageTokens * kPageTokens;
    const auto expected = std::span(rows.back()).first(static_cast<std::size_t>(finished * layout().rows.row_bytes()));
    ASSERT_TRUE(std::ranges::equal(rows_on_host(layer, 0, finished), expected)) << "layer " << layer;
  }
  EXPECT_EQ(traffic_.bytes_offloaded, kLayers * 11 * (layout().rows.page_bytes() + layout().metadata.page_bytes()));
  const std::vector<std::byte> foreign = host_bytes(host_->page(LayerId{0}, HostPage{10}), layout().rows.page_bytes());
  apply({.kind = KvOp::Kind::kPark});
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    ASSERT_TRUE(rows_on_host(layer, 0, kTokens) == rows[at]) << "layer " << layer;
    ASSERT_TRUE(metadata_on_host(layer, kSequencePages) == metadata[at]) << "layer " << layer;
  }
  ASSERT_TRUE(host_bytes(host_->page(LayerId{0}, HostPage{10}), layout().rows.page_bytes()) == foreign);

  // Back into other pages.
  fill_device();
  const std::vector<std::int32_t> back = {30, 31, 32, 33, 34, 7, 8, 9, 6, 1, 2, 3};
  apply({.kind = KvOp::Kind::kEnterResident,
         .device_pages = ids<PageId>(both(back, second)),
         .metadata_pages = ids<MetadataPageId>(both(others, numbers))});
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    ASSERT_TRUE(rows_on_device(layer, 0, kTokens) == rows[at]) << "layer " << layer;
    ASSERT_TRUE(metadata_on_device(layer, kSequencePages) == metadata[at]) << "layer " << layer;
  }

  // Hot: the ring holds the newest rows.
  const HotPages pages = hot_pages_of(kHot);
  std::vector<std::int32_t> hot(static_cast<std::size_t>(kLayers * pages.total()));
  std::iota(hot.begin(), hot.end(), 40);
  apply({.kind = KvOp::Kind::kEnterHot, .device_pages = ids<PageId>(hot), .shape = kHot});
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const std::int64_t oldest = kTokens - kHot.ring_tokens;
    ASSERT_TRUE(rows_on_device(layer, oldest, kTokens, pages.buffer, kHot.ring_tokens) ==
                rows_on_host(layer, oldest, kTokens))
        << "layer " << layer;
  }
}

// A prompt from the host: pieces of its rows in a buffer, on the compute stream and beside it.
TEST_F(DeviceKvMoves, RowsOfAParkedSequence) {
  apply({.kind = KvOp::Kind::kAddHostPages, .host_pages = ids<HostPage>({3, 4, 5, 6, 7, 8, 9, 10, 31, 30, 12, 13})});
  sequence_.length = sequence_.host_complete = kTokens;
  const cuda::DeviceStream other;
  constexpr std::int64_t kBuffer = 10 * kPageTokens;
  const std::int64_t bytes = layout().rows.row_bytes();
  const auto buffer = backend_->array<std::byte>(kBuffer * bytes);
  const cuda::DeviceStream* const streams[] = {&*stream_, &other};
  for (const cuda::DeviceStream* const stream : streams) {
    upload(buffer.data(), kBuffer * bytes);
    for (const auto& [first, end] :
         {std::pair{std::int64_t{70}, std::int64_t{700}}, std::pair{std::int64_t{128}, kTokens}}) {
      kv_->begin_step();
      kv_->move_parked_rows(sequence_, LayerId{1}, first, end, buffer.data(), kBuffer, DeviceKv::Direction::kToDevice,
                            traffic_, *stream);
      stream->synchronize();
      const std::vector<std::byte> got = download(buffer.data(), kBuffer * bytes);
      const std::vector<std::byte> expected = rows_on_host(1, first, end);
      for (std::int64_t position = first; position < end; ++position) {
        ASSERT_EQ(std::memcmp(got.data() + position % kBuffer * bytes, expected.data() + (position - first) * bytes,
                              static_cast<std::size_t>(bytes)),
                  0)
            << "row " << position;
      }
      // And what is there now to the host.
      upload(buffer.data(), kBuffer * bytes);
      kv_->move_parked_rows(sequence_, LayerId{1}, first, end, buffer.data(), kBuffer, DeviceKv::Direction::kToHost,
                            traffic_, *stream);
      stream->synchronize();
      const std::vector<std::byte> written = download(buffer.data(), kBuffer * bytes);
      const std::vector<std::byte> on_host = rows_on_host(1, first, end);
      for (std::int64_t position = first; position < end; ++position) {
        ASSERT_EQ(std::memcmp(written.data() + position % kBuffer * bytes, on_host.data() + (position - first) * bytes,
                              static_cast<std::size_t>(bytes)),
                  0)
            << "row " << position;
      }
    }
  }
}

// The smallest ring: a page's first slot is written again two steps after the page was finished, while its copy may
// still be on its way.
TEST_F(DeviceKvMoves, ARingSlotWaitsForItsCopy) {
  const HotBufferShape shape = require(make_hot_buffer_shape(64, 1, kLeastRecent));
  ASSERT_EQ(shape.ring_tokens, 65);
  constexpr std::int64_t kPages = 20;
  std::vector<std::int32_t> host(kPages);
  std::iota(host.begin(), host.end(), 5);
  std::vector<std::int32_t> device(static_cast<std::size_t>(kLayers * hot_pages_of(shape).total()));
  std::iota(device.begin(), device.end(), 7);
  sequence_.keeps_metadata = false;
  apply({.kind = KvOp::Kind::kAddHostPages, .host_pages = ids<HostPage>(host)});
  apply({.kind = KvOp::Kind::kEnterHot, .device_pages = ids<PageId>(device), .shape = shape});
  const std::int64_t bytes = layout().rows.row_bytes();
  const std::int64_t layer_bytes = kPages * kPageTokens * bytes;
  const auto written = cuda::allocate_pinned(kLayers * layer_bytes);
  auto* const rows = static_cast<std::byte*>(written->data());
  fill(rows, kLayers * layer_bytes);
  for (std::int64_t position = 0; position < kPages * kPageTokens; ++position) {
    kv_->begin_step();
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const std::int64_t at = position % shape.ring_tokens;
      const auto page = static_cast<std::size_t>(hot_pages_of(shape).buffer + at / kPageTokens);
      const SlotId slot = slot_of(sequence_.device_pages[static_cast<std::size_t>(layer)][page], at % kPageTokens);
      stream_->copy(rows + layer * layer_bytes + position * bytes, device_->base() + slot.value() * bytes, bytes);
    }
    kv_->commit_rows(sequence_, 1, traffic_);
    kv_->end_step();
  }
  kv_->synchronize();
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<std::byte> got = rows_on_host(layer, 0, kPages * kPageTokens);
    for (std::int64_t position = 0; position < kPages * kPageTokens; ++position) {
      ASSERT_EQ(std::memcmp(got.data() + position * bytes, rows + layer * layer_bytes + position * bytes,
                            static_cast<std::size_t>(bytes)),
                0)
          << "layer " << layer << ", row " << position;
    }
  }
}

// Pages of the sequence's layer `layer` that lie together on both sides: the longest piece.
std::int64_t longest_piece(const SequenceKv& kv, std::size_t layer) {
  const std::vector<PageId>& pages = kv.device_pages[layer];
  std::int64_t longest = 1, length = 1;
  for (std::size_t i = 1; i < pages.size(); ++i) {
    const bool together =
        pages[i].value() == pages[i - 1].value() + 1 && kv.host_pages[i].value() == kv.host_pages[i - 1].value() + 1;
    length = together ? length + 1 : 1;
    longest = std::max(longest, length);
  }
  return longest;
}

// Two requests fill the pool: the younger one is parked while the older one grows, and comes back into other pages.
TEST_F(DeviceKvMoves, PagesOfThePlanner) {
  actors::KvCachePlanner planner({.layout = layout(),
                                  .device_pages = kDevicePages,
                                  .metadata_pages = kMetadataPages,
                                  .host_pages = kHostPages,
                                  .mode = KvModeChoice::kAuto});
  SequenceKv older;
  older.id = SequenceId{1};
  older.keeps_metadata = true;
  sequence_.id = SequenceId{2};
  const auto of = [&](SequenceId id) -> SequenceKv& { return id == older.id ? older : sequence_; };
  const auto admit = [&](SequenceId id, std::int64_t output, bool resume) {
    const auto answer = planner.acquire({.id = id,
                                         .prompt_tokens = kTokens,
                                         .max_new_tokens = output,
                                         .keeps_metadata = true,
                                         .hot_shape = {},
                                         .resume = resume});
    ASSERT_TRUE(answer.ok() && answer.value() == actors::Admission::kGranted);
  };
  const auto step = [&](actors::KvRows rows) {
    const actors::KvStepPlan plan = planner.plan_step({&rows, 1});
    kv_->begin_step();
    for (const actors::KvTransition& transition : plan.transitions)
      for (const KvOp& op : transition.ops) kv_->apply(of(transition.id), op, traffic_);
    ASSERT_TRUE(plan.ops[0].has_value());
    for (const KvOp& op : *plan.ops[0]) kv_->apply(of(rows.id), op, traffic_);
    kv_->commit_rows(of(rows.id), rows.rows, traffic_);
    kv_->end_step();
    kv_->synchronize();
  };
  constexpr std::int64_t kOneMiB = 4;  // pages
  for (const std::uint64_t id : {1, 2}) {
    ASSERT_NO_FATAL_FAILURE(admit(SequenceId{id}, id == 1 ? 600 : 300, false));
    ASSERT_NO_FATAL_FAILURE(step({.id = SequenceId{id}, .rows = kTokens, .prefill = true}));
  }
  std::vector<std::vector<std::byte>> rows, metadata;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_GE(longest_piece(sequence_, static_cast<std::size_t>(layer)), kOneMiB);
    rows.push_back(rows_on_device(layer, 0, kTokens));
    metadata.push_back(metadata_on_device(layer, kSequencePages));
    constexpr std::int64_t kFinished = kTokens / kPageTokens * kPageTokens;
    const auto expected = std::span(rows.back()).first(static_cast<std::size_t>(kFinished * layout().rows.row_bytes()));
    ASSERT_TRUE(std::ranges::equal(rows_on_host(layer, 0, kFinished), expected)) << "layer " << layer;
  }
  while (sequence_.mode == KvMode::kResident) {
    ASSERT_LT(older.length, kTokens + 600);
    ASSERT_NO_FATAL_FAILURE(step({.id = older.id, .first_position = older.length, .rows = 1}));
  }
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    ASSERT_TRUE(rows_on_host(layer, 0, kTokens) == rows[at]) << "layer " << layer;
    ASSERT_TRUE(metadata_on_host(layer, kSequencePages) == metadata[at]) << "layer " << layer;
  }
  planner.release(older.id);
  fill_device();
  ASSERT_NO_FATAL_FAILURE(admit(sequence_.id, 0, true));
  ASSERT_NO_FATAL_FAILURE(step({.id = sequence_.id, .turn = 1, .first_position = kTokens, .rows = 1}));
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    EXPECT_GE(longest_piece(sequence_, at), kOneMiB);
    ASSERT_TRUE(rows_on_device(layer, 0, kTokens) == rows[at]) << "layer " << layer;
    ASSERT_TRUE(metadata_on_device(layer, kSequencePages) == metadata[at]) << "layer " << layer;
  }
}

}  // namespace
}  // namespace hotset::sparse
