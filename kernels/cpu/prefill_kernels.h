// Dense causal prefill. Included by the isa_*.cpp files inside their unnamed namespace, after attention_kernels.h.
//
// Per tile of 64 positions: K is transposed once, so that a lane is a position, and V widened to float32; then all
// (query, head) pairs of the block stream over both. Each pair does the same operations whatever its block:
//   score = sum over channels (ascending) of q * k, times scale;  m' = max(m, tile max);  r = exp(m - m')
//   sum = fma(sum, r, tree sum of p);  acc = acc * r, then fma(p, v, acc) over its visible positions, ascending.

struct PrefillScratch {
  float* keys;              // [key_dim][64]
  float* values;            // [64][padded_dim]
  float* scores;            // [row block][64]
  float* row;               // one FP8 row in float32
  std::int64_t padded_dim;  // value_dim rounded up to whole vectors
};

// The (query, head) pair that row `index` of a task means; rows are queries x heads, heads fastest.
struct PrefillRow {
  const float* q;
  float* acc;
  float* max;
  float* sum;
  float* out;
  int visible;  // positions of the current tile
};

HOTSET_SIMD PrefillRow prefill_row(const PrefillTask& task, std::int64_t index, std::int64_t tile_position) {
  const std::int64_t query = index / task.group;
  const std::int64_t head = index % task.group;
  const std::int64_t pair = query * task.heads + task.first_head + head;
  const std::int64_t visible = task.first_position + query - tile_position + 1;
  PrefillRow row;
  row.q = task.q + query * task.q_stride + head * task.kv.key_dim;
  row.acc = task.acc + pair * task.kv.value_dim;
  row.max = task.max + pair;
  row.sum = task.sum + pair;
  row.out = task.out + pair * task.kv.value_dim;
  row.visible = static_cast<int>(visible < kTileRows ? visible : kTileRows);
  return row;
}

template <bool kBf16>
void load_row(const KvHeadView& kv, const std::byte* key_row, const std::byte* value_row, int row,
              const PrefillScratch& scratch) {
  float key[kLanes];
  for_lanes(kv.key_dim, [&](std::int64_t at, int lanes) {
    Simd::store(key, load_kv<kBf16>(key_row, at, lanes));
    for (int i = 0; i < lanes; ++i) scratch.keys[(at + i) * kTileRows + row] = key[i];
  });
  for_lanes(kv.value_dim, [&](std::int64_t at, int lanes) {
    Simd::store(scratch.values + row * scratch.padded_dim + at, load_kv<kBf16>(value_row, at, lanes));
  });
}

void load_tile(const PrefillTask& task, const std::byte* tile, int count, const PrefillScratch& scratch) {
  const KvHeadView& kv = task.kv;
  for (int row = 0; row < count; ++row) {
    const std::byte* from = tile + row * task.row_bytes;
    if (kv.format == RowFormat::kFp8) {
      widen_row(kv, from, scratch.row);
      const auto* key = reinterpret_cast<const std::byte*>(scratch.row);
      const auto* value = reinterpret_cast<const std::byte*>(scratch.row + (kv.latent ? 0 : kv.key_dim));
      load_row<false>(kv, key, value, row, scratch);
    } else if (kv.format == RowFormat::kBF16) {
      load_row<true>(kv, from + kv.k_offset, from + kv.v_offset, row, scratch);
    } else {
      load_row<false>(kv, from + kv.k_offset, from + kv.v_offset, row, scratch);
    }
  }
  if (count == kTileRows) return;
  for (std::int64_t d = 0; d < kv.key_dim; ++d) {
    for (int row = count; row < kTileRows; ++row) scratch.keys[d * kTileRows + row] = 0.0F;
  }
}

// sums[r][c] = fma(a[r][step], b[step][16 c ...], sums[r][c]), steps ascending.
template <int kRows, int kCols>
HOTSET_SIMD void accumulate_block(const float* const (&a)[kRows], const float* b, std::int64_t b_stride,
                                  std::int64_t steps, Simd::Vec (&sums)[kRows][kCols]) {
  for (std::int64_t step = 0; step < steps; ++step) {
    Simd::Vec right[kCols];
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) right[c] = Simd::load(b + step * b_stride + c * kLanes);
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Simd::Vec left = Simd::set1(a[r][step]);
      HOTSET_UNROLL
      for (int c = 0; c < kCols; ++c) sums[r][c] = Simd::fma(left, right[c], sums[r][c]);
    }
  }
}

template <int kRows>
HOTSET_SIMD void prefill_scores(const PrefillTask& task, const PrefillRow (&rows)[kRows],
                                const PrefillScratch& scratch) {
  constexpr int kCols = Simd::kAttentionCols;
  const float* q[kRows];
  for (int r = 0; r < kRows; ++r) q[r] = rows[r].q;
  for (int column = 0; column < kTileVectors; column += kCols) {
    Simd::Vec sums[kRows][kCols];
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int c = 0; c < kCols; ++c) sums[r][c] = Simd::set1(0.0F);
    }
    accumulate_block(q, scratch.keys + column * kLanes, kTileRows, task.kv.key_dim, sums);
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int c = 0; c < kCols; ++c) {
        const Simd::Vec scaled = Simd::mul(sums[r][c], Simd::set1(task.scale));
        const int seen = rows[r].visible - (column + c) * kLanes;
        Simd::store(scratch.scores + r * kTileRows + (column + c) * kLanes,
                    Simd::fill_from(scaled, seen, kMinusInfinity));
      }
    }
  }
}

