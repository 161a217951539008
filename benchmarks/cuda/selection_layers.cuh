// What the benchmarks of selection share: layers of metadata pages in shuffled places, rows of one length, the top-k
// behind the scores, and the bandwidth that floors are counted with.
#pragma once

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "benchmarks/cuda/graph_time.h"
#include "benchmarks/cuda/peers/built.h"
#include "benchmarks/cuda/peers/flashinfer_topk.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/scored_pages.h"
#include "kernels/cuda/selection/top_k.h"

namespace hotset::kernels::cuda {

constexpr std::int32_t kSelected = 2048;
constexpr int kRepeats = 30;
constexpr std::int64_t kRotatedBytes = std::int64_t{400} << 20;  // of metadata in a replay: several times the L2

// Bytes of a page become what fix(hash, byte of the page) makes of them.
template <class Fix>
__global__ void fill_pages(std::uint8_t* bytes, std::int64_t count, std::int64_t page_bytes, std::uint32_t seed,
                           Fix fix) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2'654'435'761U + seed;
    x ^= x >> 15;
    x *= 0x85ebca6bU;
    x ^= x >> 13;
    bytes[i] = fix(x, static_cast<std::int32_t>(i % page_bytes));
  }
}

template <class T>
DeviceBuffer<T> on_device(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(values.size());
  buffer.upload(values.data(), values.size());
  return buffer;
}

inline std::vector<float> normal_numbers(std::int64_t count, float size, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(engine);
  return out;
}

// Rows of one length, each with its own pages, and everything that top-k writes.
struct Layer {
  DeviceBuffer<std::byte> pool;
  DeviceBuffer<std::int32_t> pages;
  DeviceBuffer<float> scores;
  DeviceBuffer<std::int64_t> lengths;
  DeviceBuffer<std::int32_t> k, out, counts;
  ScoredPages rows;

  template <class Fix>
  Layer(const MetadataGeometry& geometry, std::int64_t batch, std::int64_t length, std::uint32_t seed, Fix fix)
      : pool(static_cast<std::size_t>(batch * pages_for_tokens(length) * geometry.page_bytes())),
        scores(static_cast<std::size_t>(batch * length)),
        lengths(on_device(std::vector<std::int64_t>(static_cast<std::size_t>(batch), length))),
        k(on_device(std::vector<std::int32_t>(static_cast<std::size_t>(batch), kSelected))),
        out(static_cast<std::size_t>(batch * kSelected)),
        counts(static_cast<std::size_t>(batch)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * pages_for_tokens(length)));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    pages = on_device(ids);
    fill_pages<<<4096, 256>>>(reinterpret_cast<std::uint8_t*>(pool.data()), static_cast<std::int64_t>(pool.bytes()),
                              geometry.page_bytes(), seed, fix);
    HOTSET_CUDA_CHECK_LAUNCH();
    HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
    rows.geometry = geometry;
    rows.pool = pool.data();
    rows.pages = pages.data();
    rows.page_stride = pages_for_tokens(length);
    rows.lengths = lengths.data();
    rows.rows = batch;
    rows.max_length = length;
    rows.scores = scores.data();
    rows.stride = length;
  }

  void top_k(cudaStream_t stream) const {
    TopKDeviceParams params;
    params.scores = scores.data();
    params.stride = rows.stride;
    params.lengths = lengths.data();
    params.k = k.data();
    params.rows = rows.rows;
    params.max_length = rows.max_length;
    params.out = out.data();
    params.out_stride = kSelected;
    params.counts = counts.data();
    launch_top_k(params, stream);
  }
};

// FlashInfer's top-k on the scores that layers hold. It takes lengths of 32 bits and adds an offset to each index.
class PeerTopK {
 public:
  explicit PeerTopK(const Layer& layer)
      : lengths_(on_device(std::vector<std::int32_t>(static_cast<std::size_t>(layer.rows.rows),
                                                     static_cast<std::int32_t>(layer.rows.max_length)))),
        offsets_(on_device(std::vector<std::int32_t>(static_cast<std::size_t>(layer.rows.rows), 0))),
        out_(static_cast<std::size_t>(layer.rows.rows * kSelected)) {}

  void launch(const Layer& layer, cudaStream_t stream) const {
    peers::launch_flashinfer_top_k({.scores = layer.scores.data(),
                                    .lengths = lengths_.data(),
                                    .offsets = offsets_.data(),
                                    .out = out_.data(),
                                    .rows = layer.rows.rows,
                                    .max_length = layer.rows.max_length,
                                    .k = kSelected},
                                   stream);
  }

  // Whether it selects what `layer.out` holds; prints the first row that differs.
  bool agrees(const Layer& layer, cudaStream_t stream) const {
    launch(layer, stream);
    HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<std::int32_t> ours(out_.size()), theirs(out_.size());
    layer.out.download(ours.data(), ours.size());
    out_.download(theirs.data(), theirs.size());
    for (std::int64_t row = 0; row < layer.rows.rows; ++row) {
      const auto first = theirs.begin() + row * kSelected;
      std::sort(first, first + kSelected);
      const auto [peer, own] = std::mismatch(first, first + kSelected, ours.begin() + row * kSelected);
      if (peer == first + kSelected) continue;
      std::printf("row %lld, rank %lld by position: FlashInfer selects %d, we select %d\n", static_cast<long long>(row),
                  static_cast<long long>(peer - first), *peer, *own);
      return false;
    }
    return true;
  }

 private:
  DeviceBuffer<std::int32_t> lengths_, offsets_, out_;
};

