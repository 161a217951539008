// A layer's new rows in one launch: norm, rotary embedding, the write into the slots that the page tables name, and the
// rows' metadata. Of decode steps and of prompts. Formulas and bits are those of launch_rms_norm and launch_layer_norm
// (up to 512 channels), launch_rope, encode_row and launch_store_metadata, one after the other, in float32; nothing is
// rounded between.
//
// All pointers are the device's; channels are multiples of 16; strides are in elements. Pointers and strides of rows
// are multiples of 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_geometry.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/selection/store_metadata.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// Where row r goes: position positions[r] of the sequence of tables[r * table_stride]. Resident: its page; hot: its
// ring.
struct NewRowTargets {
  const HotRow* tables = nullptr;           // resident ones: hot_blocks 0
  std::int64_t table_stride = 1;            // 0: all rows are of one sequence
  const std::int64_t* positions = nullptr;  // [rows]; negative: padding; its table is read, nothing else
  std::byte* pool = nullptr;                // 16-byte aligned; page p lies at pool + p * geometry.page_bytes()
};

// Channels [0, rotary_dim) of a head, or of a latent row's rope part; as in RopeDeviceParams.
struct NewRowRotation {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  std::int32_t rotary_dim = 0;
  float attention_factor = 1.0F;
};

// A row may have a position and no metadata position: then it keeps none.
struct NewRowMetadata {
  MetadataGeometry geometry;  // kNone: nothing is kept; else kv_heads and dim are those of the keys
  MetadataTarget target;
  const float* basis = nullptr;  // kLowRankKeys, as in StoreMetadataDeviceParams
};

// One product [rows, (heads + 2 kv_heads) * d] is q = product, k = q + heads * d, v = k + kv_heads * d, all of its
// stride.
struct GroupedRowsParams {
  KvGeometry geometry;  // kGrouped
  NewRowTargets targets;
  NewRowRotation rotation;
  const float* q = nullptr;  // [rows, heads * key_dim]
  std::int64_t q_stride = 0;
  const float* k = nullptr;  // [rows, kv_heads * key_dim]
  std::int64_t k_stride = 0;
  const float* v = nullptr;  // [rows, kv_heads * value_dim]
  std::int64_t v_stride = 0;
  const float* q_norm = nullptr;  // [key_dim] of the RMSNorm of each head before the rotation; null: none
  const float* k_norm = nullptr;  // [key_dim]
  float epsilon = 1e-6F;
  float* q_out = nullptr;  // [rows, heads * key_dim], rotated; may be q where the stride is the same
  std::int64_t q_out_stride = 0;
  // [rows, kv_heads * key_dim], rotated; may be k where the stride is the same. Null: not written, but kBlockBounds of
  // rows of one sequence are made of it, in a launch of their own.
  float* k_out = nullptr;
  std::int64_t k_out_stride = 0;
  NewRowMetadata metadata;  // kIndexKeys: not of these rows
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  // The stream's previous launch is the product: this one may start while that one runs. Positions, tables and weights
  // are read before it has ended: an ordinary launch or copy, which waits for all before it, lies between what wrote
  // them and the product, or is it.
  bool follows_product = false;
};

void launch_grouped_rows(const GroupedRowsParams& params, Stream stream);

// Keys of an indexer (kIndexKeys): LayerNorm, then the rotation of channels [0, rotary_dim). Types as of the rows.
struct NewIndexKeys {
  const float* in = nullptr;  // [rows, geometry.dim]
  std::int64_t in_stride = 0;
  const float* norm = nullptr;  // [dim]
  const float* bias = nullptr;  // [dim]
  float epsilon = 1e-6F;
  NewRowRotation rotation;
};

// Row = RMSNorm of the first value_dim channels, rotation of the rope part behind them.
struct LatentRowsParams {
  KvGeometry geometry;  // kLatent
  NewRowTargets targets;
  NewRowRotation rotation;    // of the key_dim - value_dim channels of the rope part
  const float* in = nullptr;  // [rows, key_dim]
  std::int64_t in_stride = 0;
  const float* norm = nullptr;  // [value_dim]
  float epsilon = 1e-6F;
  // [rows, key_dim]: the row; may be `in` where the stride is the same. Null: not written, but metadata other than
  // kIndexKeys is made of it, in a launch of its own.
  float* out = nullptr;
  std::int64_t out_stride = 0;
  NewRowMetadata metadata;
  NewIndexKeys index_keys;  // kIndexKeys
  std::int64_t rows = 0;
  bool follows_product = false;  // as above; the previous launch is that of `in` or of the index keys, or behind them
};

void launch_latent_rows(const LatentRowsParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
