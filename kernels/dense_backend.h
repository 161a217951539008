// What the forward pass asks of a device, beside attention over the cache: memory, projections, norms, experts.
// kernels/cpu implements it (the embedded default and the oracle of every other backend) and kernels/cuda. Each call is
// ordered after the previous ones of the same backend; the CPU one returns when the work is done, others when it is
// queued.
//
// Rules that hold for every launcher:
// - float32 accumulation. On the CPU a result row depends on its own inputs only, bit for bit: not on the number of
// rows
//   in the call, on their order, on the threads or on the instruction set. Other backends state what holds for them.
// - Pointers are the device's, not null, and do not overlap unless a comment says so. Row counts of 0 do nothing.
// - Sizes that come from a checkpoint or a client were checked before; a violated precondition is HS_CHECK.
//
// Threads: one thread calls a backend at a time (the stream that owns it).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/activations.h"
#include "kernels/array.h"
#include "kernels/random_numbers.h"
#include "kernels/tensor.h"

namespace hotset::kernels {

// A weight matrix in the backend's own layout; quantised weights stay quantised where it multiplies by them.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  [[nodiscard]] virtual std::int64_t rows() const = 0;   // output channels N
  [[nodiscard]] virtual std::int64_t cols() const = 0;   // inputs K
  [[nodiscard]] virtual std::int64_t bytes() const = 0;  // memory it holds
};

// Matrices of the same columns, and the one of all their rows, in their order; null: they lie apart.
struct JoinedMatrices {
  std::unique_ptr<PackedMatrix> all;
  std::vector<std::unique_ptr<PackedMatrix>> parts;
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
  ActivationsOut out;             // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;  // of the rows of in, in elements (0 = width)
  float epsilon = 1e-6F;
  std::int64_t out_stride = 0;  // likewise (0 = stride)
};

// out[r, :] = (in[r, :] - mean) / sqrt(variance + epsilon) * weight + bias, mean and variance over the row. in may
// equal out.
struct LayerNormParams {
  const float* in = nullptr;      // [rows, width]
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  float* out = nullptr;           // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6F;
};

// Rotary embedding in place, half-split pairs (c, c + rotary_dim / 2); channels from rotary_dim on stay.
// x'[c] = x[c] cos - x[c + half] sin; x'[c + half] = x[c + half] cos + x[c] sin, angle = position * inv_freq[c],
// both cos and sin times attention_factor. inv_freq and factor: model/rope.h (default, linear, llama3, yarn).
// head_dim is the distance of two heads: with x at the first rotated channel, heads may have channels before it (MLA).
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
  Activations x;  // [m, K]; row stride in elements below (0 = K)
  std::int64_t x_stride = 0;
  const PackedMatrix* weight = nullptr;  // [N, K]
  const float* bias = nullptr;           // [N] or null
  ActivationsOut y;                      // [m, N]; row stride in elements below (0 = N)
  std::int64_t y_stride = 0;
  std::int64_t m = 0;
  bool accumulate = false;
};

// out[m, :] = silu(x[m, :] G^T) * (x[m, :] U^T): matmul() and silu_gate() in one, for G and U joined to one matrix.
struct GatedMatmulParams {
  Activations x;                          // [m, K]
  const PackedMatrix* gate_up = nullptr;  // [2 N, K]: G, then U
  ActivationsOut out;                     // [m, N]
  std::int64_t m = 0;
};

// As MatmulParams for `batch` products that lie at fixed distances (heads): y[b][m, :] = x[b][m, :] weights[b]^T.
struct BatchedMatmulParams {
  Activations x;  // row stride and distance of two products in elements below
  std::int64_t x_stride = 0;
  std::int64_t x_distance = 0;
  const PackedMatrix* const* weights = nullptr;  // [batch], each [N, K]; on the host
  std::int64_t batch = 0;
  ActivationsOut y;
  std::int64_t y_stride = 0;
  std::int64_t y_distance = 0;
  std::int64_t m = 0;
};

// Copies `rows` rows of `width` floats.
struct CopyColumnsParams {
  const float* source = nullptr;
  std::int64_t source_stride = 0;
  float* target = nullptr;
  std::int64_t target_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

// out[r, c] = silu(gate[r, c]) * up[r, c], silu(x) = x / (1 + exp(-x)). out may equal gate.
struct SiluGateParams {
  const float* gate = nullptr;  // [rows, width]
  const float* up = nullptr;    // [rows, width]
  ActivationsOut out;           // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t stride = 0;  // of the rows of gate and up, in elements (0 = width); then out is not gate
};

struct ExpertsShape {
  std::int32_t count = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;  // of one expert
  bool fp8 = false;               // in kFp8Block: takes_fp8() their shapes
};

// The experts of a layer in the backend's own layout; expert(x) = down(silu(gate(x)) * up(x)).
class PackedExperts {
 public:
  enum class Part { kGate, kUp, kDown };
  virtual ~PackedExperts() = default;
  // Copies; every part of every expert is set once before use. Gate and up: [intermediate, hidden]; down: [hidden,
  // intermediate]; all of them in kFp8Block or none, as the shape says.
  virtual void set(std::int32_t expert, Part part, const MatrixView& matrix) = 0;
  // Sets all of them; part p (0 ... 2) of expert e begins with number (3 e + p) * hidden * intermediate. `shape` is
  // that of make_experts().
  virtual void set_random(const ExpertsShape& shape, std::uint64_t seed, float deviation, float down_deviation);
  [[nodiscard]] virtual std::int64_t bytes() const = 0;  // memory it holds
};

// out[r, :] += sum of weights[r, i] * expert(ids[r, i])(x[r, :]), in ascending expert number, whatever the order of the
// ids and the other rows.
struct ExpertsParams {
  Activations x;  // [rows, hidden]
  const PackedExperts* experts = nullptr;
  const std::int32_t* ids = nullptr;  // [rows, per_token], different ones in a row
  const float* weights = nullptr;     // [rows, per_token]
  std::int32_t per_token = 0;
  std::int64_t rows = 0;
  float* out = nullptr;  // [rows, hidden]
};

// The router of a mixture of experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2; DeepSeek-V2's for softmax).
// score = sigmoid(logit) or softmax over the experts; choice = score + bias. Of `groups` equal groups the `top_groups`
// with the highest group score stay (sum of their two best choices, or their best one); of the experts in them the
// per_token with the highest choice are taken, ties to the lower number everywhere. weight = score, divided by the sum
// of the taken ones (+ 1e-20) when `normalised`, times scaling_factor. A NaN logit counts as minus infinity, and so
// does a choice that is NaN or comes from a NaN logit.
struct RouteParams {
  const float* logits = nullptr;  // [rows, experts]
  const float* bias = nullptr;    // [experts] or null
  std::int64_t rows = 0;
  std::int32_t experts = 0;
  std::int32_t per_token = 0;
  std::int32_t groups = 1;
  std::int32_t top_groups = 1;
  bool softmax = false;        // else sigmoid
  bool group_by_best = false;  // else by the sum of the two best
  bool normalised = true;
  float scaling_factor = 1.0F;
  std::int32_t* ids = nullptr;  // [rows, per_token], ascending in a row
  float* weights = nullptr;     // [rows, per_token]
};

class DenseBackend {
 public:
  virtual ~DenseBackend() = default;

