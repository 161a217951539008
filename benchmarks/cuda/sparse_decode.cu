// Decode attention over lists of slots, beside its peers and the floor of this run: bytes over the read bandwidth
// measured here (grouped), or the peak of bf16 products (latent). Each list keeps 95 % of its entries from step to
// step; the rows lie over a pool of several gigabytes; L2 is filled with other data before each run. Dense lists hold
// whole sequences: pages of 64 rows, spread over the pool.
//
// Peers: FlashInfer's paged decode (page size 1), run here on the same rows and lists in builds that have it, else its
// published times; FlashMLA's published times. Published ones are of the same kind of GPU.
//
// sparse_decode [TITLE [BATCH]]: only tables whose title contains TITLE, only this batch.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "benchmarks/cuda/graph_time.h"
#include "benchmarks/cuda/peers/built.h"
#include "benchmarks/cuda/peers/flashinfer_decode.h"
#include "kernels/cuda/sparse_attention.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kSelected = 2048;
constexpr std::int64_t kRegion = 8192;  // slots of a request
constexpr int kSteps = 8;
constexpr double kChanged = 0.05;
constexpr double kPeakTflops = 989.0;  // bf16, dense, of the data sheet
constexpr std::int64_t kFlushBytes = std::int64_t{256} << 20;

__global__ void fill_random(float* out, std::int64_t count, std::uint64_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t z = (seed + static_cast<std::uint64_t>(i)) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z ^= z >> 27;
    out[i] = static_cast<float>(static_cast<std::int32_t>(z)) * 0x1p-30F;
  }
}

__global__ void read_all(const uint4* from, std::int64_t count, std::uint32_t* never) {
  std::uint32_t sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
#pragma unroll 8
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 x = from[i];
    sum |= x.x ^ x.y ^ x.z ^ x.w;
  }
  if (sum == 0x12345678U) *never = sum;
}

// FlashInfer takes slots of 32 bits. Unused in builds without it.
[[maybe_unused]] __global__ void narrow_slots(const std::int64_t* from, std::int64_t count, std::int32_t* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = static_cast<std::int32_t>(from[i]);
}

float widen_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

struct Row {
  std::int64_t batch;
  double must_us, aim_us, peer_us;  // 0: none; peer: published
  std::int64_t dense = 0;           // tokens of a whole sequence; 0: kSelected selected ones

  [[nodiscard]] std::int64_t tokens() const { return dense > 0 ? dense : kSelected; }
};
struct Table {
  const char* title;
  KvGeometry geometry;
  std::int32_t heads;
  std::vector<Row> rows;
  bool flashinfer = false;  // is the peer
};

// What a run of FlashInfer gave.
struct Peer {
  double us = 0;            // 0: not run
  double difference = 0.0;  // largest relative one of a (row, head) from ours
  bool agrees = true;
};

// Relative differences of (row, head) vectors of `width` numbers. Ours rounds weights to bf16, FlashInfer partial sums,
// both the results: that gives some 3e-3, where a missing entry of a list gives several 1e-2.
[[maybe_unused]] void compare(const std::vector<std::uint16_t>& theirs, const std::vector<std::uint16_t>& own,
                              std::size_t width, Peer& peer) {
  constexpr double kMostDifference = 1e-2;
  for (std::size_t first = 0; first < own.size(); first += width) {
    double sum = 0, difference = 0;
    for (std::size_t i = first; i < first + width; ++i) {
      const double their = widen_bf16(theirs[i]), our = widen_bf16(own[i]);
      sum += their * their;
      difference += (our - their) * (our - their);
    }
    const double relative = std::sqrt(difference / sum);
    peer.difference = std::max(peer.difference, relative);
    if (relative <= kMostDifference) continue;  // false for NaN
    if (peer.agrees) std::printf("FlashInfer differs from results %zu to %zu by %g\n", first, first + width, relative);
    peer.agrees = false;
  }
}

