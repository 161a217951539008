// One warp takes a row of up to 512 elements, a block a longer one. The second pass reads the row again, from the
// first-level cache: every thread reads and writes the groups of its own.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/elementwise/row_groups.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kWarpWidth = 512;
constexpr unsigned kWarpsOfBlock = 8;

struct RowLaunch {
  dim3 grid, block;
};

// The threads of a row depend on its width alone.
RowLaunch row_launch(std::int64_t rows, std::int64_t width) {
  if (width <= kWarpWidth)
    return {dim3(static_cast<unsigned>((rows + kWarpsOfBlock - 1) / kWarpsOfBlock)), dim3(32, kWarpsOfBlock)};
  const std::int64_t threads = std::min<std::int64_t>((groups_of(width) + 31) / 32 * 32, 1024);
  return {dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads))};
}

__device__ __forceinline__ std::int64_t my_row() { return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }

template <bool kAligned, class In, class Out>
__device__ void write_rms(const In* in, const float* weight, Out* out, std::int64_t width, float factor) {
  for (std::int64_t at = threadIdx.x * kGroup; at < width; at += blockDim.x * kGroup) {
    Group group = load_group<kAligned>(in, at, width);
    const Group weights = load_group<kAligned>(weight, at, width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      group.values[i] = __fmul_rn(__fmul_rn(group.values[i], factor), weights.values[i]);
    }
    store_group<kAligned>(out, at, width, group);
  }
}

template <class In, class Out, bool kAligned>
__global__ void rms_norm_kernel(const RmsNormDeviceParams params) {
  follow_kernels_before();
  const std::int64_t row = my_row();
  if (row >= params.rows) return;
  const In* const in = static_cast<const In*>(params.in) + row * params.in_stride;
  float squares = 0.0F;
  for (std::int64_t at = threadIdx.x * kGroup; at < params.width; at += blockDim.x * kGroup) {
    squares = square_sum(squares, load_group<kAligned>(in, at, params.width));
  }
  const float factor = norm_factor(row_sum(squares), params.width, params.epsilon);
  write_rms<kAligned>(in, params.weight, static_cast<Out*>(params.out) + row * params.out_stride, params.width, factor);
}

// Of rows of at most one group for each thread: it stays in registers, and the weights, which no kernel writes, are
// there before the kernels ahead are done. The bits of rms_norm_kernel.
template <class In, class Out, bool kAligned>
__global__ void rms_norm_once_kernel(const RmsNormDeviceParams params) {
  let_next_kernel_start();
  const std::int64_t row = my_row();
  const std::int64_t at = threadIdx.x * kGroup;
  const bool takes_part = row < params.rows && at < params.width;
  Group weights = {}, group = {};
  if (takes_part) weights = load_group<kAligned>(params.weight, at, params.width);
  wait_for_kernels_before();
  if (row >= params.rows) return;
  if (takes_part) {
    group = load_group<kAligned>(static_cast<const In*>(params.in) + row * params.in_stride, at, params.width);
  }
  const float factor = norm_factor(row_sum(square_sum(0.0F, group)), params.width, params.epsilon);
  if (!takes_part) return;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    group.values[i] = __fmul_rn(__fmul_rn(group.values[i], factor), weights.values[i]);
  }
  store_group<kAligned>(static_cast<Out*>(params.out) + row * params.out_stride, at, params.width, group);
}

