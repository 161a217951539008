// The inner loops of selection, as part of IsaKernels (isa_kernels.h: plain data only, same bits in every table).
// A tile is 64 candidates: the tokens of a page, or 64 blocks. A lane is a candidate, and heads are joined in ascending
// order, so a candidate's score depends on nothing but its own metadata and the query.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hotset::kernels {

inline constexpr int kSelectionTile = 64;

// How numbers lie in rows and index keys: core/kv_format.h.
enum class RowFormat { kF32, kBF16, kFp8 };

struct IndexKeysTile {
  const std::byte* page;
  RowFormat type;
  std::int32_t dim;
  int count;    // tokens of the page that are there; the others become zeros
  float* keys;  // out [dim][64]
};

// scores[t] = sum over heads of weights[h] * max(0, q[h] . keys[t]) for t < count; the dot's channels ascend.
struct IndexScoresTile {
  const float* keys;     // [dim][64]
  const float* q;        // [heads][dim]
  const float* weights;  // [heads]
  std::int32_t heads;
  std::int32_t dim;
  int count;
  float* scores;
};

// out[j] = factor * sum over channels (ascending) of x[c] * basis[c][j].
struct Projection {
  const float* x;      // [dim]
  const float* basis;  // [dim][rank]
  std::int32_t dim;
  std::int32_t rank;
  float factor;
  float* out;  // [rank]
};

struct LowRankTile {
  const std::byte* part;  // of one KV head in the page
  std::int32_t rank;
  int count;
  float* codes;   // out [rank][64]
  float* scales;  // out [64], zeros from count on
};

// logits[h][t] = scales[t] * (q[h] . codes[t]); minus infinity from count on and instead of NaN, the largest number
// instead of infinity. max[h]: of the tile.
struct LowRankLogits {
  const float* codes;   // [rank][64]
  const float* scales;  // [64]
  const float* q;       // [heads][rank]
  std::int32_t heads;
  std::int32_t rank;
  int count;
  float* logits;  // [heads][64]
  float* max;     // [heads]
};

// logits[64 * h] = scale * sum over channels (16 lanes, fixed tree) of max(q minimum, q maximum), of one block.
struct BlockLogits {
  const std::byte* bounds;  // [minimum, maximum][dim]
  bool bf16;
  const float* q;  // [heads][dim]
  std::int32_t heads;
  std::int32_t dim;
  float scale;
  float* logits;
};

struct SelectionKernels {
  void (*load_index_keys)(const IndexKeysTile& tile);
  void (*index_scores)(const IndexScoresTile& tile);
  void (*project)(const Projection& projection);
  void (*load_low_rank)(const LowRankTile& tile);
  void (*low_rank_logits)(const LowRankLogits& tile);
  void (*block_logits)(const BlockLogits& block);

  // logits [heads][64]; NaN becomes minus infinity, infinity the largest number. max [heads]: of the tile.
  void (*tidy_logits)(float* logits, std::int32_t heads, float* max);
  // logits [heads][64] become exp(logit - max[h]); sums[h]: of the tile, by a fixed tree.
  void (*softmax_tile)(float* logits, std::int32_t heads, const float* max, float* sums);
  // out[t] = sum over heads of factors[h] * values[h][t].
  void (*weighted_heads)(const float* values, std::int32_t heads, const float* factors, float* out);
  // out[t] = the largest of values[h][t]; NaN is left out.
  void (*best_head)(const float* values, std::int32_t heads, float* out);
};

}  // namespace hotset::kernels
