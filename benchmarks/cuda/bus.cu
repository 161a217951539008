// What the bus between host and device gives: the copy engines, contiguous pieces by them and by the page I/O's
// kernels, and a kernel's own loads of rows by their size, the memory they are spread over, their order, and the number
// of blocks. The limit of everything is what the copy engines bring in one large piece in this run; every number stands
// beside its share of that. "known" is what was measured on such a GPU before, with the copy engines at 55.4 GB/s.
//
//   bus
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>

#include "benchmarks/cuda/graph_time.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/page_io.h"
#include "kernels/cuda/page_pieces.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kPoolBytes = 16 * kGiB;
constexpr std::int64_t kTableRows = 65'536;

__global__ void fill(std::uint32_t* words, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = static_cast<std::uint32_t>(i) * 2'654'435'761U;
}

// A warp per row and turn, 16 bytes per lane and load, up to four loads in flight: as the page I/O copies.
__global__ void __launch_bounds__(kThreads)
    gather(const uint4* pool, const std::uint32_t* table, uint4* target, std::int64_t rows, int chunks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<std::int64_t>(threadIdx.x / 32 * gridDim.x + blockIdx.x);
  const std::int64_t warps = std::int64_t{kThreads / 32} * gridDim.x;
  for (std::int64_t row = warp; row < rows; row += warps) {
    const uint4* source = pool + std::int64_t{table[row]} * chunks;
    uint4* to = target + row * chunks;
    for (int c = lane; c < chunks; c += 128) {
      uint4 values[4];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (c + 32 * k < chunks) values[k] = source[c + 32 * k];
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (c + 32 * k < chunks) to[c + 32 * k] = values[k];
    }
  }
}

class Bus {
 public:
  Bus() : pool_(kPoolBytes), table_(kTableRows), target_(kGiB) {
    fill<<<264, 1024>>>(reinterpret_cast<std::uint32_t*>(pool_.device()), static_cast<std::int64_t>(kPoolBytes / 4));
    HOTSET_CUDA_CHECK_LAUNCH();
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  }

