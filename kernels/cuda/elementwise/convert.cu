#include <algorithm>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/elementwise/row_groups.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 132 * 16;

template <class In, class Out, bool kAligned>
__global__ void __launch_bounds__(kThreads) convert_kernel(const ConvertRowsParams params, std::int64_t row_groups) {
  follow_kernels_before();
  const std::int64_t total = params.rows * row_groups;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < total;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / row_groups;
    const std::int64_t at = i % row_groups * kGroup;
    const Group group =
        load_group<kAligned>(static_cast<const In*>(params.in) + row * params.in_stride, at, params.width);
    store_group<kAligned>(static_cast<Out*>(params.out) + row * params.out_stride, at, params.width, group);
  }
}

}  // namespace

void launch_convert_rows(const ConvertRowsParams& given, Stream stream) {
  ConvertRowsParams params = given;
  if (params.rows <= 0 || params.width <= 0) return;
  if (params.in_stride == 0) params.in_stride = params.width;
  if (params.out_stride == 0) params.out_stride = params.width;
  const bool aligned = params.width % kGroup == 0 && aligned_rows(params.in, params.in_type, params.in_stride) &&
                       aligned_rows(params.out, params.out_type, params.out_stride);
  const std::int64_t row_groups = groups_of(params.width);
  const std::int64_t blocks = std::min(kMostBlocks, (params.rows * row_groups + kThreads - 1) / kThreads);
  with_types(params.in_type, params.out_type, aligned, [&](auto in, auto out, auto is_aligned) {
    launch_dependent(convert_kernel<decltype(in), decltype(out), is_aligned.value>, static_cast<unsigned>(blocks),
                     kThreads, 0, 0, stream, params, row_groups);
  });
}

}  // namespace hotset::kernels::cuda
