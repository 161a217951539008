#include "kernels/cpu/cpu_selection.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/kv_metadata_format.h"
#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/top_k.h"

namespace hotset::kernels {
namespace {

constexpr std::int64_t kTasksPerThread = 4;
constexpr std::int64_t kMinTilesPerTask = 8;                 // a tile takes about a microsecond
constexpr std::int64_t kMostLogits = std::int64_t{4} << 20;  // floats of a batch of rows, unless one row has more
constexpr std::int64_t kIndexRowsPerGroup = 32;
constexpr std::int64_t kLowRankRowsPerGroup = 16;
constexpr std::int64_t kMinTopKTask = 8 << 10;  // scores

std::int32_t group_size(const MetadataGeometry& geometry, std::int32_t heads) {
  HS_CHECK(geometry.kv_heads > 0 && geometry.dim > 0 && heads > 0 && heads % geometry.kv_heads == 0,
           "query heads do not divide into KV heads");
  return heads / geometry.kv_heads;
}

// Tokens of a page that a row of this length sees.
int visible_tokens(std::int64_t length, std::int64_t page) {
  return static_cast<int>(std::clamp<std::int64_t>(length - page * kPageTokens, 0, kPageTokens));
}

std::int64_t longest(const ScoredRows& rows, std::int64_t begin, std::int64_t end) {
  return *std::max_element(rows.lengths + begin, rows.lengths + end);
}

const std::byte* page_of(const ScoredRows& rows, std::int64_t row, std::int64_t page) {
  return rows.pages[rows.page_offsets[row] + page];
}

float reciprocal_or_zero(float value) { return value == 0.0F ? 0.0F : 1.0F / value; }

}  // namespace

CpuSelection::CpuSelection(const IsaKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())), keys_(scratch_.size()) {}

void CpuSelection::store(const StoreMetadataParams& params) {
  const MetadataGeometry& geometry = params.geometry;
  if (params.rows <= 0 || geometry.kind == MetadataGeometry::Kind::kNone) return;
  runs_.clear();
  for (std::int64_t row = 0; row < params.rows; ++row) {
    if (row == 0 || params.pages[row] != params.pages[row - 1]) runs_.push_back(row);
  }
  runs_.push_back(params.rows);
  reserve_scratch(geometry.rank);
  pool_.run(static_cast<std::int64_t>(runs_.size()) - 1, [&](std::int64_t run, int worker) {
    float* const projected = scratch(worker);
    for (std::int64_t row = runs_[static_cast<std::size_t>(run)]; row < runs_[static_cast<std::size_t>(run) + 1];
         ++row) {
      const float* const key = params.keys + row * params.stride;
      std::byte* const page = params.pages[row];
      const std::int64_t offset = params.offsets[row];
      switch (geometry.kind) {
        case MetadataGeometry::Kind::kNone: break;
        case MetadataGeometry::Kind::kIndexKeys: encode_index_key(geometry, key, page, offset); break;
        case MetadataGeometry::Kind::kLowRankKeys:
          for (std::int64_t head = 0; head < geometry.kv_heads; ++head) {
            kernels_.selection.project({key + head * geometry.dim, params.basis + head * geometry.dim * geometry.rank,
                                        geometry.dim, geometry.rank, 1.0F, projected});
            encode_low_rank_key(geometry, head, projected, page, offset);
          }
          break;
        case MetadataGeometry::Kind::kBlockBounds: widen_bounds(geometry, key, page, offset); break;
      }
    }
  });
}

void CpuSelection::index_scores(const IndexScoresParams& params) {
  const ScoredRows& rows = params.rows;
  const std::int32_t dim = rows.geometry.dim;
  if (rows.rows <= 0) return;
  HS_CHECK(rows.geometry.kind == MetadataGeometry::Kind::kIndexKeys && params.heads > 0, "not index keys");
  reserve_scratch(std::int64_t{dim} * kSelectionTile);
  group_by_pages(rows, 0, rows.rows, kIndexRowsPerGroup);
  for_tiles([&](const Group& group, std::int64_t page, int worker) {
    float* const keys = scratch(worker);
    kernels_.selection.load_index_keys({page_of(rows, group.row_begin, page), row_format(rows.geometry.dtype), dim,
                                        visible_tokens(longest(rows, group.row_begin, group.row_end), page), keys});
    for (std::int64_t row = group.row_begin; row < group.row_end; ++row) {
      const int count = visible_tokens(rows.lengths[row], page);
      if (count == 0) continue;
      const std::int64_t query = rows.query_rows[row];
      kernels_.selection.index_scores({keys, params.q + query * params.q_stride, params.weights + query * params.heads,
                                       params.heads, dim, count, rows.scores + row * rows.stride + page * kPageTokens});
    }
  });
}