  // GB/s of copies of `total` bytes in pieces.
  double copies(std::size_t piece, std::size_t total, cudaMemcpyKind kind) {
    const double us = time([&](cudaStream_t stream) { copy(piece, total, kind, stream); });
    return static_cast<double>(total) / us / 1e3;
  }
  // GB/s of each direction while both run.
  double both_ways(std::size_t bytes) {
    Event forked, joined;
    const double us = time([&](cudaStream_t stream) {
      forked.record(stream);
      HOTSET_CUDA_CHECK(cudaStreamWaitEvent(other_.get(), forked.get(), 0));
      copy(bytes, bytes, cudaMemcpyHostToDevice, stream);
      HOTSET_CUDA_CHECK(
          cudaMemcpyAsync(pool_.host() + bytes, target_.data() + bytes, bytes, cudaMemcpyDeviceToHost, other_.get()));
      joined.record(other_.get());
      HOTSET_CUDA_CHECK(cudaStreamWaitEvent(stream, joined.get(), 0));
    });
    return static_cast<double>(bytes) / us / 1e3;
  }
  // GB/s of `total` bytes in pieces that lie apart on both sides, queued as the engine does outside captured steps: by
  // the page I/O's kernel, in runs of up to 64 rows of 4 KiB; by a copy each; by one batch of copies.
  struct PieceRates {
    double kernel, copies, batch;
  };
  PieceRates pieces(std::size_t piece, std::size_t total, bool to_host) {
    constexpr std::int64_t kRowBytes = 4096;
    const std::size_t count = total / piece;
    const auto piece_rows = static_cast<std::int64_t>(piece) / kRowBytes;
    std::vector<ContiguousPiece> list;
    std::vector<RowRun> runs;
    const std::int64_t pages = static_cast<std::int64_t>(2 * total) / (kRowBytes * kPageTokens);
    PinnedBlock block;
    const std::span<std::int32_t> table = block.take<std::int32_t>(pages);
    std::iota(table.begin(), table.end(), 0);
    std::vector<std::size_t> places(count);
    std::iota(places.begin(), places.end(), 0);
    std::ranges::shuffle(places, random_);
    for (const std::size_t place : places) {
      const std::size_t at = 2 * place * piece;  // and a hole behind each
      list.push_back({target_.data() + at, pool_.host() + at, static_cast<std::int64_t>(piece)});
      for (std::int64_t row = 0; row < piece_rows; row += kPageTokens) {
        runs.push_back({.device_pages = table.data(),
                        .host_pages = table.data(),
                        .host_rows = pool_.device(),
                        .first_position = static_cast<std::int64_t>(at) / kRowBytes + row,
                        .rows = static_cast<std::int32_t>(std::min(piece_rows - row, kPageTokens))});
      }
    }
    const MoveRowsParams moves{.runs = block.keep(std::span<const RowRun>(runs)),
                               .device_rows = target_.data(),
                               .row_bytes = kRowBytes,
                               .run_count = static_cast<std::int32_t>(runs.size())};
    const auto rate = [&](const auto& launch) { return static_cast<double>(total) / stream_time_us(launch) / 1e3; };
    return {rate([&] { to_host ? launch_offload(moves, stream_.get()) : launch_restore(moves, stream_.get()); }),
            rate([&] {
              for (const ContiguousPiece& one : list) {
                HOTSET_CUDA_CHECK(cudaMemcpyAsync(to_host ? one.host : one.device, to_host ? one.device : one.host,
                                                  piece, cudaMemcpyDefault, stream_.get()));
              }
            }),
            rate([&] { copy_pieces(list, to_host, stream_.get()); })};
  }
  // GB/s of rows at random places of the pool's first `spread` bytes.
  double gathered(std::int64_t row_bytes, std::size_t spread, bool sorted, int blocks) {
    const auto places = spread / static_cast<std::size_t>(row_bytes);
    std::vector<std::uint32_t> table(kTableRows);
    for (std::uint32_t& place : table) place = static_cast<std::uint32_t>(random_() % places);
    if (sorted) std::ranges::sort(table);
    table_.upload(table.data(), table.size());
    const std::int64_t rows = kTableRows;
    const auto chunks = static_cast<int>(row_bytes / 16);
    const double us = time([&](cudaStream_t stream) {
      gather<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(pool_.device()), table_.data(),
                                              reinterpret_cast<uint4*>(target_.data()), rows, chunks);
      HOTSET_CUDA_CHECK_LAUNCH();
    });
    return static_cast<double>(rows * row_bytes) / us / 1e3;
  }

 private:
  // Median time between events around what `launch` queues.
  template <class Launch>
  double stream_time_us(const Launch& launch) {
    Event begin(true), end(true);
    std::vector<double> times;
    for (int i = 0; i <= 5; ++i) {
      begin.record(stream_.get());
      launch();
      end.record(stream_.get());
      HOTSET_CUDA_CHECK(cudaEventSynchronize(end.get()));
      float milliseconds = 0;
      HOTSET_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
      if (i > 0) times.push_back(1e3 * milliseconds);
    }
    return median_of(std::move(times));
  }
  template <class Launch>
  double time(const Launch& launch) {
    return graph_time_us(stream_.get(), 5, launch, [](cudaStream_t) {});
  }
  void copy(std::size_t piece, std::size_t total, cudaMemcpyKind kind, cudaStream_t stream) {
    for (std::size_t at = 0; at < total; at += piece) {
      const bool up = kind == cudaMemcpyHostToDevice;
      std::byte* target = up ? target_.data() + at : pool_.host() + at;
      const std::byte* source = up ? pool_.host() + at : target_.data() + at;
      HOTSET_CUDA_CHECK(cudaMemcpyAsync(target, source, piece, kind, stream));
    }
  }

  MappedHostMemory pool_;
  DeviceBuffer<std::uint32_t> table_;
  DeviceBuffer<std::byte> target_;
  OwnedStream stream_, other_;
  std::mt19937_64 random_{11};
};

constexpr int kKernelBlocks = 32;  // as the page I/O of a large batch

struct Shares {
  double up, down;  // GB/s of one large copy

  void print(double rate, bool to_host = false) const {
    std::printf(" %6.1f %4.2f", rate, rate / (to_host ? down : up));
  }
};

