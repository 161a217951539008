// y = x W^T (+ bias) (+ y) of one shape on the device, or of many products of that shape side by side: few rows by a
// kernel of our own (matmul/few_rows.h), others by cuBLASLt. float32 is multiplied in float32 (never TF32), bfloat16
// with float32 sums. The algorithm is chosen once, at construction; a launch allocates nothing and can be captured into
// a graph (after one launch outside of a capture, which loads the kernel).
//
// The same shape and inputs give the same bits on one kind of device and cuBLASLt version. A row of few rows (at
// most 16, float32: 8) has the same bits for every m and in every place. Beyond, they are NOT the same for every m:
// another m may get another algorithm and order of sums. Who needs equal bits at any batch size there fixes the shape,
// i.e. pads m to a bucket; within one shape, whether a row depends on its place is not promised by cuBLASLt.
//
// Threads: one at a time for a MatmulLibrary and its Matmuls. Errors of cuBLASLt, and shapes it has no algorithm for,
// throw CudaError at construction.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

struct MatmulShape {
  std::int64_t m = 0;                            // rows of x and y, >= 1
  std::int64_t n = 0;                            // output channels
  std::int64_t k = 0;                            // inputs
  std::int64_t x_stride = 0;                     // elements, 0: k
  std::int64_t y_stride = 0;                     // elements, 0: n
  ActivationType type = ActivationType::kF32;    // of x and W
  ActivationType y_type = ActivationType::kF32;  // kF32 when `type` is
  bool bias = false;                             // [n] of y_type
  bool accumulate = false;                       // y += instead of y =
  std::size_t most_workspace = 32ULL << 20U;     // bytes that the algorithm may ask for
  // Products side by side in one launch, e.g. one for each head: product i has x + i * x_step, weight + i * weight_step
  // and y + i * y_step; steps in elements. Heads may interleave in x and y: x_stride is then all heads' width, x_step
  // one head's. Without a bias.
  std::int64_t batch = 1;
  std::int64_t x_step = 0;
  std::int64_t weight_step = 0;
  std::int64_t y_step = 0;
  // W has 2n rows, gates, then ups: y = silu(x gates^T) * (x ups^T), silu(a) = a / (1 + exp(-a)) in float32. Few rows
  // only (few_rows_takes()), without a bias or accumulate.
  bool gated = false;
  // x is float32 though `type` is kBF16: rounded to nearest even as it is read. Few rows only.
  bool wide_x = false;
  bool library = false;  // cuBLASLt whatever m is

  auto operator<=>(const MatmulShape&) const = default;
};

// Device pointers, each 16-byte aligned.
struct MatmulOperands {
  const void* x = nullptr;       // [m, k]; row stride x_stride
  const void* weight = nullptr;  // [n, k], gated [2n, k]; no padding. Nothing queued just before writes it
  const void* bias = nullptr;    // [n] of y_type, given exactly when the shape has one
  void* y = nullptr;             // [m, n]; row stride y_stride
  void* workspace = nullptr;     // workspace_bytes(), 256-byte aligned; not shared with work on other streams
};

// cuBLASLt's handle, of the current device. Outlives its Matmuls.
class MatmulLibrary {
 public:
  MatmulLibrary();
  MatmulLibrary(const MatmulLibrary&) = delete;
  MatmulLibrary& operator=(const MatmulLibrary&) = delete;
  ~MatmulLibrary();

 private:
  friend class Matmul;
  void* handle_ = nullptr;
};

class Matmul {
 public:
  Matmul(const MatmulLibrary& library, const MatmulShape& shape);
  Matmul(Matmul&& other) noexcept;
  Matmul& operator=(Matmul&& other) noexcept;
  ~Matmul();

  [[nodiscard]] std::size_t workspace_bytes() const;
  void launch(const MatmulOperands& operands, Stream stream);

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace hotset::kernels::cuda
