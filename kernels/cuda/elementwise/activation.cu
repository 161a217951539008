#include "kernels/cuda/activation.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/elementwise/row_groups.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// blockIdx.x: the row. exp(-x) may become infinite: the quotient is then -0, its limit.
template <class In, class Out, bool kAligned>
__global__ void __launch_bounds__(kThreads) silu_gate_kernel(const SiluGateDeviceParams params) {
  follow_kernels_before();
  const std::int64_t row = blockIdx.x;
  const std::int64_t at = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kGroup;
  if (at >= params.width) return;
  const Group gate =
      load_group<kAligned>(static_cast<const In*>(params.gate) + row * params.gate_stride, at, params.width);
  const Group up = load_group<kAligned>(static_cast<const In*>(params.up) + row * params.up_stride, at, params.width);
  Group out;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float x = gate.values[i];
    out.values[i] = __fmul_rn(__fdiv_rn(x, __fadd_rn(1.0F, expf(-x))), up.values[i]);
  }
  store_group<kAligned>(static_cast<Out*>(params.out) + row * params.out_stride, at, params.width, out);
}

}  // namespace

void launch_silu_gate(const SiluGateDeviceParams& given, Stream stream) {
  SiluGateDeviceParams params = given;
  if (params.rows <= 0 || params.width <= 0) return;
  for (std::int64_t* const stride : {&params.gate_stride, &params.up_stride, &params.out_stride}) {
    if (*stride == 0) *stride = params.width;
  }
  const bool aligned = params.width % kGroup == 0 && aligned_rows(params.gate, params.in_type, params.gate_stride) &&
                       aligned_rows(params.up, params.in_type, params.up_stride) &&
                       aligned_rows(params.out, params.out_type, params.out_stride);
  const dim3 grid(static_cast<unsigned>(params.rows),
                  static_cast<unsigned>((groups_of(params.width) + kThreads - 1) / kThreads));
  with_types(params.in_type, params.out_type, aligned, [&](auto in, auto out, auto is_aligned) {
    launch_dependent(silu_gate_kernel<decltype(in), decltype(out), is_aligned.value>, grid, kThreads, 0, 0, stream,
                     params);
  });
}

}  // namespace hotset::kernels::cuda
