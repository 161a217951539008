// The inner loops, one table per instruction set. Every table gives the same bits: each output is made by the same
// float operations in the same order (16 lanes, explicit fused multiply-adds, fixed trees), whatever the registers.
//
// Plain data only: the files behind these pointers are compiled for AVX2 and AVX-512, and an inline function that they
// shared with the rest could be linked into code that runs on any processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/selection_isa.h"

namespace hotset::kernels {

inline constexpr int kLanes = 16;           // output channels of a panel; lanes of a vector
inline constexpr int kTileRows = 64;        // positions (prefill) or list entries (decode) of an attention tile
inline constexpr int kScaleChannels = 128;  // of an FP8 row share a scale
inline constexpr int kPartialExtra = 2;  // a partial attention result: value_dim sums, then the maximum and the total

enum class PanelKind { kF32, kF16, kBF16, kCode4Scale16, kCode4Scale32, kCode8Scale16, kCode8Scale32, kCode8Group16 };

// Weights in panels of 16 output channels (packed_matrix.h).
struct PanelView {
  PanelKind kind;
  const std::uint8_t* data;
  std::int64_t panel_bytes;
  std::int64_t rows;  // N
  std::int64_t cols;  // K
};

// Rows of activations as 16-bit integers, per group of the weight's group size: x = scale * integer. The byte order of
// a group (2 bytes an element) is the instruction set's own.
struct QuantizedRows {
  std::uint8_t* integers;  // [rows][2 * K]
  float* scales;           // [rows][K / group]; NaN where the group holds a value that is not finite
  float* sums;             // [rows][K / group] scale * sum of the group's integers
};

struct MatmulTask {
  PanelView weight;
  const float* x;  // [m][K], float weights; row stride in floats below
  std::int64_t x_stride;
  QuantizedRows quantized;  // quantised weights
  std::int64_t row_begin, row_end;
  std::int64_t panel_begin, panel_end;
  const float* bias;  // [N] or null
  float* y;
  std::int64_t y_stride;
  bool accumulate;
};

// K and V of one KV head inside a row; offsets in bytes.
struct KvHeadView {
  RowFormat format;
  bool latent;  // the value is the key's first value_dim channels, v_offset = k_offset
  std::int32_t key_dim, value_dim;
  std::int64_t k_offset, v_offset;
  // kFp8 only. In latent rows the key's channels from value_dim on lie in bf16 at rope_offset.
  std::int64_t k_scales_offset, v_scales_offset;
  std::int64_t rope_offset;
};

// A row in float32: its key, then its value; in latent rows the key alone.
constexpr std::int64_t widened_floats(const KvHeadView& kv) {
  return std::int64_t{kv.key_dim} + (kv.latent ? 0 : kv.value_dim);
}

// One tile of a slot list for the query heads that share a KV head.
struct SlotTile {
  KvHeadView kv;
  const float* q;  // [group][key_dim]
  std::int32_t group;
  float scale;
  const std::byte* pool;
  std::int64_t row_bytes;
  const std::int64_t* slots;  // [count], -1 = hole
  std::int32_t count;         // <= kTileRows
  float* scores;              // scratch [group][kTileRows], aligned to 64 bytes
  float* widened;             // scratch [kTileRows][widened_floats], for rows that are decoded first
};

// A block of queries against all tiles of a call, for the query heads that share a KV head.
struct PrefillTask {
  KvHeadView kv;
  const float* q;  // of the first shared head: q + query * q_stride + head * key_dim
  std::int64_t q_stride;
  std::int64_t query_begin, query_end;
  std::int64_t first_position;
  std::int32_t group;
  std::int32_t first_head, heads;
  const std::byte* const* tiles;
  std::int64_t row_bytes;
  std::int64_t first_tile, tile_count;
  float* acc;  // [rows][heads][value_dim]
  float* max;  // [rows][heads]
  float* sum;  // [rows][heads]
  bool begin, finish;
  float* out;  // [rows][heads * value_dim]
  float scale;
  float* scratch;  // prefill_scratch_floats(kv), aligned to 64 bytes
};

inline constexpr int kPrefillMaxRowBlock = 8;
// K transposed, V in float32 with padded rows, scores of a row block, one widened row.
constexpr std::int64_t prefill_scratch_floats(const KvHeadView& kv) {
  const std::int64_t padded_dim = (kv.value_dim + kLanes - 1) / kLanes * kLanes;
  return kTileRows * (kv.key_dim + padded_dim + kPrefillMaxRowBlock) + widened_floats(kv);
}

struct IsaKernels {
  const char* name;

  // group: 16 or 32; cols is a multiple of it. Reads x[cols], writes row 0 of `out`.
  void (*quantize_row)(const float* x, std::int64_t cols, int group, const QuantizedRows& out);
  void (*matmul)(const MatmulTask& task);

  void (*rms_norm_row)(const float* in, const float* weight, float* out, std::int64_t width, float epsilon);
  void (*layer_norm_row)(const float* in, const float* weight, const float* bias, float* out, std::int64_t width,
                         float epsilon);
  // Rotates `heads` heads of one row; cos and sin have `half` entries.
  void (*rope_row)(float* x, const float* cos, const float* sin, std::int32_t half, std::int32_t heads,
                   std::int32_t head_dim);
  void (*silu_gate)(const float* gate, const float* up, float* out, std::int64_t count);

  // out [key_dim] = the row's key in float32.
  void (*load_key)(const KvHeadView& kv, const std::byte* row, float* out);
  // partial [group][value_dim + kPartialExtra]: the tile's own softmax.
  void (*slot_tile)(const SlotTile& tile, float* partial);
  // total and partial: [group][value_dim + kPartialExtra]; total starts as {0..., -infinity, 0}.
  void (*merge_partial)(std::int32_t group, std::int32_t value_dim, const float* partial, float* total);
  // out [group][value_dim] = sums / total, zeros for an empty list.
  void (*finish_partial)(std::int32_t group, std::int32_t value_dim, const float* total, float* out);
  void (*prefill)(const PrefillTask& task);

  SelectionKernels selection;
};

extern const IsaKernels kScalarKernels;
#if defined(HOTSET_X86_KERNELS)
extern const IsaKernels kAvx2Kernels;
extern const IsaKernels kAvx512Kernels;
extern const IsaKernels kAvx512VnniKernels;
#endif

}  // namespace hotset::kernels
