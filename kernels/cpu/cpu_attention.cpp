#include "kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace hotset::kernels {
namespace {

static_assert(kTileRows == kPageTokens && kScaleChannels == kFp8ScaleChannels);

// Queries of a prefill task share a transposed tile: more of them, less transposing, fewer tasks.
constexpr std::int64_t kMinQueriesPerTask = 16;
constexpr std::int64_t kMaxQueriesPerTask = 128;
constexpr std::int64_t kTasksPerThread = 4;

// Query heads of one row and KV head that make a task of their own: fewer would decode and read the rows too often.
constexpr std::int32_t kHeadsPerRun = 32;

std::int32_t group_size(const KvGeometry& geometry, std::int32_t heads) {
  HS_CHECK(geometry.kv_heads > 0 && heads > 0 && heads % geometry.kv_heads == 0,
           "query heads do not divide into KV heads");
  return heads / geometry.kv_heads;
}

std::int64_t partial_floats(std::int64_t heads, std::int64_t value_dim) { return heads * (value_dim + kPartialExtra); }

void clear_total(std::int64_t heads, std::int64_t value_dim, float* total) {
  std::fill_n(total, partial_floats(heads, value_dim), 0.0F);
  for (std::int64_t h = 0; h < heads; ++h) {
    total[h * (value_dim + kPartialExtra) + value_dim] = -std::numeric_limits<float>::infinity();
  }
}

std::int64_t tiles_of(const SlotAttentionParams& params, std::int64_t row) {
  return ceil_div(params.slot_offsets[row + 1] - params.slot_offsets[row], kTileRows);
}

}  // namespace

RowFormat row_format(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32: return RowFormat::kF32;
    case KvDType::kBF16: return RowFormat::kBF16;
    case KvDType::kFp8: return RowFormat::kFp8;
  }
  HS_CHECK(false, "unknown type of rows");
}

KvHeadView kv_head_view(const KvGeometry& geometry, std::int64_t kv_head) {
  const bool latent = geometry.layout == KvGeometry::Layout::kLatent;
  HS_CHECK(geometry.key_dim > 0 && geometry.value_dim > 0, "keys or values without channels");
  HS_CHECK(!latent || (geometry.kv_heads == 1 && geometry.value_dim <= geometry.key_dim),
           "a latent row has one KV head, whose key begins with the value");
  const std::int64_t bytes = kv_dtype_bytes(geometry.dtype);
  KvHeadView view{};
  view.format = row_format(geometry.dtype);
  view.latent = latent;
  view.key_dim = geometry.key_dim;
  view.value_dim = geometry.value_dim;
  view.k_offset = kv_head * geometry.key_dim * bytes;
  view.v_offset = geometry.value_offset_bytes() + kv_head * geometry.value_dim * bytes;
  view.k_scales_offset = geometry.key_scales_offset_bytes() + kv_head * 4 * fp8_scales(geometry.key_dim);
  view.v_scales_offset = geometry.value_scales_offset_bytes() + kv_head * 4 * fp8_scales(geometry.value_dim);
  view.rope_offset = geometry.rope_offset_bytes();
  return view;
}

