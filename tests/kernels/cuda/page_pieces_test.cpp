#include "kernels/cuda/page_pieces.h"

#include <algorithm>
#include <compare>
#include <numeric>
#include <random>
#include <vector>

#include "core/kv_geometry.h"
#include "kernels/cuda/runtime.h"
#include "tests/kernels/cuda/gpu_test.h"
#include "tests/seed.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kRowBytes = 48;
// Never read: only addresses matter where nothing is copied.
std::byte* const kDevice = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
std::byte* const kHost = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 41);

struct Row {
  std::byte* device;
  std::byte* host;
  auto operator<=>(const Row&) const = default;
};

std::vector<Row> rows_of(std::span<const RowRun> runs, std::byte* device_rows) {
  std::vector<Row> rows;
  for (const RowRun& run : runs) {
    for (std::int64_t position = run.first_position; position < run.first_position + run.rows; ++position) {
      const std::int64_t at = run.ring_tokens > 0 ? position % run.ring_tokens : position;
      const std::int64_t device = run.device_pages[at / kPageTokens] * kPageTokens + at % kPageTokens;
      const std::int64_t host = run.host_pages[position / kPageTokens] * kPageTokens + position % kPageTokens;
      rows.push_back({device_rows + device * kRowBytes, run.host_rows + host * kRowBytes});
    }
  }
  return rows;
}

std::vector<Row> rows_of(const ContiguousPiece& piece) {
  std::vector<Row> rows;
  for (std::int64_t at = 0; at < piece.bytes; at += kRowBytes) rows.push_back({piece.device + at, piece.host + at});
  return rows;
}

// Row by row: stretches of rows that follow each other on both sides, and of these the large ones.
std::vector<std::vector<Row>> large_stretches(const std::vector<Row>& rows, std::int64_t least_bytes) {
  std::vector<std::vector<Row>> stretches;
  for (const Row& row : rows) {
    const bool goes_on = !stretches.empty() && stretches.back().back().device + kRowBytes == row.device &&
                         stretches.back().back().host + kRowBytes == row.host;
    if (!goes_on) stretches.emplace_back();
    stretches.back().push_back(row);
  }
  std::erase_if(stretches, [&](const auto& stretch) {
    return static_cast<std::int64_t>(stretch.size()) * kRowBytes < least_bytes;
  });
  return stretches;
}

// Page numbers that mostly follow each other.
std::vector<std::int32_t> pages_in_stretches(std::size_t count, std::mt19937_64& random) {
  std::vector<std::int32_t> starts(count), pages;
  std::iota(starts.begin(), starts.end(), 0);
  std::ranges::shuffle(starts, random);
  std::vector<bool> used(count);
  for (const std::int32_t start : starts) {
    const std::size_t length = 1 + random() % 6;
    for (auto page = static_cast<std::size_t>(start); page < count && page < start + length && !used[page]; ++page) {
      used[page] = true;
      pages.push_back(static_cast<std::int32_t>(page));
    }
  }
  return pages;
}

TEST(PagePieces, EveryRowOnceAndLargePiecesTogether) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::int32_t> device = pages_in_stretches(40, random);
    const std::vector<std::int32_t> host = pages_in_stretches(40, random);
    std::vector<RowRun> runs;
    const auto first = static_cast<std::int64_t>(random() % 700);
    const std::int64_t end = first + 1 + static_cast<std::int64_t>(random() % 1500);
    const auto ring =
        static_cast<std::int32_t>(random() % 2 == 0 ? 0 : end - first + static_cast<std::int64_t>(random() % 100));
    const std::int64_t step = random() % 3 == 0 ? 1000 : kPageTokens;
    for (std::int64_t position = first; position < end;) {
      const std::int64_t next = std::min(end, (position / step + 1) * step);
      runs.push_back({.device_pages = device.data(),
                      .host_pages = host.data(),
                      .host_rows = kHost,
                      .first_position = position,
                      .rows = static_cast<std::int32_t>(next - position),
                      .ring_tokens = ring});
      position = next;
    }
    const auto least = static_cast<std::int64_t>(random() % 300) * kRowBytes;
    const SplitRuns split = split_runs(runs, kDevice, kRowBytes, least);
    std::vector<std::vector<Row>> pieces;
    std::vector<Row> all = rows_of(split.rest, kDevice);
    for (const ContiguousPiece& piece : split.pieces) {
      pieces.push_back(rows_of(piece));
      all.insert(all.end(), pieces.back().begin(), pieces.back().end());
    }
    std::vector<Row> expected = rows_of(runs, kDevice);
    ASSERT_EQ(pieces, large_stretches(expected, least)) << "round " << round;
    std::ranges::sort(all);
    std::ranges::sort(expected);
    ASSERT_EQ(all, expected) << "round " << round;
    for (const RowRun& run : split.rest) ASSERT_LE(run.rows, kPageTokens);
  }
}

