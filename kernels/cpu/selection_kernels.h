// Scores of selection. Included by the isa_*.cpp files inside their unnamed namespace, after prefill_kernels.h.
// selection_isa.h says what each function gives.

static_assert(kSelectionTile == kTileRows);
constexpr float kLargest = 3.402823466e+38F;

// 16 channels of a key from `channel` on, `count` of them wanted.
HOTSET_SIMD Simd::Vec index_key_lanes(const IndexKeysTile& tile, std::int64_t token, std::int64_t channel, int count) {
  const auto* page = reinterpret_cast<const std::uint8_t*>(tile.page);
  const std::int64_t at = token * tile.dim + channel;
  if (tile.type == RowFormat::kF32) return load_lanes(reinterpret_cast<const float*>(tile.page) + at, count);
  if (tile.type == RowFormat::kBF16) return Simd::load_bf16_partial(page + 2 * at, count);
  const std::byte* const scales = tile.page + std::int64_t{kTileRows} * tile.dim;
  const std::int64_t groups = (tile.dim + kScaleChannels - 1) / kScaleChannels;
  return load_fp8(tile.page + token * tile.dim, scales + 4 * token * groups, channel, count);
}

void load_index_keys(const IndexKeysTile& tile) {
  // 16 channels at a time: their 16 rows of 64 positions stay in the nearest cache while they are filled.
  for_lanes(tile.dim, [&](std::int64_t channel, int count) {
    float* const keys = tile.keys + channel * kTileRows;
    float lanes[kLanes];
    for (int token = 0; token < tile.count; ++token) {
      Simd::store(lanes, index_key_lanes(tile, token, channel, count));
      for (int i = 0; i < count; ++i) keys[i * kTileRows + token] = lanes[i];
    }
    for (int token = tile.count; token < kTileRows; ++token) {
      for (int i = 0; i < count; ++i) keys[i * kTileRows + token] = 0.0F;
    }
  });
}

// kRows heads from `head` on, kCols vectors of positions from `column` on.
template <int kRows, int kCols>
HOTSET_SIMD void index_heads(const IndexScoresTile& tile, std::int32_t head, std::int64_t column,
                             Simd::Vec (&scores)[kCols]) {
  const float* q[kRows];
  Simd::Vec sums[kRows][kCols];
  HOTSET_UNROLL
  for (int r = 0; r < kRows; ++r) {
    q[r] = tile.q + std::int64_t{head + r} * tile.dim;
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) sums[r][c] = Simd::set1(0.0F);
  }
  accumulate_block<kRows, kCols>(q, tile.keys + column, kTileRows, tile.dim, sums);
  HOTSET_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Simd::Vec weight = Simd::set1(tile.weights[head + r]);
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) {
      scores[c] = Simd::fma(weight, Simd::max(Simd::set1(0.0F), sums[r][c]), scores[c]);  // NaN stays
    }
  }
}

void index_scores(const IndexScoresTile& tile) {
  constexpr int kRows = Simd::kAttentionRows;
  constexpr int kCols = Simd::kAttentionCols;
  for (std::int64_t column = 0; column < tile.count; column += kCols * kLanes) {
    Simd::Vec scores[kCols];
    HOTSET_UNROLL
    for (int c = 0; c < kCols; ++c) scores[c] = Simd::set1(0.0F);
    std::int32_t head = 0;
    for (; head + kRows <= tile.heads; head += kRows) index_heads<kRows, kCols>(tile, head, column, scores);
    for (; head < tile.heads; ++head) index_heads<1, kCols>(tile, head, column, scores);
    for (int c = 0; c < kCols; ++c) {
      const std::int64_t left = tile.count - column - c * kLanes;
      if (left <= 0) break;
      store_lanes(tile.scores + column + c * kLanes, scores[c], left < kLanes ? static_cast<int>(left) : kLanes);
    }
  }
}

