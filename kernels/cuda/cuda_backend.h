// The dense part of the forward pass on an NVIDIA GPU (kernels/dense_backend.h): matrix products by matmul.h (few
// rows by a kernel of our own, others by cuBLASLt), the rest by the kernels beside this file. Everything is queued on
// one stream.
//
// Compute type kF32: weights, activations and products in float32 (never TF32). kBF16: weights and what products read
// in bfloat16, sums and everything between in float32. Quantised weights become the compute type when they are packed,
// but for FP8 ones with block scales: with kBF16 on a Hopper they stay FP8 if `fp8_weights`. Products of at most 16
// rows, for weights of at most 2,048 channels 64, then widen the codes and take activations in bfloat16
// (matmul/few_rows_fp8.h), those of more rows and of experts quantise activations to FP8 too (fp8_matmul.h, experts.h).
//
// A result row depends on its own inputs and, beyond few rows, on the number of rows in the call (cuBLASLt chooses by
// it; each of the two FP8 products gives the same bits for any number of them), never on the other rows' values:
// who wants equal bits keeps the number of rows (docs/gpu_engine.md).
//
// Capture: products of a shape must have run once outside before they are captured (matmul.h).
#pragma once

#include <memory>

#include "kernels/cuda/device.h"
#include "kernels/dense_backend.h"

namespace hotset::kernels::cuda {

// `stream` outlives it. Throws CudaError.
[[nodiscard]] std::unique_ptr<DenseBackend> make_cuda_backend(const DeviceInfo& device, const DeviceStream& stream,
                                                              ElementType compute, bool fp8_weights = true);

}  // namespace hotset::kernels::cuda