template <class Residual, class T, bool kAligned>
__global__ void add_rms_norm_kernel(const AddRmsNormDeviceParams params) {
  follow_kernels_before();
  const std::int64_t row = my_row();
  if (row >= params.rows) return;
  const T* const x = static_cast<const T*>(params.x) + row * params.x_stride;
  Residual* const residual = static_cast<Residual*>(params.residual) + row * params.residual_stride;
  float squares = 0.0F;
  for (std::int64_t at = threadIdx.x * kGroup; at < params.width; at += blockDim.x * kGroup) {
    Group sum = load_group<kAligned>(residual, at, params.width);
    const Group added = load_group<kAligned>(x, at, params.width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sum.values[i] = rounded<Residual>(__fadd_rn(sum.values[i], added.values[i]));
    store_group<kAligned>(residual, at, params.width, sum);
    squares = square_sum(squares, sum);
  }
  const float factor = norm_factor(row_sum(squares), params.width, params.epsilon);
  write_rms<kAligned>(residual, params.weight, static_cast<T*>(params.out) + row * params.out_stride, params.width,
                      factor);
}

// Two passes for the sums, as on the CPU: a large mean costs no precision.
template <class In, class Out, bool kAligned>
__global__ void layer_norm_kernel(const LayerNormDeviceParams params) {
  follow_kernels_before();
  const std::int64_t row = my_row();
  if (row >= params.rows) return;
  const std::int64_t width = params.width;
  const In* const in = static_cast<const In*>(params.in) + row * params.in_stride;
  Out* const out = static_cast<Out*>(params.out) + row * params.out_stride;
  float total = 0.0F;
  for (std::int64_t at = threadIdx.x * kGroup; at < width; at += blockDim.x * kGroup) {
    const Group group = load_group<kAligned>(in, at, width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) total = __fadd_rn(total, group.values[i]);
  }
  const float mean = __fdiv_rn(row_sum(total), static_cast<float>(width));
  float squares = 0.0F;
  for (std::int64_t at = threadIdx.x * kGroup; at < width; at += blockDim.x * kGroup) {
    Group group = load_group<kAligned>(in, at, width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group.values[i] = at + i < width ? __fsub_rn(group.values[i], mean) : 0.0F;
    squares = square_sum(squares, group);
  }
  const float factor = norm_factor(row_sum(squares), width, params.epsilon);
  for (std::int64_t at = threadIdx.x * kGroup; at < width; at += blockDim.x * kGroup) {
    Group group = load_group<kAligned>(in, at, width);
    const Group weight = load_group<kAligned>(params.weight, at, width);
    const Group bias = load_group<kAligned>(params.bias, at, width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float scaled = __fmul_rn(__fsub_rn(group.values[i], mean), factor);
      group.values[i] = __fmaf_rn(scaled, weight.values[i], bias.values[i]);
    }
    store_group<kAligned>(out, at, width, group);
  }
}

template <class Params>
void fill_strides(Params& params) {
  if (params.in_stride == 0) params.in_stride = params.width;
  if (params.out_stride == 0) params.out_stride = params.width;
}

}  // namespace

void launch_rms_norm(const RmsNormDeviceParams& given, Stream stream) {
  RmsNormDeviceParams params = given;
  if (params.rows <= 0 || params.width <= 0) return;
  fill_strides(params);
  const bool aligned = params.width % kGroup == 0 && aligned_rows(params.in, params.in_type, params.in_stride) &&
                       aligned_rows(params.out, params.out_type, params.out_stride) &&
                       aligned_rows(params.weight, ActivationType::kF32, 0);
  const RowLaunch launch = row_launch(params.rows, params.width);
  with_types(params.in_type, params.out_type, aligned, [&](auto in, auto out, auto is_aligned) {
    const bool once = groups_of(params.width) <= launch.block.x;
    launch_dependent(once ? rms_norm_once_kernel<decltype(in), decltype(out), is_aligned.value>
                          : rms_norm_kernel<decltype(in), decltype(out), is_aligned.value>,
                     launch.grid, launch.block, 0, 0, stream, params);
  });
}

void launch_layer_norm(const LayerNormDeviceParams& given, Stream stream) {
  LayerNormDeviceParams params = given;
  if (params.rows <= 0 || params.width <= 0) return;
  fill_strides(params);
  const bool aligned = params.width % kGroup == 0 && aligned_rows(params.in, params.in_type, params.in_stride) &&
                       aligned_rows(params.out, params.out_type, params.out_stride) &&
                       aligned_rows(params.weight, ActivationType::kF32, 0) &&
                       aligned_rows(params.bias, ActivationType::kF32, 0);
  const RowLaunch launch = row_launch(params.rows, params.width);
  with_types(params.in_type, params.out_type, aligned, [&](auto in, auto out, auto is_aligned) {
    launch_dependent(layer_norm_kernel<decltype(in), decltype(out), is_aligned.value>, launch.grid, launch.block, 0, 0,
                     stream, params);
  });
}

void launch_add_rms_norm(const AddRmsNormDeviceParams& given, Stream stream) {
  AddRmsNormDeviceParams params = given;
  if (params.rows <= 0 || params.width <= 0) return;
  for (std::int64_t* const stride : {&params.x_stride, &params.residual_stride, &params.out_stride}) {
    if (*stride == 0) *stride = params.width;
  }
  const bool aligned = params.width % kGroup == 0 && aligned_rows(params.x, params.type, params.x_stride) &&
                       aligned_rows(params.residual, params.residual_type, params.residual_stride) &&
                       aligned_rows(params.out, params.type, params.out_stride) &&
                       aligned_rows(params.weight, ActivationType::kF32, 0);
  const RowLaunch launch = row_launch(params.rows, params.width);
  with_types(params.residual_type, params.type, aligned, [&](auto residual, auto value, auto is_aligned) {
    launch_dependent(add_rms_norm_kernel<decltype(residual), decltype(value), is_aligned.value>, launch.grid,
                     launch.block, 0, 0, stream, params);
  });
}

}  // namespace hotset::kernels::cuda
