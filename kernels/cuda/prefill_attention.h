// Dense causal attention of a prompt's chunk: PrefillAttentionParams of kernels/backend.h on the device. All pointers
// are device pointers; the launcher only enqueues (no allocation, no host copy). Any thread; calls that share a
// workspace must run one after the other.
//
// Order of sums: keys are taken in ascending position, in tiles of 128 (kWarpgroup) or 64 (kPlain) fixed by position.
// It depends on a query's and the keys' positions only, never on the chunk, the grid, the other queries or how tiles
// are divided among calls; so pieces must be cut at multiples of kPrefillPieceTiles. (kWarpgroup: in a tile that holds
// values that are not finite, also on those.) What a query does not see never reaches it, whatever it is.
//
// Forms (prefill_attention_form), chosen by geometry and device alone:
// - kWarpgroup: Hopper; grouped rows of up to 192 key and 128 value channels in bf16, of up to 128 in FP8. Queries
//   (also float32 ones) and softmax weights are rounded to bf16, FP8 codes are widened exactly and their scales
//   multiply scores and weights in float32; sums are float32. Beside what the queries' rounding does to the scores, a
//   number is within 2^-8 of the weighted sum of the values' magnitudes, and in bf16 within 2^-8 of itself more.
// - kPlain: everything else, and what `plain` asks for. float32 arithmetic (relative error about 1e-6), slow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

enum class PrefillForm { kPlain, kWarpgroup };

// Calls of one chunk begin at multiples of so many tiles of 64 positions: 128 keys.
inline constexpr std::int64_t kPrefillPieceTiles = 2;

// Keys and values of MLA in expanded form, as projections leave them: nothing has to be put together. Key of (token,
// head) = key_dim - shared_dim channels of its own, then shared_dim channels that all heads share (the rope part).
// Numbers are of geometry.dtype (kF32 or kBF16); row 0 is position 64 * first_tile. Buffers hold whole tiles of 64
// rows; what lies behind the newest position may be anything. Strides in elements; 16-byte alignment of all.
// Example: one buffer [tokens][heads][128 own key channels, 128 value channels] and rope keys [tokens][64].
struct ExpandedKeysValues {
  const void* keys = nullptr;
  std::int64_t key_row_stride = 0;
  std::int64_t key_head_stride = 0;
  const void* shared_keys = nullptr;  // null: none
  std::int64_t shared_row_stride = 0;
  std::int32_t shared_dim = 0;  // key_dim - shared_dim not a multiple of 64: plain form
  const void* values = nullptr;
  std::int64_t value_row_stride = 0;
  std::int64_t value_head_stride = 0;
};

struct PrefillAttentionDeviceParams {
  KvGeometry geometry;
  ActivationType activation = ActivationType::kF32;  // of q and out
  const void* q = nullptr;  // [rows, heads * key_dim], 16-byte aligned; row stride in elements, a multiple of 8
  std::int64_t q_stride = 0;
  std::int64_t rows = 0;  // consecutive queries; query i is at first_position + i and sees positions up to its own
  std::int64_t first_position = 0;

  // Rows of the pool, or of a staged buffer: tile first_tile + t is page pages[t], at pool + pages[t] * 64 * row_bytes;
  // null pages: page t. Rows behind the newest position may be anything. 16-byte aligned.
  const std::byte* pool = nullptr;
  const std::int32_t* pages = nullptr;           // [tile_count]
  const ExpandedKeysValues* expanded = nullptr;  // host pointer, read by the launcher; instead of pool and pages
  std::int64_t first_tile = 0;                   // a multiple of kPrefillPieceTiles
  std::int64_t tile_count =
      0;  // the same, unless the tiles reach the newest position; more tiles than that are ignored

  bool begin = false;   // starts with an empty state; else with what the workspace holds
  bool finish = false;  // out is written; else the state is left in the workspace
  void* out = nullptr;  // [rows, heads * value_dim]; row stride in elements, a multiple of 8 for bf16
  std::int64_t out_stride = 0;
  std::int32_t heads = 0;
  float scale = 1.0F;         // > 0; multiplies q.k
  void* workspace = nullptr;  // prefill_attention_workspace_bytes, 16-byte aligned; the same for all calls of a chunk
  bool plain = false;         // the plain form, whatever the shape; the same in all calls of a chunk
};

// What the launcher takes for this geometry on a device of this compute capability (major number).
[[nodiscard]] PrefillForm prefill_attention_form(const KvGeometry& geometry, int capability_major);

// The state of up to `rows` queries between calls and, for FP8 rows, the keys and values of 8,192 positions in bf16.
// One call with begin and finish on rows that are not FP8 needs none (null is fine).
[[nodiscard]] std::int64_t prefill_attention_workspace_bytes(const KvGeometry& geometry, std::int32_t heads,
                                                             std::int64_t rows);

// HS_CHECK: heads divide into KV heads, channels are multiples of 16, alignments, strides and tiles as above.
void launch_prefill_attention(const PrefillAttentionDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