struct SelectionTimes {
  double scores, top_k, both;  // microseconds of a layer
  double peer_top_k = 0;       // 0: not in this build
  bool agree = true;           // FlashInfer selects the same
};

// A replay runs every layer once; score(layer, stream) launches its scores.
template <class Score>
SelectionTimes time_layers(const std::vector<Layer>& layers, cudaStream_t stream, const Score& score) {
  const auto each = [&](const auto& launch) {
    const double all = graph_time_us(
        stream, kRepeats,
        [&](cudaStream_t to) {
          for (const Layer& layer : layers) launch(layer, to);
        },
        [](cudaStream_t) {});
    return all / static_cast<double>(layers.size());
  };
  SelectionTimes times{.scores = each(score),
                       .top_k = each([](const Layer& layer, cudaStream_t to) { layer.top_k(to); }),
                       .both = each([&](const Layer& layer, cudaStream_t to) {
                         score(layer, to);
                         layer.top_k(to);
                       })};
  if constexpr (peers::kBuilt) {
    const PeerTopK peer(layers.front());
    times.peer_top_k = each([&](const Layer& layer, cudaStream_t to) { peer.launch(layer, to); });
    for (const Layer& layer : layers) times.agree = times.agree && peer.agrees(layer, stream);
  }
  return times;
}

// Sums words of memory; the sum is written only to keep the reads.
static __global__ void read_words(const uint4* words, std::int64_t count, std::uint32_t* out) {
  constexpr int kLoads = 8;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  std::uint32_t sum = 0;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * step < count; i += kLoads * step) {
    uint4 part[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) part[load] = words[i + load * step];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) sum += part[load].x ^ part[load].y ^ part[load].z ^ part[load].w;
  }
  if (sum == 0x9e3779b9U) *out = sum;
}

// GB/s of reads of 4 GiB.
inline double read_bandwidth(cudaStream_t stream) {
  constexpr std::size_t kBytes = std::size_t{4} << 30;
  DeviceBuffer<std::byte> from(kBytes);
  DeviceBuffer<std::uint32_t> out(1);
  HOTSET_CUDA_CHECK(cudaMemsetAsync(from.data(), 0, kBytes, stream));
  const double time = graph_time_us(
      stream, 10,
      [&](cudaStream_t on) {
        read_words<<<132 * 4, 512, 0, on>>>(reinterpret_cast<const uint4*>(from.data()),
                                            static_cast<std::int64_t>(kBytes / sizeof(uint4)), out.data());
        HOTSET_CUDA_CHECK_LAUNCH();
      },
      [](cudaStream_t) {});
  return 1e-3 * static_cast<double>(kBytes) / time;
}

// What is known of a row of the table, microseconds; 0: nothing. Peers: published times.
struct KnownSelection {
  std::int64_t length, batch;
  double peer_scores, peer_top_k, must, aim;
};

// `mark` is ' ' or, for what was not measured in this run, '*'.
inline void print_number(double value, int width, char mark) {
  if (value > 0) {
    std::printf("%*.1f%c", width - 1, value, mark);
  } else {
    std::printf("%*s ", width - 1, "-");
  }
}

// `peers`: whose times the table can hold.
inline void print_header(double bandwidth, const char* peers) {
  std::printf("floor: bytes of the metadata at %.0f GB/s (reads in this run); times in microseconds, top-k %d\n",
              bandwidth, kSelected);
  std::printf("peers: %s%s; *: published, not of this run\n\n", peers,
              peers::kBuilt ? " on the same scores, which must select the same" : "");
  std::printf("%8s%7s%9s%8s%8s%9s%9s%8s%8s%8s | %8s%8s%8s | %8s%8s%6s\n", "", "", "", "", "", "", "", "", "", "",
              "peer", "peer", "peer", "top-k:", "both:", "");
  std::printf("%8s%7s%9s%8s%8s%9s%9s%8s%8s%8s | %8s%8s%8s | %8s%8s%6s\n", "tokens", "batch", "scores", "GB/s", "top-k",
              "together", "floor", "x floor", "must ", "aim ", "scores ", "top-k ", "both ", "speedup", "speedup",
              "same");
}

// `bytes`: of the metadata, as often as it is read.
inline void print_row(const KnownSelection& known, const SelectionTimes& times, double bytes, double bandwidth) {
  const double floor = 1e-3 * bytes / bandwidth;
  std::printf("%8lld%7lld%9.1f%8.0f%8.1f%9.1f%9.1f%8.2f", static_cast<long long>(known.length),
              static_cast<long long>(known.batch), times.scores, 1e-3 * bytes / times.scores, times.top_k, times.both,
              floor, times.both / floor);
  const double peer_top_k = peers::kBuilt ? times.peer_top_k : known.peer_top_k;
  const double peer = known.peer_scores > 0 ? known.peer_scores + peer_top_k : 0;
  print_number(known.must, 8, ' ');
  print_number(known.aim, 8, ' ');
  std::printf(" | ");
  print_number(known.peer_scores, 8, '*');
  print_number(peer_top_k, 8, peers::kBuilt ? ' ' : '*');
  print_number(peer, 8, '*');
  std::printf(" | ");
  print_number(peer_top_k / times.top_k, 8, ' ');
  print_number(peer / times.both, 8, ' ');
  std::printf("%6s\n", !peers::kBuilt ? "-" : times.agree ? "yes" : "NO");
  std::fflush(stdout);
}

}  // namespace hotset::kernels::cuda