void CpuSelection::low_rank_scores(const LowRankScoresParams& params) {
  const ScoredRows& rows = params.rows;
  if (rows.rows <= 0) return;
  HS_CHECK(rows.geometry.kind == MetadataGeometry::Kind::kLowRankKeys && rows.geometry.rank % 2 == 0,
           "not low-rank keys");
  for (std::int64_t begin = 0, end = 0; begin < rows.rows; begin = end) {
    end = fit_rows(begin, rows.rows, params.heads, [&](std::int64_t row) {
      return std::pair<std::int64_t, std::int64_t>(0, pages_for_tokens(rows.lengths[row]));
    });
    low_rank_batch(params, begin, end);
  }
}

void CpuSelection::low_rank_batch(const LowRankScoresParams& params, std::int64_t begin, std::int64_t end) {
  const ScoredRows& rows = params.rows;
  const MetadataGeometry& geometry = rows.geometry;
  const std::int32_t group_heads = group_size(geometry, params.heads);
  const std::int32_t rank = geometry.rank;
  float* const projected = projected_.reserve((end - begin) * params.heads * rank);
  pool_.run((end - begin) * geometry.kv_heads, [&](std::int64_t task, int) {
    const std::int64_t row = task / geometry.kv_heads;
    const std::int64_t kv_head = task % geometry.kv_heads;
    const float* const q = params.q + rows.query_rows[begin + row] * params.q_stride;
    for (std::int64_t head = kv_head * group_heads; head < (kv_head + 1) * group_heads; ++head) {
      kernels_.selection.project({q + head * geometry.dim, params.basis + kv_head * geometry.dim * rank, geometry.dim,
                                  rank, params.scale, projected + (row * params.heads + head) * rank});
    }
  });

  reserve_scratch((std::int64_t{rank} + 1) * kSelectionTile);
  group_by_pages(rows, begin, end, kLowRankRowsPerGroup);
  for_tiles([&](const Group& group, std::int64_t page, int worker) {
    float* const codes = scratch(worker);
    float* const scales = codes + std::int64_t{rank} * kSelectionTile;
    const int loaded = visible_tokens(longest(rows, group.row_begin, group.row_end), page);
    for (std::int64_t kv_head = 0; kv_head < geometry.kv_heads; ++kv_head) {
      kernels_.selection.load_low_rank({page_of(rows, group.row_begin, page) + kv_head * geometry.low_rank_head_bytes(),
                                        rank, loaded, codes, scales});
      const std::int64_t head = kv_head * group_heads;
      for (std::int64_t row = group.row_begin; row < group.row_end; ++row) {
        const int count = visible_tokens(rows.lengths[row], page);
        if (count == 0) continue;
        kernels_.selection.low_rank_logits(
            {codes, scales, projected + ((row - begin) * params.heads + head) * rank, group_heads, rank, count,
             logits(row, page, params.heads) + head * kSelectionTile, tile_max(row, page, params.heads) + head});
      }
    }
  });
  softmax_mean(rows, params.heads, nullptr, nullptr);
}

void CpuSelection::block_scores(const BlockScoresParams& params) {
  const ScoredRows& rows = params.rows;
  if (rows.rows <= 0) return;
  HS_CHECK(rows.geometry.kind == MetadataGeometry::Kind::kBlockBounds, "not block bounds");
  for (std::int64_t begin = 0, end = 0; begin < rows.rows; begin = end) {
    end = fit_rows(begin, rows.rows, params.heads, [&](std::int64_t row) {
      HS_CHECK(params.first[row] >= 0 && params.last[row] <= ceil_div(rows.lengths[row], rows.geometry.block_tokens),
               "candidate blocks outside the sequence");
      if (params.first[row] >= params.last[row]) return std::pair<std::int64_t, std::int64_t>(0, 0);
      return std::pair(params.first[row] / kSelectionTile, ceil_div(params.last[row], kSelectionTile));
    });
    block_batch(params, begin, end);
  }
}

void CpuSelection::block_batch(const BlockScoresParams& params, std::int64_t begin, std::int64_t end) {
  const ScoredRows& rows = params.rows;
  const std::int32_t heads = params.heads;
  // The scores of a tile, then (mean) every head's share.
  reserve_scratch(kSelectionTile + heads);
  start_groups();
  for (std::int64_t row = begin; row < end; ++row) {
    const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(row - begin)];
    add_group(row, row + 1, tiles.tile_begin, tiles.tile_end);
  }
  for_tiles([&](const Group& group, std::int64_t tile, int worker) {
    const std::int64_t row = group.row_begin;
    float* const values = logits(row, tile, heads);
    block_tile(params, row, tile, values);
    if (params.combine == HeadCombine::kSoftmax) {
      kernels_.selection.tidy_logits(values, heads, tile_max(row, tile, heads));
      return;
    }
    float* const out = scratch(worker);
    if (params.combine == HeadCombine::kMax) {
      kernels_.selection.best_head(values, heads, out);
    } else {
      float* const factors = out + kSelectionTile;
      std::fill_n(factors, heads, 1.0F / static_cast<float>(heads));
      kernels_.selection.weighted_heads(values, heads, factors, out);
    }
    const std::int64_t base = tile * kSelectionTile;
    const std::int64_t low = std::max(params.first[row], base);
    const std::int64_t high = std::min(params.last[row], base + kSelectionTile);
    std::copy(out + (low - base), out + (high - base), rows.scores + row * rows.stride + low);
  });
  if (params.combine == HeadCombine::kSoftmax) softmax_mean(rows, heads, params.first, params.last);
}