// Weights of one row in place; updates its maximum and sum; gives the factor of what was summed before.
HOTSET_SIMD float prefill_softmax(const PrefillRow& row, float* scores) {
  const float newest = tile_max(scores);
  const float max = newest > *row.max ? newest : *row.max;
  const float keep = exp_scalar(*row.max - finite_or_zero(max));
  *row.sum = __builtin_fmaf(*row.sum, keep, tile_weights(scores, max));
  *row.max = max;
  return keep;
}

template <int kRows, int kCols>
HOTSET_SIMD void prefill_values_columns(const PrefillRow* rows, const float* keep, const float* scores,
                                        const PrefillScratch& scratch, std::int64_t channel, int count) {
  const float* weights[kRows];
  Simd::Vec sums[kRows][kCols];
  HOTSET_UNROLL
  for (int r = 0; r < kRows; ++r) {
    weights[r] = scores + r * kTileRows;
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) {
      sums[r][c] = Simd::mul(load_lanes(rows[r].acc + channel + c * kLanes, count), Simd::set1(keep[r]));
    }
  }
  accumulate_block(weights, scratch.values + channel, scratch.padded_dim, rows[0].visible, sums);
  HOTSET_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) store_lanes(rows[r].acc + channel + c * kLanes, sums[r][c], count);
  }
}

// The rows see the same number of positions.
template <int kRows>
void prefill_values(const PrefillTask& task, const PrefillRow* rows, const float* keep, const float* scores,
                    const PrefillScratch& scratch) {
  constexpr int kCols = Simd::kAttentionCols;
  const std::int64_t dim = task.kv.value_dim;
  std::int64_t channel = 0;
  for (; channel + kCols * kLanes <= dim; channel += kCols * kLanes) {
    prefill_values_columns<kRows, kCols>(rows, keep, scores, scratch, channel, kLanes);
  }
  for (; channel < dim; channel += kLanes) {
    const std::int64_t left = dim - channel;
    const int count = left < kLanes ? static_cast<int>(left) : kLanes;
    prefill_values_columns<kRows, 1>(rows, keep, scores, scratch, channel, count);
  }
}

template <int kRows>
void prefill_block(const PrefillTask& task, std::int64_t index, std::int64_t tile_position,
                   const PrefillScratch& scratch) {
  PrefillRow rows[kRows];
  float keep[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = prefill_row(task, index + r, tile_position);
  prefill_scores<kRows>(task, rows, scratch);
  for (int r = 0; r < kRows; ++r) keep[r] = prefill_softmax(rows[r], scratch.scores + r * kTileRows);
  if (rows[0].visible == rows[kRows - 1].visible) {
    prefill_values<kRows>(task, rows, keep, scratch.scores, scratch);
    return;
  }
  for (int r = 0; r < kRows; ++r) {
    prefill_values<1>(task, rows + r, keep + r, scratch.scores + r * kTileRows, scratch);
  }
}

void prefill_begin(const PrefillTask& task) {
  for (std::int64_t i = task.query_begin * task.group; i < task.query_end * task.group; ++i) {
    const PrefillRow row = prefill_row(task, i, 0);
    *row.max = kMinusInfinity;
    *row.sum = 0.0F;
    for_lanes(task.kv.value_dim,
              [&](std::int64_t at, int count) { store_lanes(row.acc + at, Simd::set1(0.0F), count); });
  }
}

void prefill(const PrefillTask& task) {
  constexpr int kRows = Simd::kAttentionRows;
  PrefillScratch scratch;
  scratch.padded_dim = (task.kv.value_dim + kLanes - 1) / kLanes * kLanes;
  scratch.scores = task.scratch;
  scratch.values = scratch.scores + kPrefillMaxRowBlock * kTileRows;
  scratch.keys = scratch.values + kTileRows * scratch.padded_dim;
  scratch.row = scratch.keys + std::int64_t{kTileRows} * task.kv.key_dim;
  if (task.begin) prefill_begin(task);

  const std::int64_t newest = task.first_position + task.query_end - 1;  // of this block
  const std::int64_t end = task.query_end * task.group;
  for (std::int64_t t = 0; t < task.tile_count; ++t) {
    const std::int64_t tile_position = (task.first_tile + t) * kTileRows;
    if (tile_position > newest) break;
    const std::int64_t there = newest - tile_position + 1;
    const int count = static_cast<int>(there < kTileRows ? there : kTileRows);
    load_tile(task, task.tiles[t], count, scratch);
    const std::int64_t first_query = tile_position - task.first_position;
    std::int64_t i = (first_query > task.query_begin ? first_query : task.query_begin) * task.group;
    for (; i + kRows <= end; i += kRows) prefill_block<kRows>(task, i, tile_position, scratch);
    for (; i < end; ++i) prefill_block<1>(task, i, tile_position, scratch);
  }

  if (!task.finish) return;
  for (std::int64_t i = task.query_begin * task.group; i < end; ++i) {
    const PrefillRow row = prefill_row(task, i, 0);
    divide_row(row.acc, *row.sum, task.kv.value_dim, row.out);
  }
}