class Bench {
 public:
  Bench(std::string_view title, std::int64_t batch)
      : title_(title), batch_(batch), flush_(static_cast<std::size_t>(kFlushBytes)), never_(1) {
    flush_.fill_bytes(1);
    const double us = graph_time_us(stream_.get(), 11, [&](cudaStream_t stream) { read(stream); }, [](cudaStream_t) {});
    bytes_per_us_ = static_cast<double>(kFlushBytes) / us;
    std::printf("read bandwidth %.2f TB/s; peer us *: published, not of this run\n", bytes_per_us_ * 1e-6);
  }

  void run(const Table& table, ActivationType activation) {
    if (std::string_view(table.title).find(title_) == std::string_view::npos) return;
    std::int64_t regions = 0;
    for (const Row& row : table.rows) {
      regions = std::max(regions, row.batch * ceil_div(row.dense > 0 ? row.dense : kRegion, kRegion));
    }
    fill_pool(table.geometry, regions * kRegion);
    const bool latent = table.geometry.layout == KvGeometry::Layout::kLatent;
    std::printf("\n%s, activations %s, pool %.1f GB\n", table.title,
                activation == ActivationType::kBF16 ? "bf16" : "f32", static_cast<double>(pool_.bytes()) * 1e-9);
    std::printf("%6s %6s %9s %9s %9s %7s %9s %9s %9s %9s %10s\n", "batch", "tokens", "us", latent ? "TFLOP/s" : "TB/s",
                "floor us", "x floor", "must us", "aim us", "peer us ", "peer/ours", "difference");
    for (const Row& row : table.rows) {
      if (batch_ == 0 || row.batch == batch_) run_batch(table, activation, row, regions);
    }
  }

  [[nodiscard]] bool peers_agree() const { return peers_agree_; }

 private:
  void read(cudaStream_t stream) {
    read_all<<<132 * 8, 256, 0, stream>>>(reinterpret_cast<const uint4*>(flush_.data()), kFlushBytes / 16,
                                          never_.data());
    HOTSET_CUDA_CHECK_LAUNCH();
  }

  void fill_pool(const KvGeometry& geometry, std::int64_t slots) {
    constexpr std::int64_t kPiece = 32'768;
    pool_ = DeviceBuffer<std::byte>(static_cast<std::size_t>(slots * geometry.row_bytes()));
    DeviceBuffer<float> k(static_cast<std::size_t>(kPiece * geometry.key_elements()));
    DeviceBuffer<float> v(static_cast<std::size_t>(kPiece * geometry.value_elements()));
    DeviceBuffer<std::int64_t> targets(static_cast<std::size_t>(kPiece));
    fill_random<<<1024, 256, 0, stream_.get()>>>(k.data(), static_cast<std::int64_t>(k.size()), 1);
    fill_random<<<1024, 256, 0, stream_.get()>>>(v.data(), static_cast<std::int64_t>(v.size()), 2);
    for (std::int64_t first = 0; first < slots; first += kPiece) {
      const std::int64_t count = std::min(kPiece, slots - first);
      std::vector<std::int64_t> list(static_cast<std::size_t>(count));
      std::iota(list.begin(), list.end(), first);
      targets.upload(list.data(), list.size());
      launch_store_rows({.geometry = geometry,
                         .k = k.data(),
                         .k_stride = geometry.key_elements(),
                         .v = v.data(),
                         .v_stride = geometry.value_elements(),
                         .pool = pool_.data(),
                         .slots = targets.data(),
                         .rows = count},
                        stream_.get());
      stream_.synchronize();
    }
  }

  // Lists of kSteps steps, one after the other, in a pool of so many regions.
  std::vector<std::int64_t> make_lists(const Row& row, std::int64_t regions) {
    return row.dense > 0 ? make_dense_lists(row, regions) : make_selections(row.batch, regions / row.batch);
  }

