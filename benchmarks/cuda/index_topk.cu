// Index scores of FP8 and bf16 keys (132 and 256 bytes, 64 heads of 128 channels) and exact top-k 2,048, by length and
// batch. Peers: DeepGEMM's paged scores of FP8 keys (published) and FlashInfer's top-k with ties to the lower index,
// measured on the same scores in builds that have it, else published.
//
//   index_topk
//
// A replay goes through layers with keys of their own, more than the L2 holds; several, as a step does: what a graph's
// start costs is no layer's.
#include <span>

#include "benchmarks/cuda/selection_layers.cuh"
#include "kernels/cuda/selection/index_scores.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int32_t kHeads = 64;
constexpr std::int32_t kDim = 128;
constexpr KnownSelection kKnown[] = {
    {32'768, 1, 3.6, 33, 0, 0},       {32'768, 8, 7.8, 33, 0, 0},     {32'768, 16, 21.4, 33, 0, 0},
    {32'768, 64, 72.9, 33, 0, 0},     {131'072, 1, 5.4, 82, 40, 18},  {131'072, 8, 38.7, 82, 0, 0},
    {131'072, 16, 72.9, 83, 130, 84}, {131'072, 64, 279.6, 97, 0, 0},
};

// Random e4m3 codes without NaN; scales of 2^-8 (0x3b800000).
struct Fp8Bytes {
  __device__ std::uint8_t operator()(std::uint32_t x, std::int32_t at) const {
    if (at >= kPageTokens * kDim) return at % 4 == 3 ? 0x3b : at % 4 == 2 ? 0x80 : 0;
    return static_cast<std::uint8_t>((x & 0x80U) | (x >> 8 & 0x7fU) % 0x70U);
  }
};

// The same of bf16 keys, of whose scores no times are published.
constexpr KnownSelection kKnownBf16[] = {
    {32'768, 1, 0, 33, 0, 0},   {32'768, 8, 0, 33, 0, 0},  {32'768, 16, 0, 33, 0, 0},    {32'768, 64, 0, 33, 0, 0},
    {131'072, 1, 0, 82, 40, 0}, {131'072, 8, 0, 82, 0, 0}, {131'072, 16, 0, 83, 130, 0}, {131'072, 64, 0, 97, 0, 0},
};

// Random numbers between 2^-3 and 2 and their negatives.
struct Bf16Bytes {
  __device__ std::uint8_t operator()(std::uint32_t x, std::int32_t at) const {
    return static_cast<std::uint8_t>(at % 2 == 0 ? x : (x & 0x80U) | 0x3eU | (x >> 8 & 1U));
  }
};

// Whether FlashInfer, where it is in the build, selects the same everywhere.
template <class Fix>
bool run(KvDType dtype, std::span<const KnownSelection> all, Fix fix, double bandwidth, cudaStream_t stream) {
  bool agree = true;
  const MetadataGeometry geometry{MetadataGeometry::Kind::kIndexKeys, 1, kDim, 0, 1, dtype};
  for (const KnownSelection& known : all) {
    const std::int64_t bytes = known.batch * pages_for_tokens(known.length) * geometry.page_bytes();
    std::vector<Layer> layers;
    const auto count = std::clamp<std::int64_t>(kRotatedBytes / bytes, 4, 16);
    for (std::int64_t i = 0; i < count; ++i) {
      layers.emplace_back(geometry, known.batch, known.length, static_cast<std::uint32_t>(7 + i), fix);
    }
    const auto q = on_device(normal_numbers(known.batch * kHeads * kDim, 1.0F, 1));
    const auto weights = on_device(normal_numbers(known.batch * kHeads, 0.1F, 2));
    const SelectionTimes times = time_layers(layers, stream, [&](const Layer& layer, cudaStream_t on) {
      IndexScoresDeviceParams params;
      params.rows = layer.rows;
      params.q = q.data();
      params.q_stride = kHeads * kDim;
      params.weights = weights.data();
      params.heads = kHeads;
      launch_index_scores(params, on);
    });
    print_row(known, times, static_cast<double>(bytes), bandwidth);
    agree = agree && times.agree;
  }
  return agree;
}

bool run_all() {
  const OwnedStream stream;
  const double bandwidth = read_bandwidth(stream.get());
  print_header(bandwidth, "DeepGEMM's scores, FlashInfer's top-k");
  std::printf("FP8 keys\n");
  const bool fp8 = run(KvDType::kFp8, kKnown, Fp8Bytes{}, bandwidth, stream.get());
  std::printf("bf16 keys\n");
  return run(KvDType::kBF16, kKnownBf16, Bf16Bytes{}, bandwidth, stream.get()) && fp8;
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main() {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::printf("no GPU here\n");
    return 1;
  }
  return hotset::kernels::cuda::run_all() ? 0 : 1;
}
