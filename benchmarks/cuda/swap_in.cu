// Swap-in per layer: the sparse diff alone, and diff plus page I/O, by batch and share of misses.
//
//   swap_in [--quick]
//
// K 2,048 single-token blocks of 131,072 tokens, buffer 4,096, rows of 656 bytes. A replay runs 16 layers with a state
// and a selection of their own, which the L2 does not hold: a buffer of 256 MB is written before each. The step keeps
// the last selection but for the misses, which are new blocks. A sequence's host rows lie in extents of 2 MiB anywhere
// in the pool, as the host pool gives them; "pages" has every page of 64 rows anywhere.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>

#include "benchmarks/cuda/graph_time.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/swap_in.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int32_t kSelected = 2048;
constexpr std::int32_t kHot = 4096;
constexpr std::int32_t kTokens = 131'072;
constexpr std::int32_t kRecent = 128;
constexpr std::int32_t kRing = kRecent + 64;
constexpr std::int64_t kRowBytes = 656;
constexpr std::int32_t kLayers = 16;
constexpr std::int32_t kMostBatch = 128;
constexpr std::int64_t kPagesOfSequence = kTokens / kPageTokens;
constexpr std::int64_t kDevicePages = (kHot + kRing) / kPageTokens;
constexpr std::int64_t kExtentPages = 50;  // 2 MiB

// Times of the peer and the project's targets (docs/results), microseconds; 0: none.
struct Known {
  std::int32_t batch, percent;
  double peer, must, aim;
};
constexpr Known kKnown[] = {
    {1, 0, 20, 0, 0},       {1, 2, 30, 0, 0},   {1, 5, 37, 24, 14},      {1, 10, 47, 0, 0},
    {1, 100, 251, 0, 0},    {8, 0, 23, 0, 0},   {8, 5, 42, 32, 22},      {8, 10, 56, 0, 0},
    {8, 100, 339, 0, 0},    {32, 0, 23, 0, 0},  {32, 5, 92, 75, 52},     {32, 10, 153, 0, 0},
    {32, 100, 1322, 0, 0},  {64, 0, 25, 0, 0},  {64, 5, 156, 130, 98},   {64, 10, 278, 0, 0},
    {64, 100, 2559, 0, 0},  {128, 0, 23, 0, 0}, {128, 5, 286, 240, 190}, {128, 10, 533, 0, 0},
    {128, 100, 5046, 0, 0},
};

struct Layout {
  const char* name;
  double gib;
  std::int64_t run_pages;  // contiguous pages of a sequence
};

__global__ void fill(std::uint32_t* words, std::int64_t count, std::uint32_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto x = static_cast<std::uint32_t>(i) * 2'654'435'761U + seed;
    words[i] = x ^ x >> 15;
  }
}

// Everything of the largest batch; smaller ones use its first rows.
class Bench {
 public:
  explicit Bench(const MappedHostMemory& pool) : pool_(pool) {
    constexpr std::size_t kStates = std::size_t{kLayers} * kMostBatch;
    blocks_ = DeviceBuffer<std::int32_t>(kStates * kHot);
    first_blocks_ = DeviceBuffer<std::int32_t>(kStates * kHot);
    lru_ = DeviceBuffer<std::uint16_t>(kStates * kHot);
    first_lru_ = DeviceBuffer<std::uint16_t>(kStates * kHot);
    selected_ = DeviceBuffer<std::int32_t>(kStates * kSelected);
    rows_ = DeviceBuffer<HotRow>(kStates);
    host_pages_ = DeviceBuffer<std::int32_t>(kMostBatch * kPagesOfSequence);
    device_pages_ = DeviceBuffer<std::int32_t>(kMostBatch * kDevicePages);
    device_rows_ = DeviceBuffer<std::byte>(kMostBatch * kDevicePages * kPageTokens * kRowBytes);
    flush_ = DeviceBuffer<std::byte>(std::size_t{256} << 20);
    std::vector<std::int32_t> lengths(kMostBatch, kTokens), counts(kMostBatch, kSelected);
    lengths_.upload(lengths.data(), lengths.size());
    selected_counts_.upload(counts.data(), counts.size());
    std::vector<std::int32_t> pages(device_pages_.size());
    std::iota(pages.begin(), pages.end(), 0);
    device_pages_.upload(pages.data(), pages.size());
    make_states();
  }

