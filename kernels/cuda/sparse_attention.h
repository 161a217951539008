// Decode attention over lists of slots, and the writing of rows: SlotAttentionParams and StoreRowsParams of
// kernels/backend.h on the device. All pointers are device pointers; a launcher only enqueues (no allocation, no host
// copy), so it can be captured in a graph; lengths are read on the device. Any thread; kernels of one workspace must
// run one after the other.
//
// Order of sums, which the numbers in a list's row alone decide, never batch, grid or slots: tiles of 64 list entries
// by rank; runs of kGroupedRun or kLatentRun entries; tiles of a run are combined in ascending order, then runs, in an
// order that follows from their number.
//
// Forms (sparse_attention_form): the tensor-core forms round q, the weights and (latent FP8) the decoded rows to bf16;
// with f32 queries the grouped form keeps q and the weights in two bf16 halves each. The plain form computes in
// f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/kv_geometry.h"
#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/hot_row.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

enum class SlotType { kInt32, kInt64 };
enum class AttentionForm { kPlain, kGrouped, kLatent };

inline constexpr std::int64_t kGroupedRun = 256;  // list entries by rank
inline constexpr std::int64_t kLatentRun = 512;

struct SparseAttentionParams {
  KvGeometry geometry;
  ActivationType q_type = ActivationType::kF32;
  ActivationType out_type = ActivationType::kF32;
  const void* q = nullptr;  // [rows, heads * key_dim], 16-byte aligned; row stride in elements, a multiple of 8
  std::int64_t q_stride = 0;
  const std::byte* pool = nullptr;  // 16-byte aligned; row of slot s < 2^31 lies at pool + s * row_bytes
  SlotType slot_type = SlotType::kInt64;
  const void* slots = nullptr;           // [rows, slot_stride]; -1 is a hole
  std::int64_t slot_stride = 0;          // in entries
  const std::int32_t* counts = nullptr;  // [rows] entries of each list; <= 0: zeros are written, > max_count: cut
  std::int64_t max_count = 0;            // bound of the counts, known to the host; <= slot_stride
  // Instead of slots and counts, not in the latent form: all lengths[r] positions of resident sequences.
  const HotRow* whole = nullptr;          // [rows]; their device_pages are read
  const std::int32_t* lengths = nullptr;  // [rows], on the device
  void* out = nullptr;                    // [rows, heads * value_dim]; row stride in elements
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  float scale = 1.0F;                // multiplies q.k
  void* workspace = nullptr;         // sparse_attention_workspace_bytes, 16-byte aligned
  std::int32_t* arrivals = nullptr;  // [rows * heads], zeros before the first launch; every launch leaves zeros
  bool plain = false;                // the plain form, whatever the shape
};

// What the launcher takes for these parameters on a device of this compute capability (major number).
[[nodiscard]] AttentionForm sparse_attention_form(const KvGeometry& geometry, std::int32_t heads, int capability_major);
// On the current device. Throws CudaError.
[[nodiscard]] AttentionForm sparse_attention_form(const KvGeometry& geometry, std::int32_t heads);

// Of the partial results of up to `rows` lists of up to `max_count` entries in `form`; absent: in any. The latent form
// keeps partial results of up to 95 lists of 64 heads; of more, which fill the device, totals alone.
[[nodiscard]] std::int64_t sparse_attention_workspace_bytes(const KvGeometry& geometry, std::int32_t heads,
                                                            std::int64_t rows, std::int64_t max_count,
                                                            std::optional<AttentionForm> form = std::nullopt);

// HS_CHECK: heads divide into KV heads, channels are multiples of 16, alignments as above.
void launch_sparse_attention(const SparseAttentionParams& params, Stream stream);

// Rows go to pool + slots[r] * row_bytes (slot -1: not written), or, without slots, to rows_out[r] (null: not written).
// The bytes are those of encode_row (core/kv_format.h).
struct DeviceStoreRowsParams {
  KvGeometry geometry;
  ActivationType activation = ActivationType::kF32;  // of k and v
  const void* k = nullptr;                           // [rows, kv_heads * key_dim]; row stride in elements
  std::int64_t k_stride = 0;
  const void* v = nullptr;  // [rows, kv_heads * value_dim]; latent rows: not read
  std::int64_t v_stride = 0;
  std::byte* pool = nullptr;             // 4-byte aligned
  const std::int64_t* slots = nullptr;   // [rows]
  std::byte* const* rows_out = nullptr;  // [rows], 4-byte aligned rows
  std::int64_t rows = 0;
};
void launch_store_rows(const DeviceStoreRowsParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