void print_copies(Bus& bus, const Shares& shares) {
  std::printf("limit: %.1f GB/s host to device, %.1f device to host (256 MiB by the copy engines)\n\n", shares.up,
              shares.down);
  std::printf("%-36s %6s %4s %8s\n", "copy engines, host to device", "GB/s", "of 1", "known");
  const auto line = [&](const char* name, double rate, const char* known) {
    std::printf("%-36s", name);
    shares.print(rate);
    std::printf(" %8s\n", known);
  };
  line("256 MiB", shares.up, "55.4");
  line("256 MiB, both directions at once", bus.both_ways(kGiB / 4), "50");
  line("pieces of 64 KiB", bus.copies(1 << 16, 1 << 26, cudaMemcpyHostToDevice), "17");
  line("pieces of 256 KiB", bus.copies(1 << 18, 1 << 26, cudaMemcpyHostToDevice), "-");
  line("pieces of 1 MiB", bus.copies(1 << 20, 1 << 26, cudaMemcpyHostToDevice), "-");
}

void print_pieces(Bus& bus, const Shares& shares) {
  std::printf("\n%-24s |%36s |%36s\n%-24s |", "256 MiB that lie apart,", "host to device: GB/s, of the limit",
              "device to host: GB/s, of the limit", "in pieces of");
  for (int direction = 0; direction < 2; ++direction)
    std::printf("%12s%12s%12s%s", "kernel", "copies", "batch", direction == 0 ? " |" : "\n");
  for (std::size_t piece = 1 << 16; piece <= 1 << 26; piece *= 4) {
    std::printf("%20zu KiB |", piece / 1024);
    for (const bool to_host : {false, true}) {
      const Bus::PieceRates rates = bus.pieces(piece, kGiB / 4, to_host);
      for (const double rate : {rates.kernel, rates.copies, rates.batch}) shares.print(rate, to_host);
      std::printf(to_host ? "\n" : " |");
    }
  }
}

void print_gathers(Bus& bus, const Shares& shares) {
  constexpr std::size_t kSpreads[] = {kGiB / 4, kGiB, 2 * kGiB, 4 * kGiB, 16 * kGiB};
  struct Size {
    std::int64_t row_bytes;
    const char* known;  // over 0.25 to 1, 4, 16 GiB, at random
  };
  constexpr Size kSizes[] = {{576, "45-48, 24.6, 18.9"},
                             {656, "45-48, 24.6, 18.9"},
                             {1152, "50, 40, 32"},
                             {2048, "50, 50, 50"},
                             {8192, "50, 50, 50"}};
  for (const bool sorted : {false, true}) {
    std::printf("\n%-24s |%12s%12s%12s%12s%12s | %s\n", sorted ? "rows, ascending, over" : "rows, random, over",
                "0.25 GiB", "1 GiB", "2 GiB", "4 GiB", "16 GiB", sorted ? "" : "known: 0.25-1, 4, 16 GiB");
    for (const Size& size : kSizes) {
      std::printf("%22lld B |", static_cast<long long>(size.row_bytes));
      for (const std::size_t spread : kSpreads)
        shares.print(bus.gathered(size.row_bytes, spread, sorted, kKernelBlocks));
      std::printf(" | %s\n", sorted ? "" : size.known);
    }
  }
  std::printf("\n%-24s |", "blocks of 512 threads");
  constexpr int kBlocks[] = {1, 4, 8, 16, 32, 64, 132};
  for (const int blocks : kBlocks) std::printf("%12d", blocks);
  std::printf("\n%-24s |", "656 B over 1 GiB");
  for (const int blocks : kBlocks) shares.print(bus.gathered(656, kGiB, false, blocks));
  std::printf(" | known: one block 5, from 16 on all\n");
}

void run() {
  Bus bus;
  const Shares shares{.up = bus.copies(kGiB / 4, kGiB / 4, cudaMemcpyHostToDevice),
                      .down = bus.copies(kGiB / 4, kGiB / 4, cudaMemcpyDeviceToHost)};
  print_copies(bus, shares);
  print_pieces(bus, shares);
  print_gathers(bus, shares);
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main() {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::puts("no GPU here");
    return 0;
  }
  hotset::kernels::cuda::run();
}
