// Normalisation of rows on the device; formulas of kernels/backend.h. Sums in float32, in an order that depends on the
// width alone: a row gives the same bits in any batch. float32 results lie within 4e-6 of the CPU's, relative to the
// largest of the row; bfloat16 ones are those rounded to nearest even. Weights are float32.
//
// All pointers are the device's; strides are in elements, 0: the width. 16-byte accesses where pointers and strides are
// multiples of 16 bytes and the width of 8; otherwise one element at a time, with the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

// out may equal in where the types and strides are equal.
struct RmsNormDeviceParams {
  const void* in = nullptr;  // [rows, width] of in_type
  ActivationType in_type = ActivationType::kF32;
  std::int64_t in_stride = 0;
  const float* weight = nullptr;  // [width]
  void* out = nullptr;            // [rows, width] of out_type
  ActivationType out_type = ActivationType::kF32;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6F;
};

void launch_rms_norm(const RmsNormDeviceParams& params, Stream stream);

// out may equal in where the types and strides are equal.
struct LayerNormDeviceParams {
  const void* in = nullptr;  // [rows, width] of in_type
  ActivationType in_type = ActivationType::kF32;
  std::int64_t in_stride = 0;
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width]
  void* out = nullptr;            // [rows, width] of out_type
  ActivationType out_type = ActivationType::kF32;
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6F;
};

void launch_layer_norm(const LayerNormDeviceParams& params, Stream stream);

// residual += x, rounded to its type; out = RMSNorm of the rounded residual: the bits of the two steps one by one.
// out may equal x where the strides are equal.
struct AddRmsNormDeviceParams {
  const void* x = nullptr;  // [rows, width] of `type`
  std::int64_t x_stride = 0;
  void* residual = nullptr;  // [rows, width] of residual_type, read and written
  ActivationType residual_type = ActivationType::kF32;
  std::int64_t residual_stride = 0;
  const float* weight = nullptr;  // [width]
  void* out = nullptr;            // [rows, width] of `type`
  std::int64_t out_stride = 0;
  ActivationType type = ActivationType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float epsilon = 1e-6F;
};

void launch_add_rms_norm(const AddRmsNormDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