  // The same in every step.
  std::vector<std::int64_t> make_dense_lists(const Row& row, std::int64_t regions) {
    std::vector<std::int64_t> pages(static_cast<std::size_t>(regions * kRegion / kPageTokens));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random_);
    std::vector<std::int64_t> all(static_cast<std::size_t>(kSteps * row.batch * row.dense));
    const std::size_t step = all.size() / kSteps;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = pages[i % step / kPageTokens] * kPageTokens + static_cast<std::int64_t>(i % kPageTokens);
    }
    return all;
  }

  // A request's slots: `spread` regions.
  std::vector<std::int64_t> make_selections(std::int64_t batch, std::int64_t spread) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(kSteps * batch * kSelected));
    for (std::int64_t row = 0; row < batch; ++row) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(kRegion * spread));
      std::iota(order.begin(), order.end(), row * kRegion * spread);
      std::shuffle(order.begin(), order.end(), random_);
      std::size_t next = kSelected;
      for (int step = 0; step < kSteps; ++step) {
        std::copy_n(order.begin(), kSelected, all.begin() + (step * batch + row) * kSelected);
        for (int i = 0; i < static_cast<int>(kChanged * kSelected); ++i) {
          std::swap(order[static_cast<std::size_t>(random_() % kSelected)], order[next]);
          if (++next == order.size()) next = kSelected;
        }
      }
    }
    return all;
  }

  void run_batch(const Table& table, ActivationType activation, const Row& row, std::int64_t regions) {
    const KvGeometry& geometry = table.geometry;
    const std::int64_t tokens = row.tokens();
    const std::vector<std::int64_t> lists = make_lists(row, regions);
    DeviceBuffer<std::int64_t> steps(lists.size());
    steps.upload(lists.data(), lists.size());
    DeviceBuffer<std::int64_t> slots(static_cast<std::size_t>(row.batch * tokens));
    DeviceBuffer<std::int32_t> counts(static_cast<std::size_t>(row.batch));
    const std::vector<std::int32_t> host_counts(static_cast<std::size_t>(row.batch), static_cast<std::int32_t>(tokens));
    counts.upload(host_counts.data(), host_counts.size());
    const std::int64_t q_width = std::int64_t{table.heads} * geometry.key_dim;
    const std::int64_t out_width = std::int64_t{table.heads} * geometry.value_dim;
    // Numbers of 1 to 2 of either sign, read as f32 or as two bf16.
    std::vector<std::uint32_t> host_q(static_cast<std::size_t>(row.batch * q_width));
    for (std::uint32_t& x : host_q) x = 0x3f803f80U | (random_() & 0x80ff80ffU);
    DeviceBuffer<std::uint32_t> q(host_q.size());
    q.upload(host_q.data(), host_q.size());
    DeviceBuffer<float> out(static_cast<std::size_t>(row.batch * out_width));
    DeviceBuffer<std::byte> workspace(
        static_cast<std::size_t>(sparse_attention_workspace_bytes(geometry, table.heads, row.batch, tokens)));
    DeviceBuffer<std::int32_t> arrivals(static_cast<std::size_t>(row.batch * table.heads));
    arrivals.fill_bytes(0);
    const SparseAttentionParams params{.geometry = geometry,
                                       .q_type = activation,
                                       .out_type = activation,
                                       .q = q.data(),
                                       .q_stride = q_width,
                                       .pool = pool_.data(),
                                       .slots = slots.data(),
                                       .slot_stride = tokens,
                                       .counts = counts.data(),
                                       .max_count = tokens,
                                       .out = out.data(),
                                       .out_stride = out_width,
                                       .rows = row.batch,
                                       .heads = table.heads,
                                       .scale = 1.0F / std::sqrt(static_cast<float>(geometry.key_dim)),
                                       .workspace = workspace.data(),
                                       .arrivals = arrivals.data()};
    int step = 0;
    const auto next_step = [&](cudaStream_t stream) {
      HOTSET_CUDA_CHECK(cudaMemcpyAsync(slots.data(), steps.data() + step * static_cast<std::int64_t>(slots.size()),
                                        slots.bytes(), cudaMemcpyDeviceToDevice, stream));
      step = (step + 1) % kSteps;
      read(stream);
    };
    const double us = graph_time_us(
        stream_.get(), 41, [&](cudaStream_t stream) { launch_sparse_attention(params, stream); }, next_step);
    Peer peer;
    if constexpr (peers::kBuilt) {
      if (table.flashinfer && activation == ActivationType::kBF16) {
        peer = run_flashinfer(params, next_step);
        flashinfer_us_[row.batch] = peer.us;
        peers_agree_ = peers_agree_ && peer.agrees;
      } else if (table.flashinfer) {
        peer.us = flashinfer_us_[row.batch];
      }
    }
    report(table, row, us, peer);
  }

  // FlashInfer on what `ours` reads, after the same next_step(stream).
  template <class NextStep>
  Peer run_flashinfer(const SparseAttentionParams& ours, const NextStep& next_step) {
    const std::int64_t entries = ours.rows * ours.max_count;
    DeviceBuffer<std::int32_t> slots(static_cast<std::size_t>(entries));
    const auto results = static_cast<std::size_t>(ours.rows * ours.out_stride);
    DeviceBuffer<std::uint16_t> out(results);
    out.fill_bytes(0xff);
    peers::FlashInferDecode decode(
        {.batch = ours.rows, .count = ours.max_count, .heads = ours.heads, .kv_heads = ours.geometry.kv_heads});
    const peers::FlashInferDecodeParams params{
        .q = ours.q, .pool = ours.pool, .slots = slots.data(), .out = out.data(), .scale = ours.scale};
    Peer peer;
    peer.us = graph_time_us(
        stream_.get(), 41, [&](cudaStream_t stream) { decode.launch(params, stream); },
        [&](cudaStream_t stream) {
          narrow_slots<<<static_cast<unsigned>((entries + 255) / 256), 256, 0, stream>>>(
              static_cast<const std::int64_t*>(ours.slots), entries, slots.data());
          HOTSET_CUDA_CHECK_LAUNCH();
          next_step(stream);
        });
    narrow_slots<<<static_cast<unsigned>((entries + 255) / 256), 256, 0, stream_.get()>>>(
        static_cast<const std::int64_t*>(ours.slots), entries, slots.data());
    HOTSET_CUDA_CHECK_LAUNCH();
    decode.launch(params, stream_.get());
    launch_sparse_attention(ours, stream_.get());
    stream_.synchronize();
    std::vector<std::uint16_t> theirs(results), own(results);
    out.download(theirs.data(), results);
    HOTSET_CUDA_CHECK(cudaMemcpy(own.data(), ours.out, results * sizeof own[0], cudaMemcpyDeviceToHost));
    compare(theirs, own, static_cast<std::size_t>(ours.geometry.value_dim), peer);
    return peer;
  }

  static void report_peer(const Row& row, double us, const Peer& peer) {
    const double peer_us = peer.us > 0 ? peer.us : row.peer_us;
    if (peer_us > 0) {
      std::printf(" %8.1f%c %9.1f", peer_us, peer.us > 0 ? ' ' : '*', peer_us / us);
    } else {
      std::printf(" %8s  %9s", "-", "-");
    }
    if (peer.difference > 0) {
      std::printf(" %10.1e\n", peer.difference);
    } else {
      std::printf(" %10s\n", "-");
    }
    std::fflush(stdout);
  }

  void report(const Table& table, const Row& row, double us, const Peer& peer) const {
    const KvGeometry& geometry = table.geometry;
    const bool latent = geometry.layout == KvGeometry::Layout::kLatent;
    const double bytes = static_cast<double>(row.batch * row.tokens() * geometry.row_bytes());
    const double flops = 2.0 * static_cast<double>(row.batch * row.tokens() * table.heads) *
                         static_cast<double>(geometry.key_dim + geometry.value_dim);
    const double floor = std::max(bytes / bytes_per_us_, flops / (kPeakTflops * 1e6));
    const auto number = [](double x) {
      static thread_local char text[4][16];
      static thread_local int next = 0;
      char* const to = text[next = (next + 1) % 4];
      std::snprintf(to, sizeof text[0], x > 0 ? "%.1f" : "-", x);
      return to;
    };
    std::printf("%6lld %6lld %9.1f %9.2f %9.1f %7.2f %9s %9s", static_cast<long long>(row.batch),
                static_cast<long long>(row.tokens()), us, latent ? flops / us * 1e-6 : bytes / us * 1e-6, floor,
                us / floor, number(row.must_us), number(row.aim_us));
    report_peer(row, us, peer);
  }

  const std::string_view title_;
  const std::int64_t batch_;  // 0: all
  OwnedStream stream_;
  DeviceBuffer<std::byte> flush_;
  DeviceBuffer<std::uint32_t> never_;
  DeviceBuffer<std::byte> pool_;
  double bytes_per_us_ = 0.0;
  std::map<std::int64_t, double> flashinfer_us_;  // by batch; bf16 activations, the only ones it has
  bool peers_agree_ = true;
  std::mt19937_64 random_{7};
};

