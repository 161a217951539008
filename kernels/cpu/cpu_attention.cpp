#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace hotset::kernels {
namespace {

// Queries of a prefill task share a transposed tile: more of them, less transposing, fewer tasks.
constexpr std::int64_t kMinQueriesPerTask = 16;
constexpr std::int64_t kMaxQueriesPerTask = 128;
constexpr std::int64_t kTasksPerThread = 4;

KvHeadView kv_head_view(const KvGeometry& geometry, std::int64_t kv_head) {
  const std::int64_t offset = kv_head * geometry.key_dim * kv_dtype_bytes(geometry.dtype);
  return {geometry.dtype == KvDType::kBF16, offset, geometry.value_offset_bytes() + offset, geometry.key_dim};
}

std::int32_t group_size(const KvGeometry& geometry, std::int32_t heads) {
  HS_CHECK(geometry.kv_heads > 0 && geometry.key_dim > 0 && heads > 0 && heads % geometry.kv_heads == 0,
           "query heads do not divide into KV heads");
  return heads / geometry.kv_heads;
}

std::int64_t partial_floats(std::int64_t group, std::int64_t head_dim) { return group * (head_dim + kPartialExtra); }

void clear_total(std::int64_t group, std::int64_t head_dim, float* total) {
  std::fill_n(total, partial_floats(group, head_dim), 0.0F);
  for (std::int64_t h = 0; h < group; ++h) {
    total[h * (head_dim + kPartialExtra) + head_dim] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

CpuAttention::CpuAttention(const IsaKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

void CpuAttention::slots(const SlotAttentionParams& params) {
  if (params.rows <= 0) return;
  const std::int32_t group = group_size(params.geometry, params.heads);
  const std::int64_t lists = params.rows * params.geometry.kv_heads;
  // Few lists: divide each one's tiles among the threads. The tiles' own results are merged in order either way, so the
  // division does not show in the bits.
  const std::int64_t pieces = pool_.threads() == 1 ? 1 : ceil_div(pool_.threads() * kTasksPerThread, lists);
  std::int64_t partials = 0;
  runs_.clear();
  for (std::int64_t row = 0; row < params.rows; ++row) {
    const std::int64_t tiles = ceil_div(params.slot_offsets[row + 1] - params.slot_offsets[row], kTileRows);
    const std::int64_t step = std::max<std::int64_t>(ceil_div(tiles, pieces), 1);
    for (std::int64_t kv_head = 0; kv_head < params.geometry.kv_heads; ++kv_head) {
      if (step >= tiles) {
        runs_.push_back({row, kv_head, 0, tiles, -1});
        continue;
      }
      for (std::int64_t tile = 0; tile < tiles; tile += step) {
        runs_.push_back({row, kv_head, tile, std::min(tiles, tile + step), partials + tile});
      }
      partials += tiles;
    }
  }
  const std::int64_t partial_size = partial_floats(group, params.geometry.key_dim);
  partials_.reserve(partials * partial_size);
  const std::int64_t scratch_floats = std::int64_t{group} * kTileRows + 2 * partial_size;
  for (AlignedBuffer<float>& scratch : scratch_) scratch.reserve(scratch_floats);
  pool_.run(static_cast<std::int64_t>(runs_.size()), [&](std::int64_t index, int worker) {
    slot_run(params, runs_[static_cast<std::size_t>(index)], scratch_[static_cast<std::size_t>(worker)].data());
  });
  if (partials > 0) merge_runs(params);
}

void CpuAttention::slot_run(const SlotAttentionParams& params, const Run& run, float* scratch) {
  const KvGeometry& geometry = params.geometry;
  const std::int32_t group = params.heads / geometry.kv_heads;
  const std::int64_t partial_size = partial_floats(group, geometry.key_dim);
  const std::int64_t begin = params.slot_offsets[run.row];
  const std::int64_t end = params.slot_offsets[run.row + 1];
  float* const total = scratch + std::int64_t{group} * kTileRows;
  float* const own_partial = total + partial_size;

  SlotTile tile{};
  tile.kv = kv_head_view(geometry, run.kv_head);
  tile.q = params.q + run.row * params.q_stride + run.kv_head * group * geometry.key_dim;
  tile.group = group;
  tile.scale = params.scale;
  tile.pool = params.pool;
  tile.row_bytes = geometry.row_bytes();
  tile.scores = scratch;
  if (run.partial < 0) clear_total(group, geometry.key_dim, total);
  for (std::int64_t t = run.tile_begin; t < run.tile_end; ++t) {
    tile.slots = params.slots + begin + t * kTileRows;
    tile.count = static_cast<std::int32_t>(std::min<std::int64_t>(kTileRows, end - begin - t * kTileRows));
    if (run.partial >= 0) {
      kernels_.slot_tile(tile, partials_.data() + (run.partial + t - run.tile_begin) * partial_size);
    } else {
      kernels_.slot_tile(tile, own_partial);
      kernels_.merge_partial(group, geometry.key_dim, own_partial, total);
    }
  }
  if (run.partial < 0) {
    float* out = params.out + (run.row * params.heads + run.kv_head * group) * geometry.key_dim;
    kernels_.finish_partial(group, geometry.key_dim, total, out);
  }
}

// Runs of one list lie next to each other, in ascending order.
void CpuAttention::merge_runs(const SlotAttentionParams& params) {
  const std::int32_t dim = params.geometry.key_dim;
  const std::int32_t group = params.heads / params.geometry.kv_heads;
  const std::int64_t partial_size = partial_floats(group, dim);
  float* const total = scratch_[0].data();
  for (const Run& run : runs_) {
    if (run.partial < 0) continue;
    if (run.tile_begin == 0) clear_total(group, dim, total);
    for (std::int64_t t = 0; t < run.tile_end - run.tile_begin; ++t) {
      kernels_.merge_partial(group, dim, partials_.data() + (run.partial + t) * partial_size, total);
    }
    const std::int64_t tiles = ceil_div(params.slot_offsets[run.row + 1] - params.slot_offsets[run.row], kTileRows);
    if (run.tile_end < tiles) continue;
    kernels_.finish_partial(group, dim, total, params.out + (run.row * params.heads + run.kv_head * group) * dim);
  }
}

void CpuAttention::prefill(const PrefillAttentionParams& params) {
  if (params.rows <= 0) return;
  const KvGeometry& geometry = params.geometry;
  const std::int32_t group = group_size(geometry, params.heads);
  for (AlignedBuffer<float>& scratch : scratch_) scratch.reserve(prefill_scratch_floats(geometry.key_dim));
  const std::int64_t fair = ceil_div(params.rows * geometry.kv_heads, pool_.threads() * kTasksPerThread);
  const std::int64_t step = std::clamp(fair, kMinQueriesPerTask, kMaxQueriesPerTask);
  const std::int64_t blocks = ceil_div(params.rows, step);
  pool_.run(blocks * geometry.kv_heads, [&](std::int64_t index, int worker) {
    // The last queries see the most tiles: they go first, so that no thread is left with the longest task.
    const std::int64_t block = blocks - 1 - index / geometry.kv_heads;
    const std::int64_t kv_head = index % geometry.kv_heads;
    PrefillTask task{};
    task.kv = kv_head_view(geometry, kv_head);
    task.q = params.q + kv_head * group * geometry.key_dim;
    task.q_stride = params.q_stride;
    task.query_begin = block * step;
    task.query_end = std::min(params.rows, task.query_begin + step);
    task.first_position = params.first_position;
    task.group = group;
    task.first_head = static_cast<std::int32_t>(kv_head) * group;
    task.heads = params.heads;
    task.tiles = params.tiles;
    task.row_bytes = geometry.row_bytes();
    task.first_tile = params.first_tile;
    task.tile_count = params.tile_count;
    task.acc = params.state.acc;
    task.max = params.state.max;
    task.sum = params.state.sum;
    task.begin = params.begin;
    task.finish = params.finish;
    task.out = params.out;
    task.scale = params.scale;
    task.scratch = scratch_[static_cast<std::size_t>(worker)].data();
    kernels_.prefill(task);
  });
}

}  // namespace hotset::kernels