// kVectors vectors of directions; `count` < 16 only when kVectors is 1.
template <int kVectors>
HOTSET_SIMD void project_columns(const Projection& projection, std::int64_t column, int count) {
  Simd::Vec sums[kVectors];
  HOTSET_UNROLL
  for (int v = 0; v < kVectors; ++v) sums[v] = Simd::set1(0.0F);
  const float* basis = projection.basis + column;
  for (std::int32_t c = 0; c < projection.dim; ++c, basis += projection.rank) {
    const Simd::Vec x = Simd::set1(projection.x[c]);
    HOTSET_UNROLL
    for (int v = 0; v < kVectors; ++v) sums[v] = Simd::fma(x, load_lanes(basis + v * kLanes, count), sums[v]);
  }
  HOTSET_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    store_lanes(projection.out + column + v * kLanes, Simd::mul(sums[v], Simd::set1(projection.factor)), count);
  }
}

void project(const Projection& projection) {
  std::int64_t column = 0;
  for (; column + 4 * kLanes <= projection.rank; column += 4 * kLanes) project_columns<4>(projection, column, kLanes);
  for (; column < projection.rank; column += kLanes) {
    const std::int64_t left = projection.rank - column;
    project_columns<1>(projection, column, left < kLanes ? static_cast<int>(left) : kLanes);
  }
}

// The codes of 8 channels make a word. The words are laid out by position first, then a lane is a position.
void load_low_rank(const LowRankTile& tile) {
  const std::int64_t code_bytes = tile.rank / 2;
  const auto* from = reinterpret_cast<const std::uint8_t*>(tile.part);
  const std::uint8_t* scales = from + kTileRows * code_bytes;
  std::uint16_t halves[kTileRows] = {};
  __builtin_memcpy(halves, scales, 2 * static_cast<std::size_t>(tile.count));
  for (int v = 0; v < kTileVectors; ++v) {
    Simd::store(tile.scales + v * kLanes, Simd::load_f16(reinterpret_cast<const std::uint8_t*>(halves + v * kLanes)));
  }
  for (std::int32_t channel = 0; channel < tile.rank; channel += 8) {
    std::uint32_t words[kTileRows] = {};
    const int channels = tile.rank - channel < 8 ? tile.rank - channel : 8;
    const std::uint8_t* code = from + channel / 2;
    if (channels == 8) {
      for (int token = 0; token < tile.count; ++token) __builtin_memcpy(words + token, code + token * code_bytes, 4);
    } else {
      for (int token = 0; token < tile.count; ++token) {
        __builtin_memcpy(words + token, code + token * code_bytes, static_cast<std::size_t>(channels / 2));
      }
    }
    for (int v = 0; v < kTileVectors; ++v) {
      Simd::IVec word = Simd::int_load(reinterpret_cast<const std::uint8_t*>(words + v * kLanes));
      for (int i = 0; i < channels; ++i) {
        const Simd::IVec value = Simd::int_add(Simd::int_and(word, 15U), static_cast<std::uint32_t>(-8));
        Simd::store(tile.codes + (channel + i) * kTileRows + v * kLanes, Simd::to_float(value));
        word = Simd::int_shift_right4(word);
      }
    }
  }
}

HOTSET_SIMD Simd::Vec tidy_lanes(Simd::Vec logits) {
  return Simd::min(Simd::max(logits, Simd::set1(kMinusInfinity)), Simd::set1(kLargest));  // NaN: the second operand
}

template <int kRows, int kCols>
HOTSET_SIMD void low_rank_heads(const LowRankLogits& tile, std::int32_t head) {
  const float* q[kRows];
  for (int r = 0; r < kRows; ++r) q[r] = tile.q + std::int64_t{head + r} * tile.rank;
  for (int column = 0; column < kTileRows; column += kCols * kLanes) {
    Simd::Vec sums[kRows][kCols];
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int c = 0; c < kCols; ++c) sums[r][c] = Simd::set1(0.0F);
    }
    accumulate_block<kRows, kCols>(q, tile.codes + column, kTileRows, tile.rank, sums);
    HOTSET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      HOTSET_UNROLL
      for (int c = 0; c < kCols; ++c) {
        const int at = column + c * kLanes;
        const Simd::Vec logits = tidy_lanes(Simd::mul(sums[r][c], Simd::load(tile.scales + at)));
        Simd::store(tile.logits + (head + r) * kTileRows + at,
                    Simd::fill_from(logits, tile.count - at, kMinusInfinity));
      }
    }
  }
}