KvGeometry grouped(KvDType dtype) {
  return {.layers = 1,
          .kv_heads = 8,
          .key_dim = 128,
          .value_dim = 128,
          .layout = KvGeometry::Layout::kGrouped,
          .dtype = dtype};
}
KvGeometry latent(KvDType dtype) {
  return {.layers = 1,
          .kv_heads = 1,
          .key_dim = 576,
          .value_dim = 512,
          .layout = KvGeometry::Layout::kLatent,
          .dtype = dtype};
}

int run(std::string_view title, std::int64_t batch) {
  if (!gpu_available()) {
    std::puts("no GPU here");
    return 0;
  }
  Bench bench(title, batch);
  const Table rows_bf16{"GQA, bf16 rows, 32 query heads, 8 KV heads, d 128, 2,048 tokens; peer FlashInfer",
                        grouped(KvDType::kBF16),
                        32,
                        {{1, 0, 0, 25.5},
                         {8, 30.6, 22, 30.6},
                         {16, 0, 0, 54.3},
                         {32, 0, 0, 102},
                         {64, 197, 150, 197},
                         {128, 379, 290, 379}},
                        true};
  bench.run(rows_bf16, ActivationType::kBF16);
  bench.run(rows_bf16, ActivationType::kF32);
  const Table rows_fp8{"GQA, FP8 rows, 32 query heads, 8 KV heads, d 128, 2,048 tokens; no peer",
                       grouped(KvDType::kFp8),
                       32,
                       {{1, 0, 0, 0}, {8, 0, 0, 0}, {16, 0, 0, 0}, {32, 0, 0, 0}, {64, 0, 0, 0}, {128, 0, 0, 0}}};
  bench.run(rows_fp8, ActivationType::kBF16);
  bench.run(rows_fp8, ActivationType::kF32);
  const auto dense = [&](const char* title, KvDType dtype) {
    bench.run({title,
               grouped(dtype),
               32,
               {{1, 0, 0, 0, 32768},
                {4, 0, 0, 0, 32768},
                {8, 0, 0, 0, 32768},
                {16, 0, 0, 0, 32768},
                {1, 0, 0, 0, 131072},
                {4, 0, 0, 0, 131072},
                {8, 0, 0, 0, 131072}}},
              ActivationType::kF32);
  };
  dense("GQA, bf16 rows, 32 query heads, 8 KV heads, d 128, dense lists; no peer", KvDType::kBF16);
  dense("GQA, FP8 rows, 32 query heads, 8 KV heads, d 128, dense lists; no peer", KvDType::kFp8);
  const auto must = [](double peer) { return peer / 0.6; };
  const auto row = [&](std::int64_t batch, double peer) {
    return batch >= 64 ? Row{batch, must(peer), peer, peer} : Row{batch, 0, 0, peer};
  };
  bench.run({"MLA, FP8 rows, 128 heads, 2,048 tokens; peer FlashMLA",
             latent(KvDType::kFp8),
             128,
             {row(1, 18.5), row(8, 26), row(32, 61), row(64, 90), row(128, 175), row(256, 344)}},
            ActivationType::kBF16);
  bench.run({"MLA, FP8 rows, 64 heads, 2,048 tokens; peer FlashMLA",
             latent(KvDType::kFp8),
             64,
             {row(1, 18.6), row(8, 21), row(32, 50), row(64, 78), row(128, 117), row(256, 227)}},
            ActivationType::kBF16);
  bench.run({"MLA, bf16 rows, 128 heads, 2,048 tokens; no peer",
             latent(KvDType::kBF16),
             128,
             {{1, 0, 0, 0}, {8, 0, 0, 0}, {64, 0, 0, 0}, {128, 0, 0, 0}}},
            ActivationType::kBF16);
  return bench.peers_agree() ? 0 : 1;
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main(int argc, char** argv) {
  return hotset::kernels::cuda::run(argc > 1 ? argv[1] : "", argc > 2 ? std::atoll(argv[2]) : 0);
}
