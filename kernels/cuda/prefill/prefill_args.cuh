// The parameters as the kernels of prefill attention take them.
#pragma once

#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/prefill_attention.h"

namespace hotset::kernels::cuda {

// Where keys and values of rows that are not FP8 lie, in bytes.
struct KvSource {
  const std::byte* keys;
  std::int64_t key_row, key_head;
  const std::byte* shared_keys;
  std::int64_t shared_row;
  std::int32_t own_dim;  // key channels before the shared ones
  const std::byte* values;
  std::int64_t value_row, value_head;
};

// What one (query, head) carries from call to call: acc [rows, heads, value_dim], max [rows, heads] and four parts of
// the sum [rows, heads, 4] (the plain form: the first one). Maxima are of q.k, before the scale.
struct PrefillState {
  float* acc;
  float* max;
  float* sum;
};

struct PrefillArgs {
  RowView view;  // of the rows as they are stored
  KvSource source;
  const std::byte* pool;
  const std::int32_t* pages;  // of first_tile on; null: 0, 1, 2 ...
  const float* key_scales;  // widened FP8 rows: [kv_heads, scale_stride], of first_tile's first position on; else null
  const float* value_scales;
  std::int64_t scale_stride;
  const void* q;
  std::int64_t q_stride;
  std::int64_t rows;
  std::int64_t first_position;
  std::int64_t first_tile, end_tile;  // of 64 positions; the last one has a position that some query sees
  PrefillState state;
  void* out;
  std::int64_t out_stride;
  std::int32_t heads;
  std::int32_t group;  // query heads of a KV head
  float scale;
  bool bf16_activations;
  bool begin, finish;
};

__device__ inline std::int64_t tile_page(const PrefillArgs& args, std::int64_t tile) {
  const std::int64_t at = tile - args.first_tile;
  return args.pages == nullptr ? at : args.pages[at];
}

inline constexpr std::int64_t kWidenedTiles = 128;  // of FP8 rows that are in bf16 at a time

void launch_plain_prefill(const PrefillArgs& args, Stream stream);
void launch_warpgroup_prefill(const PrefillArgs& args, Stream stream);

// Tiles [args.first_tile, args.end_tile) of FP8 rows as bf16 grouped rows at `rows`, codes without their scales, and
// the scales [kv_heads, scale_stride].
void launch_widen_rows(const PrefillArgs& args, std::byte* rows, float* key_scales, float* value_scales,
                       std::int64_t scale_stride, Stream stream);

}  // namespace hotset::kernels::cuda
