// What the bus between host and device gives: the copy engines, contiguous pieces by them and by the page I/O's
// kernels, and a kernel's own loads of rows by their size, the memory they are spread over, their order, and the number
// of blocks.
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

void run() {
  Bus bus;
  std::printf("%-52s %8s %10s\n", "copy engines", "GB/s", "expected");
  const auto line = [](const char* name, double value, const char* expected) {
    std::printf("%-52s %8.1f %10s\n", name, value, expected);
  };
  line("host to device, 256 MiB", bus.copies(kGiB / 4, kGiB / 4, cudaMemcpyHostToDevice), "55.4");
  line("device to host, 256 MiB", bus.copies(kGiB / 4, kGiB / 4, cudaMemcpyDeviceToHost), "55.3");
  line("both at once, each direction", bus.both_ways(kGiB / 4), "50");
  line("host to device, pieces of 64 KiB", bus.copies(1 << 16, 1 << 26, cudaMemcpyHostToDevice), "17");
  line("host to device, pieces of 256 KiB", bus.copies(1 << 18, 1 << 26, cudaMemcpyHostToDevice), "-");
  line("host to device, pieces of 1 MiB", bus.copies(1 << 20, 1 << 26, cudaMemcpyHostToDevice), "-");

  std::printf("\n%-28s | %26s | %26s | %6s\n%-28s | %8s %8s %8s | %8s %8s %8s | %6s\n", "", "host to device, GB/s",
              "device to host, GB/s", "limit", "256 MiB in pieces of", "kernel", "copies", "batch", "kernel", "copies",
              "batch", "GB/s");
  for (std::size_t piece = 1 << 16; piece <= 1 << 26; piece *= 4) {
    const Bus::PieceRates up = bus.pieces(piece, kGiB / 4, false);
    const Bus::PieceRates down = bus.pieces(piece, kGiB / 4, true);
    std::printf("%24zu KiB | %8.1f %8.1f %8.1f | %8.1f %8.1f %8.1f | %6.1f\n", piece / 1024, up.kernel, up.copies,
                up.batch, down.kernel, down.copies, down.batch, 55.4);
  }

  constexpr std::size_t kSpreads[] = {kGiB / 4, kGiB, 2 * kGiB, 4 * kGiB, 16 * kGiB};
  for (const bool sorted : {false, true}) {
    std::printf("\n%-28s %8s %8s %8s %8s %8s\n", sorted ? "gather, ascending, GB/s over" : "gather, random, GB/s over",
                "0.25 GiB", "1 GiB", "2 GiB", "4 GiB", "16 GiB");
    for (const std::int64_t row_bytes : {576, 656, 1152, 2048, 8192}) {
      std::printf("%23lld B   ", static_cast<long long>(row_bytes));
      for (const std::size_t spread : kSpreads) std::printf(" %8.1f", bus.gathered(row_bytes, spread, sorted, 32));
      std::printf("\n");
    }
  }
  std::printf("\n%-28s", "blocks of 512 threads");
  for (const int blocks : {1, 4, 8, 16, 32, 64, 132}) std::printf(" %8d", blocks);
  std::printf("\n%-28s", "656 B over 1 GiB, GB/s");
  for (const int blocks : {1, 4, 8, 16, 32, 64, 132}) std::printf(" %8.1f", bus.gathered(656, kGiB, false, blocks));
  std::printf("\n");
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
