// Attention of any shape and row type, in float32: a block for each (row, query head), tile after tile.
#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;

// Scores of the tile's entries in log2 units, -infinity for holes.
__device__ void tile_scores(const AttentionArgs& args, const float* q, int kv_head, const std::int64_t* offsets,
                            float* scores) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int rank = static_cast<int>(threadIdx.x) / 32; rank < kTile; rank += kWarps) {
    if (offsets[rank] < 0) {
      if (lane == 0) scores[rank] = -INFINITY;
      continue;
    }
    const std::byte* const row = args.pool + offsets[rank];
    float sum = 0.0F;
    for (int c = lane; c < args.view.key_dim; c += 32) sum = fmaf(q[c], decode_key_at(args.view, row, kv_head, c), sum);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, step);
    if (lane == 0) scores[rank] = sum * args.scale * kLog2E;
  }
}

__global__ void __launch_bounds__(kThreads) plain_attention(AttentionArgs args) {
  extern __shared__ float shared[];
  float* const q = shared;                          // [key_dim]
  float* const acc = q + args.view.key_dim;         // [value_dim]
  float* const scores = acc + args.view.value_dim;  // [kTile]
  __shared__ std::int64_t offsets[kTile];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  const int kv_head = head / args.group;
  const std::int64_t count = list_count(args, row);
  for (int c = thread; c < args.view.key_dim; c += kThreads) {
    q[c] = load_activation(args.q, args.q_bf16, row * args.q_stride + std::int64_t{head} * args.view.key_dim + c);
  }
  for (int c = thread; c < args.view.value_dim; c += kThreads) acc[c] = 0.0F;
  float max = -INFINITY;
  float sum = 0.0F;
  for (std::int64_t first = 0; first < count; first += kTile) {
    if (thread < kTile) {
      const std::int64_t slot = first + thread < count ? list_slot(args, row, first + thread) : -1;
      offsets[thread] = slot < 0 ? -1 : slot * args.view.row_bytes;
    }
    __syncthreads();
    tile_scores(args, q, kv_head, offsets, scores);
    __syncthreads();
    float tile_max = -INFINITY;
    for (int rank = 0; rank < kTile; ++rank) tile_max = fmaxf(tile_max, scores[rank]);
    const float shift = finite_or_zero(tile_max);
    float tile_sum = 0.0F;
    for (int rank = 0; rank < kTile; ++rank) tile_sum += exp2f(scores[rank] - shift);
    const MergeFactors factors = merge_sums(max, sum, tile_max, tile_sum);
    for (int c = thread; c < args.view.value_dim; c += kThreads) {
      float tile_acc = 0.0F;
      for (int rank = 0; rank < kTile; ++rank) {
        if (offsets[rank] < 0) continue;
        const float value = decode_value_at(args.view, args.pool + offsets[rank], kv_head, c);
        tile_acc = fmaf(exp2f(scores[rank] - shift), value, tile_acc);
      }
      acc[c] = fmaf(acc[c], factors.keep, tile_acc * factors.take);
    }
    __syncthreads();  // before the next tile's offsets and scores
  }
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  for (int c = thread; c < args.view.value_dim; c += kThreads) {
    store_activation(args.out, args.out_bf16, row * args.out_stride + std::int64_t{head} * args.view.value_dim + c,
                     acc[c] * factor);
  }
}

}  // namespace

void launch_plain_attention(const AttentionArgs& args, Stream stream) {
  const auto bytes = static_cast<std::size_t>(args.view.key_dim + args.view.value_dim + kTile) * sizeof(float);
  HS_CHECK(bytes <= 44 * 1024, "rows wider than plain attention keeps in shared memory");
  HS_CHECK(args.rows * args.heads < (std::int64_t{1} << 31), "too many query heads for one launch");
  plain_attention<<<static_cast<unsigned>(args.rows * args.heads), kThreads, bytes, stream>>>(args);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
