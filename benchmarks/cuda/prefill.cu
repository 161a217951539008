// Prefill attention of a chunk of 4,096 queries, beside its floor: the operations that the mask leaves, 2 (key_dim +
// value_dim) a query head and key, at the data sheet's 989 TFLOP/s. Keys and values are new in every layer of a model,
// here: they are larger than the L2, or lie in one that other data went through before each run.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "benchmarks/cuda/graph_time.h"
#include "kernels/cuda/prefill_attention.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kRows = 4096;
constexpr double kPeakTflops = 989.0;  // bf16, dense, of the data sheet

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

void run_case(const Case& given, const DeviceBuffer<std::byte>& flush) {
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
  const double us = graph_time_us(
      stream.get(), 9, [&](cudaStream_t s) { launch_prefill_attention(params, s); },
      [&](cudaStream_t s) { HOTSET_CUDA_CHECK(cudaMemsetAsync(flush.data(), 1, flush.bytes(), s)); });
  const double pairs = static_cast<double>(kRows) * (static_cast<double>(given.first_position) + (kRows + 1) / 2.0);
  const double flops = 2.0 * pairs * given.heads * (given.key_dim + given.value_dim);
  const double floor = flops / (kPeakTflops * 1e6);
  std::printf("%-44s %9lld %10.1f %9.1f %10.1f %8.2f\n", given.title, static_cast<long long>(given.first_position), us,
              flops / us * 1e-6, floor, us / floor);
}

int run() {
  if (!gpu_available()) {
    std::puts("no GPU here");
    return 0;
  }
  const DeviceBuffer<std::byte> flush(std::size_t{256} << 20);
  std::printf("%-44s %9s %10s %9s %10s %8s\n", "4,096 queries, activations bf16", "from", "us", "TFLOP/s", "floor us",
              "x floor");
  for (const std::int64_t first : {0, 28'672}) {
    run_case({"32 heads, 8 KV heads, 128, bf16 rows", 32, 8, 128, 128, KvDType::kBF16, first}, flush);
    run_case({"32 heads, 8 KV heads, 128, FP8 rows", 32, 8, 128, 128, KvDType::kFp8, first}, flush);
    run_case({"32 heads, 8 KV heads, 64, bf16 rows", 32, 8, 64, 64, KvDType::kBF16, first}, flush);
    run_case({"128 heads, 192/128 expanded, bf16", 128, 128, 192, 128, KvDType::kBF16, first}, flush);
  }
  return 0;
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main() { return hotset::kernels::cuda::run(); }