  // Extents of `run_pages` pages at random places of the first `gib` of the pool.
  void place(const Layout& layout) {
    const auto extents =
        static_cast<std::int64_t>(layout.gib * (1 << 30)) / (kPageTokens * kRowBytes) / layout.run_pages;
    std::vector<std::int32_t> pages(host_pages_.size());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto in_run = static_cast<std::int64_t>(i) % kPagesOfSequence % layout.run_pages;
      pages[i] = static_cast<std::int32_t>(in_run == 0 ? std::int64_t(random_() % extents) * layout.run_pages
                                                       : pages[i - 1] + 1);
    }
    host_pages_.upload(pages.data(), pages.size());
  }

  // The next selection: all but `misses` of the second half of the buffer, and as many blocks that are not in it.
  void select(std::int32_t misses) {
    std::vector<std::int32_t> selected;
    selected.reserve(selected_.size());
    for (std::size_t state = 0; state < std::size_t{kLayers} * kMostBatch; ++state) {
      const std::int32_t* held = held_.data() + state * kHot;
      std::vector<bool> taken(kTokens, false);
      for (std::int32_t i = 0; i < kHot; ++i) taken[held[i]] = true;
      std::vector<std::int32_t> one(held + kHot - kSelected, held + kHot);
      std::ranges::shuffle(one, random_);
      for (std::int32_t i = 0; i < misses;) {
        const auto block = static_cast<std::int32_t>(random_() % (kTokens - 2 * kRing));
        if (taken[block]) continue;
        taken[block] = true;
        one[i++] = block;
      }
      std::ranges::sort(one);
      selected.insert(selected.end(), one.begin(), one.end());
    }
    selected_.upload(selected.data(), selected.size());
    misses_expected_ = misses;
  }

  // Microseconds of one layer.
  double time(std::int32_t batch, bool with_io, int repeats) {
    const auto launch = [&](cudaStream_t stream) {
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        const SwapInParams params = params_of(layer, batch);
        if (with_io)
          launch_swap_in(params, stream);
        else
          launch_sparse_diff(params.diff, stream);
      }
    };
    const auto prepare = [&](cudaStream_t stream) {
      HOTSET_CUDA_CHECK(
          cudaMemcpyAsync(blocks_.data(), first_blocks_.data(), blocks_.bytes(), cudaMemcpyDeviceToDevice, stream));
      HOTSET_CUDA_CHECK(
          cudaMemcpyAsync(lru_.data(), first_lru_.data(), lru_.bytes(), cudaMemcpyDeviceToDevice, stream));
      HOTSET_CUDA_CHECK(cudaMemsetAsync(flush_.data(), 1, flush_.bytes(), stream));
    };
    const double us = graph_time_us(stream_.get(), repeats, launch, prepare) / kLayers;
    std::vector<SparseDiffCounts> counts(kMostBatch);
    counts_.download(counts.data(), counts.size());
    for (std::int32_t b = 0; b < batch; ++b)
      HS_CHECK(counts[b].misses == misses_expected_ && counts[b].hits == kSelected - misses_expected_,
               "the misses meant");
    return us;
  }

 private:
  void make_states() {
    constexpr std::size_t kStates = std::size_t{kLayers} * kMostBatch;
    held_.resize(kStates * kHot);
    std::vector<std::uint16_t> lru(kStates * kHot);
    std::vector<HotRow> rows(kStates);
    std::vector<std::int32_t> all(kTokens - 2 * kRing);
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t state = 0; state < kStates; ++state) {
      for (std::int32_t i = 0; i < kHot; ++i) {  // the start of a random order
        std::swap(all[i], all[i + random_() % (all.size() - i)]);
        held_[state * kHot + i] = all[i];
        lru[state * kHot + i] = static_cast<std::uint16_t>(i);
      }
      std::shuffle(lru.begin() + state * kHot, lru.begin() + state * kHot + kHot - kSelected, random_);
      const std::size_t b = state % kMostBatch;
      rows[state] = {.block_of_slot = blocks_.data() + state * kHot,
                     .lru = lru_.data() + state * kHot,
                     .device_pages = device_pages_.data() + b * kDevicePages,
                     .host_pages = host_pages_.data() + b * kPagesOfSequence,
                     .hot_blocks = kHot,
                     .block_tokens = 1,
                     .ring_recent = kRecent,
                     .ring_tokens = kRing};
    }
    first_blocks_.upload(held_.data(), held_.size());
    first_lru_.upload(lru.data(), lru.size());
    rows_.upload(rows.data(), rows.size());
  }

  [[nodiscard]] SwapInParams params_of(std::int32_t layer, std::int32_t batch) const {
    const std::size_t first = std::size_t(layer) * kMostBatch;
    return {.diff = {.rows = rows_.data() + first,
                     .lengths = lengths_.data(),
                     .selected = selected_.data() + first * kSelected,
                     .selected_counts = selected_counts_.data(),
                     .slot_of = slot_of_.data(),
                     .misses = misses_.data(),
                     .counts = counts_.data(),
                     .batch = batch,
                     .max_selected = kSelected,
                     .max_hot_blocks = kHot},
            .host_rows = pool_.device(),
            .device_rows = device_rows_.data(),
            .counters = counters_.data(),
            .row_bytes = kRowBytes};
  }

  const MappedHostMemory& pool_;
  std::mt19937_64 random_{7};
  std::vector<std::int32_t> held_;  // [layer][batch][H]
  std::int32_t misses_expected_ = 0;
  OwnedStream stream_;
  DeviceBuffer<std::int32_t> blocks_, first_blocks_, selected_, host_pages_, device_pages_;
  DeviceBuffer<std::uint16_t> lru_, first_lru_;
  DeviceBuffer<HotRow> rows_;
  DeviceBuffer<std::byte> device_rows_, flush_;
  DeviceBuffer<std::int32_t> lengths_{kMostBatch}, selected_counts_{kMostBatch}, slot_of_{kMostBatch * kSelected};
  DeviceBuffer<SparseMiss> misses_{kMostBatch * kSelected};
  DeviceBuffer<SparseDiffCounts> counts_{kMostBatch};
  DeviceBuffer<SwapCounters> counters_{1};
};

