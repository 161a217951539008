// Products of the rows of each group with the group's own weights, on Hopper's tensor cores:
//   out[r, n] (+)= sum over k of rows[r, k] weight[group of r, n, k]
//   gated: out[r, n] = silu(gate) * up, the two products of weight[g, 0, n, :] and weight[g, 1, n, :]
// A row's sums run over k in ascending steps of 16 (bfloat16) or 32 (e4m3, in parts of 128 that are scaled and added in
// float32), never divided: a row's bits depend on its own inputs only, whatever the launch, the bucket or the group.
#pragma once

#include <cstdint>

#include "kernels/cuda/activation_type.h"
#include "kernels/cuda/stream.h"
#include "kernels/tensor.h"

namespace hotset::kernels::cuda {

inline constexpr int kMostGroups = 512;
inline constexpr int kRowAlignment = 4;

// Pointers are the device's.
struct GroupedGemm {
  const void* weight = nullptr;          // [groups][n][k], gated [groups][2][n][k], bfloat16 or e4m3, 16-byte aligned
  const float* weight_scales = nullptr;  // e4m3: [groups]([2])[ceil(n / 128)][k / 128]
  const void* rows = nullptr;            // [row_bound][k], 16-byte aligned
  const float* row_scales = nullptr;     // e4m3: [k / 128][scale_stride], 16-byte aligned
  std::int64_t scale_stride = 0;         // >= row_bound, a multiple of 4
  std::int64_t row_bound = 0;            // the last row of all groups lies before it
  // [groups] each: group g has the rows begins[g] ... ends[g] - 1, ascending with g. e4m3: each begin is a multiple of
  // kRowAlignment, for what the tensor copies of scales need. Null: one group of row_bound rows.
  const std::int32_t* begins = nullptr;
  const std::int32_t* ends = nullptr;
  int groups = 1;
  std::int64_t n = 0;              // a multiple of 8
  std::int64_t k = 0;              // bfloat16: a multiple of 8, e4m3: of 128
  std::int64_t expected_rows = 0;  // of a group, roughly: decides the size of tiles, never a result
  void* out = nullptr;             // [row_bound][n]; row stride below
  std::int64_t out_stride = 0;     // elements
  ActivationType out_type = ActivationType::kF32;
  bool accumulate = false;      // not gated only
  const float* bias = nullptr;  // likewise; [n], of one group, or null
};

void launch_grouped_bf16(const GroupedGemm& gemm, Stream stream);
void launch_grouped_bf16_gated(const GroupedGemm& gemm, Stream stream);
void launch_grouped_fp8(const GroupedGemm& gemm, Stream stream);
void launch_grouped_fp8_gated(const GroupedGemm& gemm, Stream stream);

}  // namespace hotset::kernels::cuda
