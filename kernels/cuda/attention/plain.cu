// Attention of any shape and row type, in float32: a block for each (row, query head, run of 256 entries), tile after
// tile. Loads go out several together, since their latency is what such a block spends its time with.
#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/attention/run_join.cuh"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;
constexpr int kAhead = 8;  // loads of a thread on their way together
static_assert(kTile % (kWarps * kAhead) == 0);

struct Tile {
  std::int64_t offsets[kTile];  // of the rows; -1: holes
  float scores[kTile];          // in log2 units, -infinity for holes; then the weights
};

__device__ void tile_scores(const AttentionArgs& args, const RowView& view, const float* q, int kv_head, Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int first = warp * kAhead; first < kTile; first += kWarps * kAhead) {
    float sums[kAhead] = {};
    for (int c = lane; c < view.key_dim; c += 32) {
      float keys[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t offset = tile.offsets[first + i];
        keys[i] = offset < 0 ? 0.0F : decode_key_at(view, args.pool + offset, kv_head, c);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sums[i] = fmaf(q[c], keys[i], sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      for (int step = 16; step > 0; step /= 2) sums[i] += __shfl_xor_sync(0xffffffffU, sums[i], step);
      if (lane == 0) tile.scores[first + i] = tile.offsets[first + i] < 0 ? -INFINITY : sums[i] * args.scale * kLog2E;
    }
  }
}

__device__ float weighted_values(const AttentionArgs& args, const RowView& view, int kv_head, int channel,
                                 const Tile& tile) {
  float acc = 0.0F;
  for (int first = 0; first < kTile; first += kAhead) {
    float values[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t offset = tile.offsets[first + i];
      values[i] = offset < 0 ? 0.0F : decode_value_at(view, args.pool + offset, kv_head, channel);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) acc = fmaf(tile.scores[first + i], values[i], acc);
  }
  return acc;
}

// A list's query head.
struct Place {
  std::int64_t row, count;
  const std::int32_t* pages;  // list_pages()
  int head;
};

template <KvDType kDType, bool kLatent>
__device__ void run_block(const AttentionArgs& args, const Place& place, std::int64_t run, std::int64_t runs, float* q,
                          float* acc) {
  __shared__ Tile tile;
  __shared__ RunTotal total;
  RowView view = args.view;
  view.dtype = kDType;
  view.latent = kLatent;
  const int thread = static_cast<int>(threadIdx.x);
  const int kv_head = place.head / args.group;
  for (int c = thread; c < view.value_dim; c += kThreads) acc[c] = 0.0F;
  float max = -INFINITY;
  float sum = 0.0F;
  const std::int64_t end = min(place.count, (run + 1) * kGroupedRun);
  for (std::int64_t first = run * kGroupedRun; first < end; first += kTile) {
    if (thread < kTile) {
      const std::int64_t slot = first + thread < end ? list_slot(args, place.row, place.pages, first + thread) : -1;
      tile.offsets[thread] = slot < 0 ? -1 : slot * view.row_bytes;
    }
    __syncthreads();
    tile_scores(args, view, q, kv_head, tile);
    __syncthreads();
    float tile_max = -INFINITY;
    for (int rank = 0; rank < kTile; ++rank) tile_max = fmaxf(tile_max, tile.scores[rank]);
    __syncthreads();
    if (thread < kTile) tile.scores[thread] = exp2f(tile.scores[thread] - finite_or_zero(tile_max));
    __syncthreads();
    float tile_sum = 0.0F;
    for (int rank = 0; rank < kTile; ++rank) tile_sum += tile.scores[rank];
    const MergeFactors factors = merge_sums(max, sum, tile_max, tile_sum);
    for (int c = thread; c < view.value_dim; c += kThreads) {
      acc[c] = fmaf(acc[c], factors.keep, weighted_values(args, view, kv_head, c, tile) * factors.take);
    }
    __syncthreads();  // before the next tile's offsets and scores
  }
  if (runs > 1) {
    float* const partial = run_partial(args, place.row, place.head, run);
    for (int c = thread; c < view.value_dim; c += kThreads) partial[c] = acc[c];
    if (thread == 0) {
      partial[view.value_dim] = max;
      partial[view.value_dim + 1] = sum;
    }
    join_by_last<kThreads>(args, place.row, place.head, 1, runs, &total);
    __syncthreads();  // shared memory is free for the next run
    return;
  }
  const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
  const std::int64_t to = place.row * args.out_stride + std::int64_t{place.head} * view.value_dim;
  for (int c = thread; c < view.value_dim; c += kThreads) {
    store_activation(args.out, args.out_bf16, to + c, acc[c] * factor);
  }
}

template <KvDType kDType, bool kLatent>
__global__ void __launch_bounds__(kThreads) plain_attention(AttentionArgs args, int columns) {
  extern __shared__ float shared[];
  float* const q = shared;                   // [key_dim]
  float* const acc = q + args.view.key_dim;  // [value_dim]
  follow_kernels_before();
  const std::int64_t list = blockIdx.x / columns;
  Place place;
  place.row = list / args.heads;
  place.head = static_cast<int>(list % args.heads);
  place.count = list_count(args, place.row);
  place.pages = list_pages(args, place.row);
  const std::int64_t from = place.row * args.q_stride + std::int64_t{place.head} * args.view.key_dim;
  for (int c = static_cast<int>(threadIdx.x); c < args.view.key_dim; c += kThreads) {
    q[c] = load_activation(args.q, args.q_bf16, from + c);
  }
  const std::int64_t runs = place.count <= kGroupedRun ? 1 : (place.count + kGroupedRun - 1) / kGroupedRun;
  for (std::int64_t run = blockIdx.x % columns; run < runs; run += columns) {
    run_block<kDType, kLatent>(args, place, run, runs, q, acc);
  }
}

template <bool kLatent>
auto kernel_of(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32: return plain_attention<KvDType::kF32, kLatent>;
    case KvDType::kBF16: return plain_attention<KvDType::kBF16, kLatent>;
    case KvDType::kFp8: break;
  }
  return plain_attention<KvDType::kFp8, kLatent>;
}

}  // namespace

void launch_plain_attention(const AttentionArgs& args, Stream stream) {
  const auto bytes = static_cast<std::size_t>(args.view.key_dim + args.view.value_dim) * sizeof(float);
  HS_CHECK(bytes <= 44 * 1024, "rows wider than plain attention keeps in shared memory");
  const std::int64_t lists = args.rows * args.heads;
  const std::int64_t columns = run_columns(args, lists);
  HS_CHECK(lists * columns < (std::int64_t{1} << 31), "too many blocks for one launch");
  launch_dependent(args.view.latent ? kernel_of<true>(args.view.dtype) : kernel_of<false>(args.view.dtype),
                   dim3(static_cast<unsigned>(lists * columns)), kThreads, bytes, 0, stream, args,
                   static_cast<int>(columns));
}

}  // namespace hotset::kernels::cuda