// A page of each of two layers: pieces of a page where it is large enough, never across the layers' ends by accident.
TEST(PagePieces, PagesThatLieApart) {
  const std::vector<std::int32_t> device = {4, 9}, host = {1, 2};
  std::vector<RowRun> runs;
  for (const std::int64_t page : {0, 1}) {
    runs.push_back({.device_pages = device.data(),
                    .host_pages = host.data(),
                    .host_rows = kHost,
                    .first_position = page * kPageTokens,
                    .rows = kPageTokens});
  }
  runs.push_back({.device_pages = device.data(), .host_pages = host.data(), .host_rows = kHost, .rows = 0});
  const SplitRuns large = split_runs(runs, kDevice, kRowBytes, kPageTokens * kRowBytes);
  ASSERT_EQ(large.pieces.size(), 2U);
  EXPECT_EQ(large.pieces[1].device, kDevice + 9 * kPageTokens * kRowBytes);
  EXPECT_EQ(large.pieces[1].host, kHost + 2 * kPageTokens * kRowBytes);
  EXPECT_EQ(large.pieces[1].bytes, kPageTokens * kRowBytes);
  EXPECT_TRUE(large.rest.empty());
  const SplitRuns small = split_runs(runs, kDevice, kRowBytes, kPageTokens * kRowBytes + 1);
  EXPECT_TRUE(small.pieces.empty());
  EXPECT_EQ(small.rest.size(), 2U);
}

using PagePiecesDevice = GpuTest;

TEST_F(PagePiecesDevice, CopiesThereAndBack) {
  std::mt19937_64 random(test_seed());
  constexpr std::int64_t kBytes = 3 << 20;
  MappedHostMemory host(kBytes);
  DeviceBuffer<std::byte> device(kBytes);
  std::vector<std::byte> original(kBytes);
  for (std::byte& x : original) x = static_cast<std::byte>(random());
  std::ranges::copy(original, host.host());
  device.fill_bytes(0x55);
  OwnedStream stream;
  // Swapped thirds, and a hole between the first two.
  constexpr std::int64_t kThird = 1 << 20;
  const std::vector<ContiguousPiece> pieces = {{device.data() + kThird, host.host(), kThird - 7},
                                               {device.data(), host.host() + kThird, kThird},
                                               {device.data() + 2 * kThird, host.host() + 2 * kThird, kThird}};
  copy_pieces({}, false, stream.get());
  copy_pieces(pieces, false, stream.get());
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  std::vector<std::byte> got(kBytes);
  device.download(got.data(), got.size());
  std::vector<std::byte> expected(kBytes, std::byte{0x55});
  std::copy_n(original.begin(), kThird - 7, expected.begin() + kThird);
  std::copy_n(original.begin() + kThird, kThird, expected.begin());
  std::copy_n(original.begin() + 2 * kThird, kThird, expected.begin() + 2 * kThird);
  ASSERT_TRUE(got == expected);
  std::fill_n(host.host(), kBytes, std::byte{0x33});
  copy_pieces(pieces, true, stream.get());
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  std::fill_n(original.begin() + kThird - 7, 7, std::byte{0x33});
  ASSERT_TRUE(std::equal(original.begin(), original.end(), host.host()));
}

}  // namespace
}  // namespace hotset::kernels::cuda