CpuAttention::CpuAttention(const IsaKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

// Few lists: divide the heads of large groups, then each list's tiles among the threads. The tiles' own results are
// merged in order either way, so the division does not show in the bits. Gives the floats of all partials.
std::int64_t CpuAttention::plan_runs(const SlotAttentionParams& params, std::int32_t group) {
  const std::int64_t lists = params.rows * params.geometry.kv_heads;
  const std::int64_t threads = pool_.threads();
  const std::int64_t wanted = threads == 1 ? 1 : ceil_div(threads * kTasksPerThread, lists);
  const std::int64_t head_pieces = std::min<std::int64_t>(wanted, ceil_div(group, kHeadsPerRun));
  const auto head_step = static_cast<std::int32_t>(ceil_div(group, head_pieces));
  const std::int64_t tile_pieces = head_pieces >= 2 * threads ? 1 : ceil_div(wanted, head_pieces);
  std::int64_t partials = 0;
  runs_.clear();
  divided_.clear();
  for (std::int64_t row = 0; row < params.rows; ++row) {
    const std::int64_t tiles = tiles_of(params, row);
    const std::int64_t step = std::max<std::int64_t>(ceil_div(tiles, tile_pieces), 1);
    for (std::int32_t head = 0; head < params.heads;) {
      const std::int32_t group_end = (head / group + 1) * group;
      const HeadRange range{row, head / group, head, std::min(head_step, group_end - head)};
      head += range.heads;
      if (step >= tiles) {
        runs_.push_back({range, 0, tiles, -1});
        continue;
      }
      divided_.push_back(static_cast<std::int64_t>(runs_.size()));
      const std::int64_t size = partial_floats(range.heads, params.geometry.value_dim);
      for (std::int64_t tile = 0; tile < tiles; tile += step) {
        runs_.push_back({range, tile, std::min(tiles, tile + step), partials + tile * size});
      }
      partials += tiles * size;
    }
  }
  return partials;
}

void CpuAttention::slots(const SlotAttentionParams& params) {
  if (params.rows <= 0) return;
  const KvGeometry& geometry = params.geometry;
  const std::int32_t group = group_size(geometry, params.heads);
  HS_CHECK(params.out_stride >= std::int64_t{params.heads} * geometry.value_dim, "rows of out overlap");
  partials_.reserve(plan_runs(params, group));
  const std::int64_t tile_floats = kTileRows * (group + widened_floats(kv_head_view(geometry, 0)));
  const std::int64_t scratch_floats = tile_floats + 2 * partial_floats(group, geometry.value_dim);
  for (AlignedBuffer<float>& scratch : scratch_) scratch.reserve(scratch_floats);
  const auto scratch_of = [&](int worker) { return scratch_[static_cast<std::size_t>(worker)].data(); };
  pool_.run(static_cast<std::int64_t>(runs_.size()), [&](std::int64_t index, int worker) {
    slot_run(params, runs_[static_cast<std::size_t>(index)], scratch_of(worker));
  });
  pool_.run(static_cast<std::int64_t>(divided_.size()), [&](std::int64_t index, int worker) {
    merge_runs(params, divided_[static_cast<std::size_t>(index)], scratch_of(worker));
  });
}

void CpuAttention::slot_run(const SlotAttentionParams& params, const Run& run, float* scratch) {
  const KvGeometry& geometry = params.geometry;
  const std::int32_t heads = run.range.heads;
  const std::int32_t dim = geometry.value_dim;
  const std::int64_t row = run.range.row;
  const std::int64_t begin = params.slot_offsets[row];
  const std::int64_t end = params.slot_offsets[row + 1];

  SlotTile tile{};
  tile.kv = kv_head_view(geometry, run.range.kv_head);
  tile.q = params.q + row * params.q_stride + std::int64_t{run.range.first_head} * geometry.key_dim;
  tile.group = heads;
  tile.scale = params.scale;
  tile.pool = params.pool;
  tile.row_bytes = geometry.row_bytes();
  tile.scores = scratch;
  tile.widened = tile.scores + std::int64_t{heads} * kTileRows;
  float* const total = tile.widened + kTileRows * widened_floats(tile.kv);
  float* const own_partial = total + partial_floats(heads, dim);
  if (run.partial < 0) clear_total(heads, dim, total);
  for (std::int64_t t = run.tile_begin; t < run.tile_end; ++t) {
    tile.slots = params.slots + begin + t * kTileRows;
    tile.count = static_cast<std::int32_t>(std::min<std::int64_t>(kTileRows, end - begin - t * kTileRows));
    if (run.partial >= 0) {
      kernels_.slot_tile(tile, partials_.data() + run.partial + (t - run.tile_begin) * partial_floats(heads, dim));
    } else {
      kernels_.slot_tile(tile, own_partial);
      kernels_.merge_partial(heads, dim, own_partial, total);
    }
  }
  if (run.partial < 0) {
    float* const out = params.out + row * params.out_stride + std::int64_t{run.range.first_head} * dim;
    kernels_.finish_partial(heads, dim, total, out);
  }
}

// The runs of a list lie next to each other, and so do their partials.
void CpuAttention::merge_runs(const SlotAttentionParams& params, std::int64_t first_run, float* total) {
  const Run& run = runs_[static_cast<std::size_t>(first_run)];
  const std::int32_t heads = run.range.heads;
  const std::int32_t dim = params.geometry.value_dim;
  clear_total(heads, dim, total);
  for (std::int64_t t = 0; t < tiles_of(params, run.range.row); ++t) {
    kernels_.merge_partial(heads, dim, partials_.data() + run.partial + t * partial_floats(heads, dim), total);
  }
  float* const out = params.out + run.range.row * params.out_stride + std::int64_t{run.range.first_head} * dim;
  kernels_.finish_partial(heads, dim, total, out);
}

void CpuAttention::prefill(const PrefillAttentionParams& params) {
  if (params.rows <= 0) return;
  const KvGeometry& geometry = params.geometry;
  const std::int32_t group = group_size(geometry, params.heads);
  for (AlignedBuffer<float>& scratch : scratch_) scratch.reserve(prefill_scratch_floats(kv_head_view(geometry, 0)));
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
