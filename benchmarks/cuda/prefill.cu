// Prefill attention of a chunk of 4,096 queries, beside its floor: the operations that the mask leaves, 2 (key_dim +
// value_dim) a query head and key, at the data sheet's 989 TFLOP/s. Keys and values are new in every layer of a model,
// here: they are larger than the L2, or lie in one that other data went through before each run.
//
// Peers, in builds that have them: FlashInfer's kernels for any GPU (FA2) and for sm_90 (FA3), on the same queries and
// rows, for heads of 128 channels in bf16. Results are compared.
#include <bit>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "benchmarks/cuda/graph_time.h"
#include "benchmarks/cuda/peers/built.h"
#include "benchmarks/cuda/peers/flashinfer_prefill.h"
#include "kernels/cuda/prefill_attention.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr double kPeakTflops = 989.0;  // bf16, dense, of the data sheet
constexpr int kRepeats = 9;

// bf16 numbers of 2^-7 to 2 of either sign, or e4m3 codes below 256, from any bits.
__global__ void fill_random(std::uint32_t* out, std::int64_t count, std::uint32_t mask, std::uint32_t base) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint64_t z = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z ^= z >> 27;
    out[i] = (static_cast<std::uint32_t>(z) & mask) + base;
  }
}

void fill(const DeviceBuffer<std::byte>& to, std::uint32_t mask, std::uint32_t base) {
  fill_random<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(to.data()), static_cast<std::int64_t>(to.size() / 4),
                             mask, base);
  HOTSET_CUDA_CHECK_LAUNCH();
}

struct Case {
  const char* title;
  std::int32_t heads, kv_heads, key_dim, value_dim;
  KvDType dtype;
  std::int64_t first_position;
};

// What the peers gave.
struct Peers {
  double fa2_us = 0, fa3_us = 0;  // 0: not run
  double difference = 0.0;        // largest relative one of a (query, head) from ours
  bool agree = true;
};

std::vector<std::uint16_t> results_of(const DeviceBuffer<std::byte>& out) {
  std::vector<std::uint16_t> numbers(out.size() / 2);
  out.download(reinterpret_cast<std::byte*>(numbers.data()), out.size());
  return numbers;
}

// Relative differences of the (query, head) vectors of `width` numbers. Both round weights and results to bf16.
void compare(const char* peer, const std::vector<std::uint16_t>& theirs, const std::vector<std::uint16_t>& own,
             std::size_t width, Peers& peers) {
  constexpr double kMostDifference = 1e-2;
  const auto widen = [](std::uint16_t x) { return double{std::bit_cast<float>(std::uint32_t{x} << 16)}; };
  bool agrees = true;
  for (std::size_t first = 0; first < own.size(); first += width) {
    double sum = 0, difference = 0;
    for (std::size_t i = first; i < first + width; ++i) {
      const double their = widen(theirs[i]), apart = widen(own[i]) - their;
      sum += their * their;
      difference += apart * apart;
    }
    const double relative = std::sqrt(difference / sum);
    peers.difference = std::max(peers.difference, relative);
    if (relative <= kMostDifference) continue;  // false for NaN
    if (agrees) std::printf("%s differs from results %zu to %zu by %g\n", peer, first, first + width, relative);
    agrees = false;
  }
  peers.agree = peers.agree && agrees;
}

// On what `ours` read and wrote.
template <class Prepare>
Peers run_peers(const PrefillAttentionDeviceParams& ours, const DeviceBuffer<std::byte>& own_out,
                const Prepare& prepare, cudaStream_t stream) {
  Peers result;
  if constexpr (peers::kBuilt) {
    DeviceBuffer<std::byte> out(own_out.size());
    const peers::FlashInferPrefillParams params{.q = ours.q,
                                                .k = ours.pool,
                                                .v = ours.pool + ours.geometry.value_offset_bytes(),
                                                .kv_stride = ours.geometry.row_bytes() / 2,
                                                .out = out.data(),
                                                .queries = ours.rows,
                                                .tokens = ours.first_position + ours.rows,
                                                .heads = ours.heads,
                                                .kv_heads = ours.geometry.kv_heads,
                                                .scale = ours.scale};
    const std::vector<std::uint16_t> own = results_of(own_out);
    const auto time = [&](const char* name, auto launch) {
      out.fill_bytes(0xff);
      HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
      const double us = graph_time_us(stream, kRepeats, [&](cudaStream_t s) { launch(params, s); }, prepare);
      compare(name, results_of(out), own, static_cast<std::size_t>(ours.geometry.value_dim), result);
      return us;
    };
    result.fa2_us = time("FlashInfer FA2", peers::launch_flashinfer_prefill_fa2);
    result.fa3_us = time("FlashInfer FA3", peers::launch_flashinfer_prefill_fa3);
  }
  return result;
}

