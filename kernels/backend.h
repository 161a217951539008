// The launchers: everything the model asks of a device. kernels/cpu implements them (the embedded default and the
// oracle of every other backend). Each call is ordered after the previous ones of the same backend; the CPU one returns
// when the work is done.
//
// Rules that hold for every launcher:
// - float32 accumulation. A result row depends on its own inputs only, bit for bit: not on the number of rows in the
//   call, on their order, on the threads or on the instruction set.
// - Pointers are device pointers, not null, and do not overlap unless a comment says so. Row counts of 0 do nothing.
// - Sizes that come from a checkpoint or a client were checked before; a violated precondition is HS_CHECK.
//
// Threads: one thread calls a backend at a time (the stream that owns it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/kv_geometry.h"
#include "kernels/tensor.h"

namespace hotset::kernels {

// A weight matrix in the backend's own layout; quantised weights stay quantised.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  [[nodiscard]] virtual std::int64_t rows() const = 0;   // output channels N
  [[nodiscard]] virtual std::int64_t cols() const = 0;   // inputs K
  [[nodiscard]] virtual std::int64_t bytes() const = 0;  // memory it holds
};

// out[t, :] = table[tokens[t], :].
struct EmbedParams {
  const PackedMatrix* table = nullptr;   // [vocabulary, hidden]
  const std::int32_t* tokens = nullptr;  // [count], each in [0, vocabulary)
  std::int64_t count = 0;
  float* out = nullptr;  // [count, hidden]
};

// out[r, :] = in[r, :] * weight / sqrt(mean(in[r, :]^2) + epsilon). in may equal out.
// With `width` = head_dim and rows = tokens * heads it is the QK-norm.
struct RmsNormParams {
  const float* in = nullptr;      // [rows, width]
  const float* weight = nullptr;  // [width]
  float* out = nullptr;           // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6F;
};

// Rotary embedding in place, half-split pairs (c, c + rotary_dim / 2); channels from rotary_dim on stay.
// x'[c] = x[c] cos - x[c + half] sin; x'[c + half] = x[c + half] cos + x[c] sin, angle = position * inv_freq[c],
// both cos and sin times attention_factor. inv_freq and factor: model/rope.h (default, linear, llama3, yarn).
struct RopeParams {
  float* x = nullptr;  // [rows, heads, head_dim]; row stride in floats below
  std::int64_t row_stride = 0;
  const std::int64_t* positions = nullptr;  // [rows]
  const float* inv_freq = nullptr;          // [rotary_dim / 2]
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;
  float attention_factor = 1.0F;
};

// y[m, :] = x[m, :] W^T (+ bias) (+ y[m, :] when accumulate).
struct MatmulParams {
  const float* x = nullptr;              // [m, K], rows contiguous
  const PackedMatrix* weight = nullptr;  // [N, K]
  const float* bias = nullptr;           // [N] or null
  float* y = nullptr;                    // [m, N]; row stride in floats below (0 = N)
  std::int64_t y_stride = 0;
  std::int64_t m = 0;
  bool accumulate = false;
};

// out[r, c] = silu(gate[r, c]) * up[r, c], silu(x) = x / (1 + exp(-x)). out may equal gate.
struct SiluGateParams {
  const float* gate = nullptr;  // [rows, width]
  const float* up = nullptr;    // [rows, width]
  float* out = nullptr;         // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

// Encodes K and V of new tokens as rows (core/kv_geometry.h); bf16 rounds to nearest even.
struct StoreRowsParams {
  KvGeometry geometry;
  const float* k = nullptr;  // [rows, kv_heads * head_dim]; row stride in floats below
  const float* v = nullptr;  // same
  std::int64_t stride = 0;
  std::byte* const* rows_out = nullptr;  // [rows] where each row goes (geometry.row_bytes() each)
  std::int64_t rows = 0;
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
  const float* q = nullptr;  // [rows, heads * head_dim]; row stride in floats below
  std::int64_t q_stride = 0;
  const std::byte* pool = nullptr;             // base of the device pool; row of slot s lies at pool + s * row_bytes
  const std::int64_t* slots = nullptr;         // concatenated lists
  const std::int64_t* slot_offsets = nullptr;  // [rows + 1]
  float* out = nullptr;                        // [rows, heads * head_dim]
  std::int64_t rows = 0;
  std::int32_t heads = 0;
  float scale = 1.0F;  // multiplies q.k
};

// Running softmax of one (query, head), carried from tile to tile.
// acc [rows, heads, head_dim], max and sum [rows, heads].
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
  const float* q = nullptr;  // [rows, heads * head_dim]; row stride in floats below
  std::int64_t q_stride = 0;
  std::int64_t rows = 0;
  std::int64_t first_position = 0;
  const std::byte* const* tiles = nullptr;  // [tile_count], each 64 rows (rows past the newest position are never read)
  std::int64_t first_tile = 0;
  std::int64_t tile_count = 0;
  AttentionState state;
  bool begin = false;
  bool finish = false;
  float* out = nullptr;  // [rows, heads * head_dim]
  std::int32_t heads = 0;
  float scale = 1.0F;
};

// Exact top-k per row: a score above the k-th is always in, ties go to the lower position, NaN counts as minus infinity
// (-0 equals +0), the result is unique, in range and ascending. A row with length <= k selects everything.
struct TopKParams {
  const float* scores = nullptr;  // [rows, stride]
  std::int64_t stride = 0;
  const std::int64_t* lengths = nullptr;  // [rows], each <= stride
  std::int64_t rows = 0;
  std::int32_t k = 0;
  std::int32_t* out = nullptr;     // [rows, k]; unused entries are -1
  std::int32_t* counts = nullptr;  // [rows] = min(k, length)
};

class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string description() const = 0;  // e.g. "CPU, 2 threads, AVX-512 VNNI"

  // Copies; the view may go away afterwards.
  [[nodiscard]] virtual std::unique_ptr<PackedMatrix> pack(const MatrixView& matrix) = 0;

  virtual void embed(const EmbedParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void rope(const RopeParams& params) = 0;
  virtual void matmul(const MatmulParams& params) = 0;
  virtual void silu_gate(const SiluGateParams& params) = 0;
  virtual void store_rows(const StoreRowsParams& params) = 0;
  virtual void copy(const CopyParams& params) = 0;
  virtual void slot_attention(const SlotAttentionParams& params) = 0;
  virtual void prefill_attention(const PrefillAttentionParams& params) = 0;
  virtual void top_k(const TopKParams& params) = 0;
};

}  // namespace hotset::kernels