  [[nodiscard]] virtual std::string description() const = 0;  // e.g. "CPU, 2 threads, AVX-512 VNNI"

  // Zeroed memory of the device; std::bad_alloc when there is none.
  [[nodiscard]] virtual std::unique_ptr<Memory> allocate(std::int64_t bytes) = 0;
  // From the host to the device. What is at `source` may go away afterwards.
  virtual void upload(const void* source, void* target, std::int64_t bytes) = 0;
  // Of what matrix products read (Activations) where the model has the choice.
  [[nodiscard]] virtual ElementType activation_type() const = 0;

  template <class T>
  [[nodiscard]] Array<T> array(std::int64_t count) {
    return Array<T>(allocate(count * static_cast<std::int64_t>(sizeof(T))), count);
  }
  template <class T>
  [[nodiscard]] Array<T> array_of(std::span<const T> values) {
    Array<T> out = array<T>(static_cast<std::int64_t>(values.size()));
    upload(values.data(), out.data(), static_cast<std::int64_t>(values.size_bytes()));
    return out;
  }
  [[nodiscard]] ActivationArray activations(std::int64_t count) {
    const ElementType type = activation_type();
    return {allocate(count * element_bytes(type)), type};
  }

  // Whether pack(), pack_joined() and PackedExperts::set() keep matrices of this shape in kFp8Block; else they must not
  // get them.
  [[nodiscard]] virtual bool takes_fp8(std::int64_t /*rows*/, std::int64_t /*cols*/) const { return false; }
  // Copies; the view may go away afterwards.
  [[nodiscard]] virtual std::unique_ptr<PackedMatrix> pack(const MatrixView& matrix) = 0;
  // Matrices of one shape that BatchedMatmulParams takes together; a backend may keep them side by side.
  [[nodiscard]] virtual std::vector<std::unique_ptr<PackedMatrix>> pack_batch(std::span<const MatrixView> matrices) {
    std::vector<std::unique_ptr<PackedMatrix>> out;
    for (const MatrixView& matrix : matrices) out.push_back(pack(matrix));
    return out;
  }
  // As pack() of each. A backend may make them parts of one matrix, which multiplies by all of them at once.
  [[nodiscard]] virtual JoinedMatrices pack_joined(std::span<const MatrixView> matrices);
  // As random_matrix() of each, likewise.
  struct RandomPart {
    RandomNumbers numbers;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
  };
  [[nodiscard]] virtual JoinedMatrices random_joined(std::span<const RandomPart> matrices);
  // As pack() of what random_matrix_bits() gives (random_matrix_codes(), see RandomNumbers::fp8), made where the
  // backend likes; as pack_batch() of [count * rows, cols] cut into matrices of `rows`.
  [[nodiscard]] virtual std::unique_ptr<PackedMatrix> random_matrix(const RandomNumbers& numbers, std::int64_t rows,
                                                                    std::int64_t cols);
  [[nodiscard]] virtual std::vector<std::unique_ptr<PackedMatrix>> random_batch(const RandomNumbers& numbers,
                                                                                std::int64_t count, std::int64_t rows,
                                                                                std::int64_t cols);
  [[nodiscard]] virtual std::unique_ptr<PackedExperts> make_experts(const ExpertsShape& shape) = 0;

  virtual void embed(const EmbedParams& params) = 0;
  virtual void rms_norm(const RmsNormParams& params) = 0;
  virtual void layer_norm(const LayerNormParams& params) = 0;
  virtual void rope(const RopeParams& params) = 0;
  virtual void matmul(const MatmulParams& params) = 0;
  virtual void batched_matmul(const BatchedMatmulParams& params) = 0;
  // False, and nothing is done, where the backend has no such product of this shape.
  [[nodiscard]] virtual bool gated_matmul(const GatedMatmulParams&) { return false; }
  virtual void copy_columns(const CopyColumnsParams& params) = 0;
  virtual void silu_gate(const SiluGateParams& params) = 0;
  virtual void route(const RouteParams& params) = 0;
  virtual void experts(const ExpertsParams& params) = 0;
};

}  // namespace hotset::kernels