double copy_engine_gb_per_s(const MappedHostMemory& pool) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const OwnedStream stream;
  const DeviceBuffer<std::byte> target(kBytes);
  const double us = graph_time_us(
      stream.get(), 5,
      [&](cudaStream_t s) {
        HOTSET_CUDA_CHECK(cudaMemcpyAsync(target.data(), pool.host(), kBytes, cudaMemcpyHostToDevice, s));
      },
      [](cudaStream_t) {});
  return kBytes / us / 1e3;
}

const Known* known_of(std::int32_t batch, std::int32_t percent) {
  for (const Known& known : kKnown)
    if (known.batch == batch && known.percent == percent) return &known;
  return nullptr;
}

void print_number(double value, const char* format = "%8.1f") {
  if (value > 0)
    std::printf(format, value);
  else
    std::printf("%8s", "-");
}

void print_row(Bench& bench, const Layout& layout, std::int32_t batch, std::int32_t percent, double bus) {
  const auto misses = static_cast<std::int32_t>(std::lround(kSelected * percent / 100.0));
  bench.select(misses);
  const int repeats = percent == 100 ? 5 : 15;
  const double diff = bench.time(batch, false, repeats);
  const double both = bench.time(batch, true, repeats);
  const double bytes = static_cast<double>(batch) * misses * kRowBytes;
  const Known* known = known_of(batch, percent);
  double must = known != nullptr ? known->must : 0, aim = known != nullptr ? known->aim : 0;
  if (layout.gib > 8) must = percent != 5 ? 0 : batch == 64 ? 260 : batch == 128 ? 500 : 0;
  if (layout.gib > 8) aim = percent != 5 ? 0 : batch == 64 ? 234 : batch == 128 ? 468 : 0;
  const double peer = known != nullptr && layout.gib == 2 ? known->peer : 0;
  std::printf("%-14s %5d %6d%% %8.2f %8.1f", layout.name, batch, percent, diff, both);
  print_number(bytes / both / 1e3);
  print_number(bytes / bus / 1e3);
  print_number(must);
  print_number(aim);
  print_number(peer);
  print_number(peer / both, "%8.2f");
  std::printf("\n");
}

void run(bool quick) {
  const MappedHostMemory pool(std::size_t{16} << 30);
  fill<<<264, 1024>>>(reinterpret_cast<std::uint32_t*>(pool.device()), static_cast<std::int64_t>(pool.bytes() / 4), 99);
  HOTSET_CUDA_CHECK_LAUNCH();
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  const double bus = copy_engine_gb_per_s(pool);
  std::printf("copy engine, host to device: %.1f GB/s. Times in us per layer; diff alone: must 12, aim 6\n", bus);
  std::printf("I/O at 100%% misses, batch 32, over 1 / 4 GiB: must 42 / 23 GB/s, aim 46 / 24.5\n");
  std::printf("%-14s %5s %7s %8s %8s %7s %7s %7s %7s %7s %8s\n", "host rows", "batch", "misses", "diff", "swap-in",
              "GB/s", "floor", "must", "aim", "SGLang", "ratio");
  Bench bench(pool);
  constexpr Layout kMain{"2 GiB", 2, kExtentPages};
  bench.place(kMain);
  for (const std::int32_t batch : {1, 8, 32, 64, 128})
    for (const std::int32_t percent : {0, 2, 5, 10, 100})
      if (!quick || percent == 5) print_row(bench, kMain, batch, percent, bus);
  for (const Layout& layout :
       {Layout{"2 GiB, pages", 2, 1}, Layout{"16 GiB", 16, kExtentPages}, Layout{"16 GiB, pages", 16, 1}}) {
    bench.place(layout);
    for (const std::int32_t batch : {1, 64, 128}) print_row(bench, layout, batch, 5, bus);
  }
  for (const Layout& layout :
       {Layout{"1 GiB", 1, kExtentPages}, Layout{"4 GiB", 4, kExtentPages}, Layout{"4 GiB, pages", 4, 1}}) {
    bench.place(layout);
    print_row(bench, layout, 32, 100, bus);
  }
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main(int argc, char** argv) {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::puts("no GPU here");
    return 0;
  }
  hotset::kernels::cuda::run(argc > 1 && std::strcmp(argv[1], "--quick") == 0);
}