void report_peers(const Peers& peers, double us) {
  if (peers.fa2_us > 0) {
    std::printf(" %9.1f %9.1f %10.2f %11.1e\n", peers.fa2_us, peers.fa3_us, std::min(peers.fa2_us, peers.fa3_us) / us,
                peers.difference);
  } else {
    std::printf(" %9s %9s %10s %11s\n", "-", "-", "-", "-");
  }
  std::fflush(stdout);
}

// False: a peer gave something else.
bool run_case(const Case& given, const DeviceBuffer<std::byte>& flush) {
  const KvGeometry geometry{.layers = 1,
                            .kv_heads = given.kv_heads,
                            .key_dim = given.key_dim,
                            .value_dim = given.value_dim,
                            .layout = KvGeometry::Layout::kGrouped,
                            .dtype = given.dtype};
  const std::int64_t length = given.first_position + kRows;
  const std::int64_t q_width = std::int64_t{given.heads} * given.key_dim;
  const std::int64_t out_width = std::int64_t{given.heads} * given.value_dim;
  DeviceBuffer<std::byte> pool(static_cast<std::size_t>(pages_for_tokens(length) * geometry.page_bytes()));
  DeviceBuffer<std::byte> q(static_cast<std::size_t>(kRows * q_width * 2));
  DeviceBuffer<std::byte> out(static_cast<std::size_t>(kRows * out_width * 2));
  DeviceBuffer<std::byte> workspace(
      static_cast<std::size_t>(prefill_attention_workspace_bytes(geometry, given.heads, kRows)));
  fill(q, 0x83ff83ffU, 0x3c003c00U);
  if (given.dtype == KvDType::kFp8) {
    fill(pool, 0xbfbfbfbfU, 0);  // also as scales these are finite
  } else {
    fill(pool, 0x83ff83ffU, 0x3c003c00U);
  }
  const OwnedStream stream;
  HOTSET_CUDA_CHECK(cudaDeviceSynchronize());
  const PrefillAttentionDeviceParams params{.geometry = geometry,
                                            .activation = ActivationType::kBF16,
                                            .q = q.data(),
                                            .q_stride = q_width,
                                            .rows = kRows,
                                            .first_position = given.first_position,
                                            .pool = pool.data(),
                                            .tile_count = pages_for_tokens(length),
                                            .begin = true,
                                            .finish = true,
                                            .out = out.data(),
                                            .out_stride = out_width,
                                            .heads = given.heads,
                                            .scale = 1.0F / std::sqrt(static_cast<float>(given.key_dim)),
                                            .workspace = workspace.data()};
  const auto other_data = [&](cudaStream_t s) {
    HOTSET_CUDA_CHECK(cudaMemsetAsync(flush.data(), 1, flush.bytes(), s));
  };
  const double us =
      graph_time_us(stream.get(), kRepeats, [&](cudaStream_t s) { launch_prefill_attention(params, s); }, other_data);
  Peers peers;
  if (given.dtype == KvDType::kBF16 && given.key_dim == 128) peers = run_peers(params, out, other_data, stream.get());
  const double pairs = static_cast<double>(kRows) * (static_cast<double>(given.first_position) + (kRows + 1) / 2.0);
  const double flops = 2.0 * pairs * given.heads * (given.key_dim + given.value_dim);
  const double floor = flops / (kPeakTflops * 1e6);
  std::printf("%-38s %6lld %9.1f %8.1f %9.1f %8.2f", given.title, static_cast<long long>(given.first_position), us,
              flops / us * 1e-6, floor, us / floor);
  report_peers(peers, us);
  return peers.agree;
}

int run() {
  if (!gpu_available()) {
    std::puts("no GPU here");
    return 0;
  }
  const DeviceBuffer<std::byte> flush(std::size_t{256} << 20);
  std::printf("%-38s %6s %9s %8s %9s %8s %9s %9s %10s %11s\n", "4,096 queries, activations bf16", "from", "us",
              "TFLOP/s", "floor us", "x floor", "FA2 us", "FA3 us", "peer/ours", "difference");
  bool agree = true;
  for (const std::int64_t first : {0, 28'672}) {
    for (const Case& given : {Case{"32 heads, 8 KV heads, 128, bf16 rows", 32, 8, 128, 128, KvDType::kBF16, first},
                              Case{"32 heads, 8 KV heads, 128, FP8 rows", 32, 8, 128, 128, KvDType::kFp8, first},
                              Case{"32 heads, 8 KV heads, 64, bf16 rows", 32, 8, 64, 64, KvDType::kBF16, first},
                              Case{"128 heads, 192/128 expanded, bf16", 128, 128, 192, 128, KvDType::kBF16, first}}) {
      agree = run_case(given, flush) && agree;
    }
  }
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main() { return hotset::kernels::cuda::run(); }
