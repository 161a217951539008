// Attention tiles. Included by the isa_*.cpp files inside their unnamed namespace, after row_kernels.h.
//
// A tile's softmax: score = (q.k) * scale, m = max, p = exp(score - m), sums of p by the fixed 16-lane tree over ranks,
// sums of p * v in ascending rank. A hole, and a position that the query must not see, has score -infinity and p = 0,
// and its V is never touched. m = -infinity (nothing seen) is replaced by 0, so that no NaN comes from empty tiles; NaN
// scores make the sums NaN, of their own query and head only.
//
// FP8 rows, and bf16 rows that many heads share, are first decoded to float32, which changes no value: the same
// operations follow.

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

template <bool kBf16>
HOTSET_SIMD void widen_plain(const std::byte* from, std::int64_t count_all, float* out) {
  for_lanes(count_all,
            [&](std::int64_t at, int count) { store_lanes(out + at, load_kv<kBf16>(from, at, count), count); });
}

// FP8: `count` channels from `at` on, a multiple of kLanes. A vector never lies in two scale groups.
static_assert(kScaleChannels % kLanes == 0);
HOTSET_SIMD Simd::Vec load_fp8(const std::byte* codes, const std::byte* scales, std::int64_t at, int count) {
  const auto* from = reinterpret_cast<const std::uint8_t*>(codes) + at;
  float scale;
  __builtin_memcpy(&scale, scales + 4 * (at / kScaleChannels), sizeof scale);
  const Simd::Vec value = count == kLanes ? Simd::load_e4m3(from) : Simd::load_e4m3_partial(from, count);
  return Simd::mul(value, Simd::set1(scale));
}
HOTSET_SIMD void widen_fp8(const std::byte* codes, const std::byte* scales, std::int64_t count_all, float* out) {
  for_lanes(count_all,
            [&](std::int64_t at, int count) { store_lanes(out + at, load_fp8(codes, scales, at, count), count); });
}

void load_key(const KvHeadView& kv, const std::byte* row, float* out) {
  switch (kv.format) {
    case RowFormat::kF32: return widen_plain<false>(row + kv.k_offset, kv.key_dim, out);
    case RowFormat::kBF16: return widen_plain<true>(row + kv.k_offset, kv.key_dim, out);
    case RowFormat::kFp8: break;
  }
  const std::int32_t coded = kv.latent ? kv.value_dim : kv.key_dim;
  widen_fp8(row + kv.k_offset, row + kv.k_scales_offset, coded, out);
  if (kv.latent) widen_plain<true>(row + kv.rope_offset, kv.key_dim - coded, out + coded);
}

// Of FP8 and bf16 rows. out: widened_floats(kv).
void widen_row(const KvHeadView& kv, const std::byte* row, float* out) {
  load_key(kv, row, out);
  if (kv.latent) return;
  if (kv.format == RowFormat::kFp8) {
    widen_fp8(row + kv.v_offset, row + kv.v_scales_offset, kv.value_dim, out + kv.key_dim);
  } else {
    widen_plain<true>(row + kv.v_offset, kv.value_dim, out + kv.key_dim);
  }
}

// The tile's rows that are there: their rank, key and value.
struct TileRows {
  int count;
  std::uint8_t rank[kTileRows];
  const std::byte* key[kTileRows];
  const std::byte* value[kTileRows];
};

TileRows present_rows(const SlotTile& tile, bool widen) {
  TileRows rows;
  rows.count = 0;
  for (int rank = 0; rank < tile.count; ++rank) {
    if (tile.slots[rank] < 0) continue;
    const std::byte* row = tile.pool + tile.slots[rank] * tile.row_bytes;
    rows.rank[rows.count] = static_cast<std::uint8_t>(rank);
    if (widen) {
      float* out = tile.widened + rows.count * widened_floats(tile.kv);
      widen_row(tile.kv, row, out);
      rows.key[rows.count] = reinterpret_cast<const std::byte*>(out);
      rows.value[rows.count] = reinterpret_cast<const std::byte*>(out + (tile.kv.latent ? 0 : tile.kv.key_dim));
    } else {
      rows.key[rows.count] = row + tile.kv.k_offset;
      rows.value[rows.count] = row + tile.kv.v_offset;
    }
    ++rows.count;
  }
  return rows;
}

