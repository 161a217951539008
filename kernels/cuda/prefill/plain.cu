// Any shape and row type, in float32: a block for each (query, head), tile of 64 positions after tile.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/prefill/prefill_args.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = kPageTokens;

// A number of a key or value of the row; expanded ones lie where the source says.
__device__ float key_at(const PrefillArgs& args, bool expanded, std::int64_t row, int kv_head, int c) {
  if (!expanded) return decode_key_at(args.view, args.pool + row * args.view.row_bytes, kv_head, c);
  if (c >= args.source.own_dim)
    return decode_plain_at(args.source.shared_keys + row * args.source.shared_row, args.view.dtype,
                           c - args.source.own_dim);
  return decode_plain_at(args.source.keys + row * args.source.key_row + kv_head * args.source.key_head, args.view.dtype,
                         c);
}
__device__ float value_at(const PrefillArgs& args, bool expanded, std::int64_t row, int kv_head, int c) {
  if (!expanded) return decode_value_at(args.view, args.pool + row * args.view.row_bytes, kv_head, c);
  return decode_plain_at(args.source.values + row * args.source.value_row + kv_head * args.source.value_head,
                         args.view.dtype, c);
}

__global__ void __launch_bounds__(kThreads) plain_prefill(const PrefillArgs args) {
  extern __shared__ float shared[];
  float* const q = shared;                          // [key_dim]
  float* const acc = q + args.view.key_dim;         // [value_dim]
  float* const scores = acc + args.view.value_dim;  // [kTile]
  const bool expanded = args.pool == nullptr;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::int64_t row = blockIdx.x / args.heads;
  const int head = static_cast<int>(blockIdx.x % args.heads);
  const int kv_head = head / args.group;
  const std::int64_t position = args.first_position + row;
  const std::int64_t at = row * args.heads + head;
  for (int c = thread; c < args.view.key_dim; c += kThreads)
    q[c] = load_activation(args.q, args.bf16_activations,
                           row * args.q_stride + std::int64_t{head} * args.view.key_dim + c);
  for (int c = thread; c < args.view.value_dim; c += kThreads)
    acc[c] = args.begin ? 0.0F : args.state.acc[at * args.view.value_dim + c];
  float max = args.begin ? -INFINITY : args.state.max[at];
  float sum = args.begin ? 0.0F : args.state.sum[at * 4];
  const std::int64_t end_tile = std::min(args.end_tile, position / kTile + 1);
  for (std::int64_t tile = args.first_tile; tile < end_tile; ++tile) {
    const std::int64_t first_row = tile_page(args, tile) * kTile;
    const int seen = static_cast<int>(std::min<std::int64_t>(kTile, position + 1 - tile * kTile));
    __syncthreads();  // the tile before is done with the scores
    for (int rank = thread / 32; rank < kTile; rank += kWarps) {
      float product = 0.0F;
      for (int c = lane; rank < seen && c < args.view.key_dim; c += 32)
        product = fmaf(q[c], key_at(args, expanded, first_row + rank, kv_head, c), product);
      for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffffU, product, step);
      if (lane == 0) scores[rank] = rank < seen ? product : -INFINITY;
    }
    __syncthreads();
    float tile_max = -INFINITY;
    for (int rank = 0; rank < kTile; ++rank) tile_max = fmaxf(tile_max, scores[rank]);
    const float factor = args.scale * kLog2E;
    const float joined = fmaxf(max, tile_max);
    const float shift = finite_or_zero(joined);
    const float keep = exp2f((max - shift) * factor);
    float tile_sum = 0.0F;
    for (int rank = 0; rank < kTile; ++rank) tile_sum += exp2f((scores[rank] - shift) * factor);
    sum = fmaf(sum, keep, tile_sum);
    max = joined;
    for (int c = thread; c < args.view.value_dim; c += kThreads) {
      float tile_acc = 0.0F;
      for (int rank = 0; rank < seen; ++rank)
        tile_acc = fmaf(exp2f((scores[rank] - shift) * factor), value_at(args, expanded, first_row + rank, kv_head, c),
                        tile_acc);
      acc[c] = fmaf(acc[c], keep, tile_acc);
    }
  }
  const float norm = sum == 0.0F ? 0.0F : 1.0F / sum;
  for (int c = thread; c < args.view.value_dim; c += kThreads) {
    if (args.finish) {
      store_activation(args.out, args.bf16_activations,
                       row * args.out_stride + std::int64_t{head} * args.view.value_dim + c, acc[c] * norm);
    } else {
      args.state.acc[at * args.view.value_dim + c] = acc[c];
    }
  }
  if (!args.finish && thread == 0) {
    args.state.max[at] = max;
    args.state.sum[at * 4] = sum;
  }
}

}  // namespace

void launch_plain_prefill(const PrefillArgs& args, Stream stream) {
  const auto bytes = static_cast<std::size_t>(args.view.key_dim + args.view.value_dim + kTile) * sizeof(float);
  HS_CHECK(bytes <= 44 * 1024, "rows wider than plain attention keeps in shared memory");
  HS_CHECK(args.rows * args.heads < (std::int64_t{1} << 31), "too many query heads for one launch");
  plain_prefill<<<static_cast<unsigned>(args.rows * args.heads), kThreads, bytes, stream>>>(args);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