// values [heads][64]: every head's score of the tile's candidates, minus infinity for other blocks.
void CpuSelection::block_tile(const BlockScoresParams& params, std::int64_t row, std::int64_t tile, float* values) {
  const MetadataGeometry& geometry = params.rows.geometry;
  const std::int32_t group_heads = group_size(geometry, params.heads);
  const std::int64_t page_blocks = kPageTokens / geometry.block_tokens;
  const std::int64_t head_bytes = 2 * geometry.dim * geometry.bounds_bytes();
  const float* const q = params.q + params.rows.query_rows[row] * params.q_stride;
  std::fill_n(values, std::int64_t{params.heads} * kSelectionTile, -std::numeric_limits<float>::infinity());
  const std::int64_t base = tile * kSelectionTile;
  const std::int64_t last = std::min(params.last[row], base + kSelectionTile);
  for (std::int64_t block = std::max(params.first[row], base); block < last; ++block) {
    const std::byte* const page = page_of(params.rows, row, block / page_blocks);
    const std::byte* bounds = page + block % page_blocks * geometry.kv_heads * head_bytes;
    for (std::int64_t kv_head = 0; kv_head < geometry.kv_heads; ++kv_head, bounds += head_bytes) {
      const std::int64_t head = kv_head * group_heads;
      kernels_.selection.block_logits({bounds, geometry.bounds_bytes() == 2, q + head * geometry.dim, group_heads,
                                       geometry.dim, params.scale, values + head * kSelectionTile + (block - base)});
    }
  }
}

void CpuSelection::softmax_mean(const ScoredRows& rows, std::int32_t heads, const std::int64_t* first,
                                const std::int64_t* last) {
  const auto batch = static_cast<std::int64_t>(row_tiles_.size());
  float* const row_values = row_values_.reserve(batch * heads);
  for (std::int64_t i = 0; i < batch; ++i) {
    const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(i)];
    float* const max = row_values + i * heads;
    std::fill_n(max, heads, -std::numeric_limits<float>::infinity());
    for (std::int64_t place = tiles.first; place < tiles.first + tiles.tile_end - tiles.tile_begin; ++place) {
      for (std::int64_t h = 0; h < heads; ++h) max[h] = std::max(max[h], tile_values_.data()[place * heads + h]);
    }
  }
  start_groups();
  for (std::int64_t i = 0; i < batch; ++i) {
    const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(i)];
    add_group(batch_begin_ + i, batch_begin_ + i + 1, tiles.tile_begin, tiles.tile_end);
  }
  for_tiles([&](const Group& group, std::int64_t tile, int) {
    kernels_.selection.softmax_tile(logits(group.row_begin, tile, heads), heads,
                                    row_values + (group.row_begin - batch_begin_) * heads,
                                    tile_max(group.row_begin, tile, heads));
  });
  // The tiles' sums in ascending order, then each head's share of the mean.
  for (std::int64_t i = 0; i < batch; ++i) {
    const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(i)];
    float* const sums = row_values + i * heads;
    std::fill_n(sums, heads, 0.0F);
    for (std::int64_t place = tiles.first; place < tiles.first + tiles.tile_end - tiles.tile_begin; ++place) {
      for (std::int64_t h = 0; h < heads; ++h) sums[h] += tile_values_.data()[place * heads + h];
    }
    for (std::int64_t h = 0; h < heads; ++h) sums[h] = reciprocal_or_zero(sums[h] * static_cast<float>(heads));
  }
  reserve_scratch(kSelectionTile);
  for_tiles([&](const Group& group, std::int64_t tile, int worker) {
    const std::int64_t row = group.row_begin;
    float* const out = scratch(worker);
    kernels_.selection.weighted_heads(logits(row, tile, heads), heads, row_values + (row - batch_begin_) * heads, out);
    const std::int64_t base = tile * kSelectionTile;
    const std::int64_t low = std::max<std::int64_t>(first != nullptr ? first[row] : 0, base);
    const std::int64_t high = std::min(last != nullptr ? last[row] : rows.lengths[row], base + kSelectionTile);
    std::copy(out + (low - base), out + (high - base), rows.scores + row * rows.stride + low);
  });
}

