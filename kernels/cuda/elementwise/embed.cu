#include "kernels/cuda/elementwise/row_groups.cuh"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class Table, class Out, bool kAligned>
__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedDeviceParams params) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t at = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kGroup;
  if (at >= params.hidden) return;
  const std::int64_t token = params.tokens[row];
  Group group = {};
  if (token >= 0 && token < params.vocabulary) {
    group = load_group<kAligned>(static_cast<const Table*>(params.table) + token * params.hidden, at, params.hidden);
  }
  store_group<kAligned>(static_cast<Out*>(params.out) + row * params.out_stride, at, params.hidden, group);
}

__global__ void __launch_bounds__(kThreads) take_tokens_kernel(const TakeTokensParams params) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= params.count) return;
  const std::int32_t index = params.indices[i];
  if (index >= 0) params.tokens[i] = params.from[index];
}

}  // namespace

void launch_take_tokens(const TakeTokensParams& params, Stream stream) {
  if (params.count <= 0) return;
  const auto blocks = static_cast<unsigned>((params.count + kThreads - 1) / kThreads);
  take_tokens_kernel<<<blocks, kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

void launch_embed(const EmbedDeviceParams& given, Stream stream) {
  EmbedDeviceParams params = given;
  if (params.count <= 0 || params.hidden <= 0) return;
  if (params.out_stride == 0) params.out_stride = params.hidden;
  const bool aligned = params.hidden % kGroup == 0 && aligned_rows(params.table, params.table_type, params.hidden) &&
                       aligned_rows(params.out, params.out_type, params.out_stride);
  const dim3 grid(static_cast<unsigned>(params.count),
                  static_cast<unsigned>((groups_of(params.hidden) + kThreads - 1) / kThreads));
  with_types(params.table_type, params.out_type, aligned, [&](auto table, auto out, auto is_aligned) {
    embed_kernel<decltype(table), decltype(out), is_aligned.value><<<grid, kThreads, 0, stream>>>(params);
  });
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