// Scores of kHeads heads with kRows rows from `first` on: each value loaded serves kRows or kHeads products.
template <bool kBf16, int kHeads, int kRows>
HOTSET_SIMD void slot_scores_block(const SlotTile& tile, const TileRows& rows, int head, int first) {
  const std::int64_t dim = tile.kv.key_dim;
  const float* q = tile.q + head * dim;
  Simd::Vec sums[kHeads * kRows];
  HOTSET_UNROLL
  for (int i = 0; i < kHeads * kRows; ++i) sums[i] = Simd::set1(0.0F);
  for_lanes(dim, [&](std::int64_t at, int count) {
    Simd::Vec key[kRows];
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) key[r] = load_kv<kBf16>(rows.key[first + r], at, count);
    HOTSET_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const Simd::Vec query = load_lanes(q + h * dim + at, count);
      HOTSET_UNROLL
      for (int r = 0; r < kRows; ++r) sums[h * kRows + r] = Simd::fma(query, key[r], sums[h * kRows + r]);
    }
  });
  float totals[kHeads * kRows];
  if constexpr (kHeads * kRows == kLanes) {
    Simd::store(totals, Simd::sums(sums));
  } else {
    HOTSET_UNROLL
    for (int i = 0; i < kHeads * kRows; ++i) totals[i] = Simd::sum(sums[i]);
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int r = 0; r < kRows; ++r) {
      tile.scores[(head + h) * kTileRows + rows.rank[first + r]] = totals[h * kRows + r] * tile.scale;
    }
  }
}

template <bool kBf16, int kHeads>
void slot_scores(const SlotTile& tile, const TileRows& rows, int head, int begin, int end) {
  constexpr int kRows = Simd::kScoreRows;
  int row = begin;
  for (; row + kRows <= end; row += kRows) slot_scores_block<kBf16, kHeads, kRows>(tile, rows, head, row);
  if constexpr (kRows > 1) {
    for (; row < end; ++row) slot_scores_block<kBf16, kHeads, 1>(tile, rows, head, row);
  }
}

// kVectors vectors of channels from `channel` on; `count` < 16 only when kVectors is 1.
template <bool kBf16, int kHeads, int kVectors>
HOTSET_SIMD void slot_values(const SlotTile& tile, const TileRows& rows, int head, std::int64_t channel, int count,
                             float* partial) {
  const std::int64_t stride = tile.kv.value_dim + kPartialExtra;
  Simd::Vec sums[kHeads][kVectors];
  HOTSET_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[h][v] = Simd::set1(0.0F);
  }
  for (int i = 0; i < rows.count; ++i) {
    Simd::Vec value[kVectors];
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) value[v] = load_kv<kBf16>(rows.value[i], channel + v * kLanes, count);
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