void CpuSelection::top_k(const TopKParams& params) {
  if (params.rows <= 0) return;
  const std::int64_t step = std::max<std::int64_t>(kMinTopKTask / std::max<std::int64_t>(params.stride, 1), 1);
  for (AlignedBuffer<std::uint32_t>& keys : keys_) keys.reserve(params.stride);
  pool_.run(ceil_div(params.rows, step), [&](std::int64_t task, int worker) {
    std::uint32_t* const keys = keys_[static_cast<std::size_t>(worker)].data();
    for (std::int64_t row = task * step; row < std::min(params.rows, (task + 1) * step); ++row) {
      const std::int64_t length = params.lengths[row];
      const std::int64_t first = params.first != nullptr ? params.first[row] : 0;
      const std::int64_t last = params.last != nullptr ? params.last[row] : length;
      HS_CHECK(length >= 0 && length <= params.stride && params.k[row] >= 0, "a row's length or k is out of range");
      HS_CHECK(first >= 0 && last >= first, "forced entries out of range");
      const TopKRow request{params.scores + row * params.stride, length, first, last, params.k[row]};
      HS_CHECK(top_k_count(request) <= params.out_stride, "the selection does not fit its row");
      std::int32_t* const out = params.out + row * params.out_stride;
      const std::int32_t count = top_k_row(request, keys, out);
      std::fill(out + count, out + params.out_stride, -1);
      params.counts[row] = count;
    }
  });
}

void CpuSelection::start_groups() {
  groups_.clear();
  flat_tiles_ = 0;
}

void CpuSelection::add_group(std::int64_t row_begin, std::int64_t row_end, std::int64_t tile_begin,
                             std::int64_t tile_end) {
  if (tile_begin >= tile_end) return;
  groups_.push_back({row_begin, row_end, tile_begin, tile_end, flat_tiles_});
  flat_tiles_ += tile_end - tile_begin;
}

void CpuSelection::group_by_pages(const ScoredRows& rows, std::int64_t begin, std::int64_t end,
                                  std::int64_t most_rows) {
  start_groups();
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t first = row;
    while (row < end && row < first + most_rows && rows.page_offsets[row] == rows.page_offsets[first]) ++row;
    add_group(first, row, 0, pages_for_tokens(longest(rows, first, row)));
  }
}

template <class Body>
void CpuSelection::for_tiles(const Body& body) {
  const std::int64_t tasks = pool_.threads() == 1 ? 1 : pool_.threads() * kTasksPerThread;
  const std::int64_t step = std::max(ceil_div(flat_tiles_, tasks), kMinTilesPerTask);
  pool_.run(ceil_div(flat_tiles_, step), [&](std::int64_t task, int worker) {
    const std::int64_t begin = task * step;
    const std::int64_t end = std::min(flat_tiles_, begin + step);
    auto group = std::upper_bound(groups_.begin(), groups_.end(), begin,
                                  [](std::int64_t flat, const Group& g) { return flat < g.flat; }) -
                 1;
    for (std::int64_t flat = begin; flat < end; ++flat) {
      if (flat >= group->flat + group->tile_end - group->tile_begin) ++group;
      body(*group, group->tile_begin + flat - group->flat, worker);
    }
  });
}

template <class Tiles>
std::int64_t CpuSelection::fit_rows(std::int64_t begin, std::int64_t end, std::int32_t heads, const Tiles& tiles) {
  batch_begin_ = begin;
  row_tiles_.clear();
  std::int64_t places = 0;
  std::int64_t row = begin;
  for (; row < end; ++row) {
    const auto [tile_begin, tile_end] = tiles(row);
    const std::int64_t more = places + tile_end - tile_begin;
    if (row > begin && more * heads * kSelectionTile > kMostLogits) break;
    row_tiles_.push_back({places, tile_begin, tile_end});
    places = more;
  }
  logits_.reserve(places * heads * kSelectionTile);
  tile_values_.reserve(places * heads);
  return row;
}

void CpuSelection::reserve_scratch(std::int64_t floats) {
  for (AlignedBuffer<float>& scratch : scratch_) scratch.reserve(floats);
}

float* CpuSelection::logits(std::int64_t row, std::int64_t tile, std::int32_t heads) {
  const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(row - batch_begin_)];
  return logits_.data() + (tiles.first + tile - tiles.tile_begin) * heads * kSelectionTile;
}

float* CpuSelection::tile_max(std::int64_t row, std::int64_t tile, std::int32_t heads) {
  const RowTiles& tiles = row_tiles_[static_cast<std::size_t>(row - batch_begin_)];
  return tile_values_.data() + (tiles.first + tile - tiles.tile_begin) * heads;
}

}  // namespace hotset::kernels
