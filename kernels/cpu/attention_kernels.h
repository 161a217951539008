// Attention tiles. Included by the isa_*.cpp files inside their unnamed namespace, after row_kernels.h.
//
// A tile's softmax: score = (q.k) * scale, m = max, p = exp(score - m), sums of p by the fixed 16-lane tree over ranks,
// sums of p * v in ascending rank. A hole, and a position that the query must not see, has score -infinity and p = 0,
// and its V is never touched. m = -infinity (nothing seen) is replaced by 0, so that no NaN comes from empty tiles; NaN
// scores make the sums NaN, of their own query and head only.

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int kTileVectors = kTileRows / kLanes;

HOTSET_SIMD float finite_or_zero(float max) { return max == kMinusInfinity ? 0.0F : max; }

HOTSET_SIMD float exp_scalar(float x) {
  float lanes[kLanes];
  Simd::store(lanes, exp_lanes(Simd::set1(x)));
  return lanes[0];
}

template <bool kBf16>
HOTSET_SIMD Simd::Vec load_kv(const std::byte* row, std::int64_t channel, int count) {
  if constexpr (kBf16) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(row) + 2 * channel;
    return count == kLanes ? Simd::load_bf16(from) : Simd::load_bf16_partial(from, count);
  } else {
    const auto* from = reinterpret_cast<const float*>(row) + channel;
    return count == kLanes ? Simd::load(from) : Simd::load_partial(from, count);
  }
}

// The tile's rows that are there: their rank and bytes.
struct TileRows {
  int count;
  std::uint8_t rank[kTileRows];
  const std::byte* row[kTileRows];
};

HOTSET_SIMD TileRows present_rows(const SlotTile& tile) {
  TileRows rows;
  rows.count = 0;
  for (int rank = 0; rank < tile.count; ++rank) {
    if (tile.slots[rank] < 0) continue;
    rows.rank[rows.count] = static_cast<std::uint8_t>(rank);
    rows.row[rows.count] = tile.pool + tile.slots[rank] * tile.row_bytes;
    ++rows.count;
  }
  return rows;
}

template <bool kBf16, int kHeads>
void slot_scores(const SlotTile& tile, const TileRows& rows, int head) {
  const std::int32_t dim = tile.kv.head_dim;
  const float* q = tile.q + std::int64_t{head} * dim;
  for (int i = 0; i < rows.count; ++i) {
    const std::byte* k = rows.row[i] + tile.kv.k_offset;
    Simd::Vec sums[kHeads];
    HOTSET_UNROLL
    for (int h = 0; h < kHeads; ++h) sums[h] = Simd::set1(0.0F);
    for_lanes(dim, [&](std::int64_t at, int count) {
      const Simd::Vec key = load_kv<kBf16>(k, at, count);
      HOTSET_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        sums[h] = Simd::fma(load_lanes(q + std::int64_t{h} * dim + at, count), key, sums[h]);
      }
    });
    HOTSET_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      tile.scores[(head + h) * kTileRows + rows.rank[i]] = Simd::sum(sums[h]) * tile.scale;
    }
  }
}

// kVectors vectors of channels from `channel` on; `count` < 16 only when kVectors is 1.
template <bool kBf16, int kHeads, int kVectors>
HOTSET_SIMD void slot_values_columns(const SlotTile& tile, const TileRows& rows, int head, std::int64_t channel,
                                     int count, float* partial) {
  const std::int64_t stride = tile.kv.head_dim + kPartialExtra;
  Simd::Vec sums[kHeads][kVectors];
  HOTSET_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[h][v] = Simd::set1(0.0F);
  }
  for (int i = 0; i < rows.count; ++i) {
    const std::byte* value_row = rows.row[i] + tile.kv.v_offset;
    Simd::Vec value[kVectors];
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) value[v] = load_kv<kBf16>(value_row, channel + v * kLanes, count);
    HOTSET_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const Simd::Vec weight = Simd::set1(tile.scores[(head + h) * kTileRows + rows.rank[i]]);
      HOTSET_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[h][v] = Simd::fma(weight, value[v], sums[h][v]);
    }
  }
  HOTSET_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      store_lanes(partial + (head + h) * stride + channel + v * kLanes, sums[h][v], count);
    }
  }
}