void low_rank_logits(const LowRankLogits& tile) {
  constexpr int kRows = Simd::kAttentionRows;
  constexpr int kCols = Simd::kAttentionCols;
  std::int32_t head = 0;
  for (; head + kRows <= tile.heads; head += kRows) low_rank_heads<kRows, kCols>(tile, head);
  for (; head < tile.heads; ++head) low_rank_heads<1, kCols>(tile, head);
  for (head = 0; head < tile.heads; ++head) tile.max[head] = tile_max(tile.logits + head * kTileRows);
}

HOTSET_SIMD Simd::Vec bound_lanes(const BlockLogits& block, std::int64_t at, int count) {
  if (!block.bf16) return load_lanes(reinterpret_cast<const float*>(block.bounds) + at, count);
  return Simd::load_bf16_partial(reinterpret_cast<const std::uint8_t*>(block.bounds) + 2 * at, count);
}

void block_logits(const BlockLogits& block) {
  for (std::int32_t head = 0; head < block.heads; ++head) {
    const float* q = block.q + std::int64_t{head} * block.dim;
    Simd::Vec sum = Simd::set1(0.0F);
    for_lanes(block.dim, [&](std::int64_t at, int count) {
      const Simd::Vec x = load_lanes(q + at, count);
      const Simd::Vec low = Simd::mul(x, bound_lanes(block, at, count));
      const Simd::Vec high = Simd::mul(x, bound_lanes(block, block.dim + at, count));
      sum = Simd::add(sum, Simd::max(low, high));
    });
    block.logits[head * kTileRows] = Simd::sum(sum) * block.scale;
  }
}

void tidy_logits(float* logits, std::int32_t heads, float* max) {
  for (std::int32_t head = 0; head < heads; ++head, logits += kTileRows) {
    for (int v = 0; v < kTileVectors; ++v) {
      Simd::store(logits + v * kLanes, tidy_lanes(Simd::load(logits + v * kLanes)));
    }
    max[head] = tile_max(logits);
  }
}

void softmax_tile(float* logits, std::int32_t heads, const float* max, float* sums) {
  for (std::int32_t head = 0; head < heads; ++head) sums[head] = tile_weights(logits + head * kTileRows, max[head]);
}

void weighted_heads(const float* values, std::int32_t heads, const float* factors, float* out) {
  Simd::Vec sums[kTileVectors];
  HOTSET_UNROLL
  for (int v = 0; v < kTileVectors; ++v) sums[v] = Simd::set1(0.0F);
  for (std::int32_t head = 0; head < heads; ++head, values += kTileRows) {
    const Simd::Vec factor = Simd::set1(factors[head]);
    HOTSET_UNROLL
    for (int v = 0; v < kTileVectors; ++v) sums[v] = Simd::fma(factor, Simd::load(values + v * kLanes), sums[v]);
  }
  HOTSET_UNROLL
  for (int v = 0; v < kTileVectors; ++v) Simd::store(out + v * kLanes, sums[v]);
}

void best_head(const float* values, std::int32_t heads, float* out) {
  for (int v = 0; v < kTileVectors; ++v) {
    Simd::Vec best = Simd::set1(kMinusInfinity);
    for (std::int32_t head = 0; head < heads; ++head) {
      best = Simd::max(Simd::load(values + head * kTileRows + v * kLanes), best);  // NaN: the second operand
    }
    Simd::store(out + v * kLanes, best);
  }
}

constexpr SelectionKernels kSelection = {load_index_keys, index_scores, project,      load_low_rank,  low_rank_logits,
                                         block_logits,    tidy_logits,  softmax_tile, weighted_heads, best_head};