// body(first head, HeadCount) for all heads, four at a time.
template <int kHeads>
struct HeadCount {
  static constexpr int value = kHeads;
};
template <class Body>
HOTSET_SIMD void for_heads(int group, const Body& body) {
  int head = 0;
  for (; head + 4 <= group; head += 4) body(head, HeadCount<4>{});
  switch (group - head) {
    case 3: return body(head, HeadCount<3>{});
    case 2: return body(head, HeadCount<2>{});
    case 1: return body(head, HeadCount<1>{});
    default: return;
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

// Few rows, or few channels of all rows, stay in the first-level cache while the heads stream over them.
template <bool kBf16>
void slot_tile_typed(const SlotTile& tile, const TileRows& rows, float* partial) {
  constexpr int kRowBlock = 8;
  for (int i = 0; i < tile.group * kTileRows; ++i) tile.scores[i] = kMinusInfinity;
  for (int row = 0; row < rows.count; row += kRowBlock) {
    const int end = row + kRowBlock < rows.count ? row + kRowBlock : rows.count;
    for_heads(tile.group, [&](int head, auto heads) { slot_scores<kBf16, heads.value>(tile, rows, head, row, end); });
  }
  const std::int64_t dim = tile.kv.value_dim;
  for (std::int64_t h = 0; h < tile.group; ++h) {
    float* tail = partial + h * (dim + kPartialExtra) + dim;
    tail[0] = tile_max(tile.scores + h * kTileRows);
    tail[1] = tile_weights(tile.scores + h * kTileRows, tail[0]);
  }
  constexpr int kColumns = Simd::kAttentionCols;
  std::int64_t channel = 0;
  for (; channel + kColumns * kLanes <= dim; channel += kColumns * kLanes) {
    for_heads(tile.group, [&](int head, auto heads) {
      slot_values<kBf16, heads.value, kColumns>(tile, rows, head, channel, kLanes, partial);
    });
  }
  for (; channel < dim; channel += kLanes) {
    const std::int64_t left = dim - channel;
    const int count = left < kLanes ? static_cast<int>(left) : kLanes;
    for_heads(tile.group, [&](int head, auto heads) {
      slot_values<kBf16, heads.value, 1>(tile, rows, head, channel, count, partial);
    });
  }
}

void slot_tile(const SlotTile& tile, float* partial) {
  constexpr std::int32_t kWidenBf16From = 16;  // heads from which decoding once costs less than decoding per 4 heads
  const bool bf16 = tile.kv.format == RowFormat::kBF16;
  const bool widen = tile.kv.format == RowFormat::kFp8 || (bf16 && tile.group >= kWidenBf16From);
  const TileRows rows = present_rows(tile, widen);
  if (bf16 && !widen) {
    slot_tile_typed<true>(tile, rows, partial);
  } else {
    slot_tile_typed<false>(tile, rows, partial);
  }
}

void merge_partial(std::int32_t group, std::int32_t value_dim, const float* partial, float* total) {
  for (std::int32_t h = 0; h < group; ++h) {
    const float max = partial[value_dim] > total[value_dim] ? partial[value_dim] : total[value_dim];
    const float shift = finite_or_zero(max);
    const float keep = exp_scalar(total[value_dim] - shift);
    const float take = exp_scalar(partial[value_dim] - shift);
    for_lanes(value_dim, [&](std::int64_t at, int count) {
      const Simd::Vec taken = Simd::mul(load_lanes(partial + at, count), Simd::set1(take));
      store_lanes(total + at, Simd::fma(load_lanes(total + at, count), Simd::set1(keep), taken), count);
    });
    total[value_dim + 1] = __builtin_fmaf(total[value_dim + 1], keep, partial[value_dim + 1] * take);
    total[value_dim] = max;
    partial += value_dim + kPartialExtra;
    total += value_dim + kPartialExtra;
  }
}

// out = acc / sum, zeros when nothing was seen.
HOTSET_SIMD void divide_row(const float* acc, float sum, std::int64_t value_dim, float* out) {
  const Simd::Vec factor = Simd::set1(sum == 0.0F ? 0.0F : 1.0F / sum);
  for_lanes(value_dim, [&](std::int64_t at, int count) {
    store_lanes(out + at, Simd::mul(load_lanes(acc + at, count), factor), count);
  });
}

void finish_partial(std::int32_t group, std::int32_t value_dim, const float* total, float* out) {
  for (std::int64_t h = 0; h < group; ++h) {
    const float* head = total + h * (value_dim + kPartialExtra);
    divide_row(head, head[value_dim + 1], value_dim, out + h * value_dim);
  }
}
