// Low-rank index scores (8 KV heads, rank 32, 4 bits: 144 bytes a token) and exact top-k 2,048, by length and batch, of
// 32 and of 64 query heads; of both with 4 KV heads too. The floor counts one read of the keys. No public scores of
// this kind are known; FlashInfer's top-k on the same scores stands beside ours in builds that have it.
//
//   lowrank_topk
//
// A replay goes through layers with keys of their own, more than the L2 holds.
#include "benchmarks/cuda/selection_layers.cuh"
#include "kernels/cuda/selection/low_rank_scores.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int32_t kDim = 128;
constexpr std::int32_t kRank = 32;
struct Rows {
  std::int32_t heads, kv_heads;
  bool plain;  // the form of shapes that no other takes
  std::vector<KnownSelection> known;
};
const Rows kRows[] = {
    {32,
     8,
     false,
     {
         {32'768, 1, 0, 0, 0, 0},
         {32'768, 8, 0, 0, 0, 0},
         {32'768, 16, 0, 0, 0, 0},
         {32'768, 64, 0, 0, 0, 0},
         {131'072, 1, 0, 0, 50, 22},
         {131'072, 8, 0, 0, 0, 0},
         {131'072, 16, 0, 0, 220, 160},
         {131'072, 64, 0, 0, 0, 0},
     }},
    {64,
     8,
     false,
     {{32'768, 1, 0, 0, 0, 0},
      {32'768, 16, 0, 0, 0, 0},
      {131'072, 1, 0, 0, 0, 0},
      {131'072, 8, 0, 0, 0, 0},
      {131'072, 16, 0, 0, 0, 0}}},
    {32,
     4,
     false,
     {{32'768, 1, 0, 0, 0, 0}, {131'072, 1, 0, 0, 0, 0}, {131'072, 8, 0, 0, 0, 0}, {131'072, 16, 0, 0, 0, 0}}},
    {64, 4, false, {{131'072, 1, 0, 0, 0, 0}, {131'072, 16, 0, 0, 0, 0}}},
    {64, 8, true, {{131'072, 1, 0, 0, 0, 0}, {131'072, 8, 0, 0, 0, 0}}},
};

// Random codes -7 ... 7; scales of 0.25 (0x3400).
struct LowRankBytes {
  __device__ std::uint8_t operator()(std::uint32_t x, std::int32_t at) const {
    constexpr std::int32_t kHeadBytes = static_cast<std::int32_t>(kPageTokens) * (kRank / 2 + 2);
    constexpr std::int32_t kCodeBytes = static_cast<std::int32_t>(kPageTokens) * (kRank / 2);
    if (at % kHeadBytes >= kCodeBytes) return at % 2 == 1 ? 0x34 : 0;
    return static_cast<std::uint8_t>((1U + x % 15U) | (1U + (x >> 8) % 15U) << 4);
  }
};

// Whether FlashInfer, where it is in the build, selects the same everywhere.
bool run(const Rows& rows, cudaStream_t stream, double bandwidth) {
  bool agree = true;
  const std::int32_t heads = rows.heads;
  const MetadataGeometry geometry{MetadataGeometry::Kind::kLowRankKeys, rows.kv_heads, kDim, kRank, 1, KvDType::kBF16};
  for (const KnownSelection& known : rows.known) {
    const std::int64_t bytes = known.batch * pages_for_tokens(known.length) * geometry.page_bytes();
    std::vector<Layer> layers;
    const auto count = std::clamp<std::int64_t>(kRotatedBytes / bytes, 1, 16);
    for (std::int64_t i = 0; i < count; ++i) {
      layers.emplace_back(geometry, known.batch, known.length, static_cast<std::uint32_t>(7 + i), LowRankBytes{});
    }
    const auto q = on_device(normal_numbers(known.batch * heads * kDim, 1.0F, 1));
    const auto basis = on_device(normal_numbers(std::int64_t{rows.kv_heads} * kDim * kRank, 0.09F, 2));
    const DeviceBuffer<std::byte> workspace(low_rank_workspace_bytes(known.batch, known.length, heads, kRank));
    const SelectionTimes times = time_layers(layers, stream, [&](const Layer& layer, cudaStream_t on) {
      LowRankScoresDeviceParams params;
      params.rows = layer.rows;
      params.q = q.data();
      params.q_stride = std::int64_t{heads} * kDim;
      params.basis = basis.data();
      params.heads = heads;
      params.plain = rows.plain;
      params.scale = 0.3F;
      params.workspace = workspace.data();
      launch_low_rank_scores(params, on);
    });
    print_row(known, times, static_cast<double>(bytes), bandwidth);
    agree = agree && times.agree;
  }
  return agree;
}

bool run() {
  bool agree = true;
  const OwnedStream stream;
  const double bandwidth = read_bandwidth(stream.get());
  print_header(bandwidth, "FlashInfer's top-k (nobody else has such scores)");
  for (const Rows& rows : kRows) {
    std::printf("%d query heads, %d KV heads%s\n", rows.heads, rows.kv_heads, rows.plain ? ", the plain form" : "");
    agree = run(rows, stream.get(), bandwidth) && agree;
  }
  return agree;
}

}  // namespace
}  // namespace hotset::kernels::cuda

int main() {
  if (!hotset::kernels::cuda::gpu_available()) {
    std::printf("no GPU here\n");
    return 1;
  }
  return hotset::kernels::cuda::run() ? 0 : 1;
}