template <bool kBf16, int kHeads>
void slot_values(const SlotTile& tile, const TileRows& rows, int head, float* partial) {
  constexpr int kColumns = Simd::kAttentionCols;
  const std::int64_t dim = tile.kv.head_dim;
  std::int64_t channel = 0;
  for (; channel + kColumns * kLanes <= dim; channel += kColumns * kLanes) {
    slot_values_columns<kBf16, kHeads, kColumns>(tile, rows, head, channel, kLanes, partial);
  }
  for (; channel < dim; channel += kLanes) {
    const std::int64_t left = dim - channel;
    const int count = left < kLanes ? static_cast<int>(left) : kLanes;
    slot_values_columns<kBf16, kHeads, 1>(tile, rows, head, channel, count, partial);
  }
}

HOTSET_SIMD float tile_max(const float* scores) {
  Simd::Vec max = Simd::set1(kMinusInfinity);
  for (int v = 0; v < kTileVectors; ++v) max = Simd::max(Simd::load(scores + v * kLanes), max);  // skips NaN
  return Simd::max_lane(max);
}

// scores [kTileRows] become weights exp(score - max); gives their sum.
HOTSET_SIMD float tile_weights(float* scores, float max) {
  const Simd::Vec shift = Simd::set1(finite_or_zero(max));
  Simd::Vec total = Simd::set1(0.0F);
  for (int v = 0; v < kTileVectors; ++v) {
    const Simd::Vec weight = exp_lanes(Simd::sub(Simd::load(scores + v * kLanes), shift));
    Simd::store(scores + v * kLanes, weight);
    total = Simd::add(total, weight);
  }
  return Simd::sum(total);
}

template <bool kBf16, int kHeads>
void slot_heads(const SlotTile& tile, const TileRows& rows, int head, float* partial) {
  slot_scores<kBf16, kHeads>(tile, rows, head);
  for (int h = head; h < head + kHeads; ++h) {
    float* tail = partial + std::int64_t{h} * (tile.kv.head_dim + kPartialExtra) + tile.kv.head_dim;
    tail[0] = tile_max(tile.scores + h * kTileRows);
    tail[1] = tile_weights(tile.scores + h * kTileRows, tail[0]);
  }
  slot_values<kBf16, kHeads>(tile, rows, head, partial);
}

template <bool kBf16>
void slot_tile_typed(const SlotTile& tile, float* partial) {
  for (int i = 0; i < tile.group * kTileRows; ++i) tile.scores[i] = kMinusInfinity;
  const TileRows rows = present_rows(tile);
  int head = 0;
  for (; head + 4 <= tile.group; head += 4) slot_heads<kBf16, 4>(tile, rows, head, partial);
  switch (tile.group - head) {
    case 3: return slot_heads<kBf16, 3>(tile, rows, head, partial);
    case 2: return slot_heads<kBf16, 2>(tile, rows, head, partial);
    case 1: return slot_heads<kBf16, 1>(tile, rows, head, partial);
    default: return;
  }
}

void slot_tile(const SlotTile& tile, float* partial) {
  if (tile.kv.bf16) {
    slot_tile_typed<true>(tile, partial);
  } else {
    slot_tile_typed<false>(tile, partial);
  }
}

void merge_partial(std::int32_t group, std::int32_t head_dim, const float* partial, float* total) {
  for (std::int32_t h = 0; h < group; ++h) {
    const float max = partial[head_dim] > total[head_dim] ? partial[head_dim] : total[head_dim];
    const float shift = finite_or_zero(max);
    const float keep = exp_scalar(total[head_dim] - shift);
    const float take = exp_scalar(partial[head_dim] - shift);
    for_lanes(head_dim, [&](std::int64_t at, int count) {
      const Simd::Vec taken = Simd::mul(load_lanes(partial + at, count), Simd::set1(take));
      store_lanes(total + at, Simd::fma(load_lanes(total + at, count), Simd::set1(keep), taken), count);
    });
    total[head_dim + 1] = __builtin_fmaf(total[head_dim + 1], keep, partial[head_dim + 1] * take);
    total[head_dim] = max;
    partial += head_dim + kPartialExtra;
    total += head_dim + kPartialExtra;
  }
}

// out = acc / sum, zeros when nothing was seen.
HOTSET_SIMD void divide_row(const float* acc, float sum, std::int64_t head_dim, float* out) {
  const Simd::Vec factor = Simd::set1(sum == 0.0F ? 0.0F : 1.0F / sum);
  for_lanes(head_dim, [&](std::int64_t at, int count) {
    store_lanes(out + at, Simd::mul(load_lanes(acc + at, count), factor), count);
  });
}

void finish_partial(std::int32_t group, std::int32_t head_dim, const float* total, float* out) {
  for (std::int64_t h = 0; h < group; ++h) {
    const float* head = total + h * (head_dim + kPartialExtra);
    divide_row(head, head[head_dim + 1], head_dim, out + h * head_dim);
  }
}
