// A backend whose memory the host sees: beside the dense part (dense_backend.h, whose rules hold here too) the
// launchers of the tiered cache, with rows, pages and lists named by addresses. They are also the specification of what
// kernels/cuda computes from tables on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/dense_backend.h"

namespace hotset::kernels {

// Encodes K and V of new tokens as rows (core/kv_geometry.h, core/kv_format.h).
struct StoreRowsParams {
  KvGeometry geometry;
  const float* k = nullptr;  // [rows, kv_heads * key_dim]; row stride in floats below
  std::int64_t k_stride = 0;
  const float* v = nullptr;  // [rows, kv_heads * value_dim]; latent rows: null
  std::int64_t v_stride = 0;
  std::byte* const* rows_out = nullptr;  // [rows] where each row goes (geometry.row_bytes() each)
  std::int64_t rows = 0;
};

// Decodes the keys of consecutive rows (latent rows: latent and rope part) to float32.
struct LoadKeysParams {
  KvGeometry geometry;
  const std::byte* source = nullptr;  // [rows][row_bytes]
  std::int64_t rows = 0;
  float* out = nullptr;  // [rows, kv_heads * key_dim]
};

// Page I/O: copies `count` pieces of `bytes` each, e.g. missing rows from the host pool into their slots.
struct CopyParams {
  const std::byte* const* sources = nullptr;  // [count]
  std::byte* const* targets = nullptr;        // [count]
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

// Decode attention of `rows` queries, each over its own list of physical slots. The same call serves dense (all slots
// in ascending position) and sparse (the selection, ascending); resident and hot differ only in the numbers in the
// list. Softmax and sums run in tiles of 64 list entries (by rank), combined in order; a -1 leaves a hole of weight 0.
// A list without a valid entry gives zeros.
struct SlotAttentionParams {
  KvGeometry geometry;
  const float* q = nullptr;  // [rows, heads * key_dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const std::byte* pool =
      nullptr;  // base of the device pool (or of staged rows); row of slot s lies at pool + s * row_bytes
  const std::int64_t* slots = nullptr;         // concatenated lists
  const std::int64_t* slot_offsets = nullptr;  // [rows + 1]
  float* out = nullptr;                        // [rows, heads * value_dim]; row stride in floats below
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  float scale = 1.0F;  // multiplies q.k
};

// Running softmax of one (query, head), carried from tile to tile.
// acc [rows, heads, value_dim], max and sum [rows, heads].
struct AttentionState {
  float* acc = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
};

// Dense causal prefill attention of consecutive queries over tiles of 64 rows fixed by position: tile t holds positions
// 64 t ... 64 t + 63. Query i (position first_position + i) sees positions up to its own. Tiles are taken in ascending
// order and the state is carried, so one call with all tiles and several with some of them give the same bits: that is
// how rows brought from the host piece by piece equal resident ones.
// `begin`: the call starts with an empty state. `finish`: out is written.
struct PrefillAttentionParams {
  KvGeometry geometry;
  const float* q = nullptr;  // [rows, heads * key_dim]; row stride in floats below
  std::int64_t q_stride = 0;
  std::int64_t rows = 0;
  std::int64_t first_position = 0;
  const std::byte* const* tiles = nullptr;  // [tile_count], each 64 rows (rows past the newest position are never read)
  std::int64_t first_tile = 0;
  std::int64_t tile_count = 0;
  AttentionState state;
  bool begin = false;
  bool finish = false;
  float* out = nullptr;  // [rows, heads * value_dim]
  std::int32_t heads = 0;
  float scale = 1.0F;
};

// Writes what selection keeps of new tokens into their metadata pages, from keys in float32, before any rounding of the
// rows. The rows of one page stand next to each other, in ascending position. What lies behind a page's newest token is
// never read.
// - kIndexKeys, kLowRankKeys: the token's own entry. Low rank: x = key U[g], scale = float16(max|x| / 7), code =
//   round-half-even(x / scale) within -7 ... 7; scale 0 gives codes 0.
// - kBlockBounds: the first token of a block starts its bounds, the others widen them.
struct StoreMetadataParams {
  MetadataGeometry geometry;
  const float* keys = nullptr;  // [rows, kv_heads * dim]; row stride in floats below
  std::int64_t stride = 0;
  const float* basis = nullptr;           // kLowRankKeys: [kv_heads, dim, rank]
  std::byte* const* pages = nullptr;      // [rows] the page of each row
  const std::int32_t* offsets = nullptr;  // [rows] its position in the page, 0 ... 63
  std::int64_t rows = 0;
};

// Queries that select, with the metadata of what they may select from. Query r belongs to row query_rows[r] of q and
// sees lengths[r] tokens, whose metadata pages are pages[page_offsets[r] + p].
struct ScoredRows {
  MetadataGeometry geometry;
  const std::int64_t* query_rows = nullptr;    // [rows]
  const std::int64_t* lengths = nullptr;       // [rows], >= 1
  const std::byte* const* pages = nullptr;     // page tables, one after the other
  const std::int64_t* page_offsets = nullptr;  // [rows]
  std::int64_t rows = 0;
  float* scores = nullptr;  // [rows, stride]; entries that a launcher does not mention are left alone
  std::int64_t stride = 0;
};

// Lightning indexer (DeepSeek-V3.2): scores[r, t] = sum over heads of weights[h] * max(0, q[h] . key[t]) for every t
// below the length. The caller has put every constant factor into the weights.
struct IndexScoresParams {
  ScoredRows rows;
  const float* q = nullptr;  // [*, heads * dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const float* weights = nullptr;  // [*, heads]
  std::int32_t heads = 0;
};

// Low-rank index keys: scores[r, t] = mean over query heads of the softmax over all t below the length of
// scale * (q[h] U[g]) . (key scale * code)[t, g], g the KV head of h. Idea: Singhania et al., Loki (NeurIPS 2024).
struct LowRankScoresParams {
  ScoredRows rows;
  const float* q = nullptr;  // [*, heads * dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const float* basis = nullptr;  // [kv_heads, dim, rank]
  std::int32_t heads = 0;
  float scale = 1.0F;
};

enum class HeadCombine { kMax, kMean, kSoftmax };

// Quest (Tang et al., ICML 2024, section 3.3): a head's score of block b is scale * sum over channels of
// max(q minimum, q maximum). Joined over heads by the largest, the mean, or the mean of each head's softmax over the
// candidate blocks [first[r], last[r]); scores[r, b] is written for the candidates only.
struct BlockScoresParams {
  ScoredRows rows;
  const float* q = nullptr;  // [*, heads * dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const std::int64_t* first = nullptr;  // [rows]
  const std::int64_t* last = nullptr;   // [rows]
  std::int32_t heads = 0;
  HeadCombine combine = HeadCombine::kMax;
  float scale = 1.0F;
};

// Exact top-k per row: a score above the k-th is always in, ties go to the lower position, NaN counts as minus infinity
// (-0 equals +0), the result is unique, in range and ascending. A row with length <= k selects everything and its
// scores are not read. Forced entries [0, first) and [last, length) are in whatever their scores, which are not read,
// and count towards k; where they are more than k, they are the result.
struct TopKParams {
  const float* scores = nullptr;  // [rows, stride]
  std::int64_t stride = 0;
  const std::int64_t* lengths = nullptr;  // [rows], each <= stride
  const std::int64_t* first = nullptr;    // [rows]; null: 0
  const std::int64_t* last = nullptr;     // [rows], >= first; null: the length
  std::int64_t rows = 0;
  const std::int32_t* k = nullptr;  // [rows], >= 0
  std::int32_t* out = nullptr;      // [rows, out_stride]; unused entries are -1
  std::int64_t out_stride = 0;      // >= every row's count
  std::int32_t* counts = nullptr;   // [rows] = min(max(k, forced), length)
};

class Backend : public DenseBackend {
 public:
  virtual void store_rows(const StoreRowsParams& params) = 0;
  virtual void load_keys(const LoadKeysParams& params) = 0;
  virtual void copy(const CopyParams& params) = 0;
  virtual void slot_attention(const SlotAttentionParams& params) = 0;
  virtual void prefill_attention(const PrefillAttentionParams& params) = 0;
  virtual void store_metadata(const StoreMetadataParams& params) = 0;
  virtual void index_scores(const IndexScoresParams& params) = 0;
  virtual void low_rank_scores(const LowRankScoresParams& params) = 0;
  virtual void block_scores(const BlockScoresParams& params) = 0;
  virtual void top_k(const TopKParams& params) = 0;
};

}  // namespace hotset::kernels
