#include "kernels/cuda/row_places.h"
#include "kernels/cuda/rows/row_places.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) row_places_kernel(const RowPlacesParams p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const std::int64_t position = p.positions[i];
  p.slots[i] = position < 0 ? -1 : new_row(p.rows[i * p.row_stride], position);
  if (p.metadata_pages == nullptr) return;
  const std::int64_t kept = p.metadata_positions[i];
  p.pages[i] = kept < 0 ? -1 : p.metadata_pages[i * p.metadata_stride + kept / kPageTokens];
  p.offsets[i] = kept < 0 ? 0 : static_cast<std::int32_t>(kept % kPageTokens);
}

}  // namespace

void launch_row_places(const RowPlacesParams& params, Stream stream) {
  if (params.count <= 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(params.count, kThreads));
  row_places_kernel<<<blocks, kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
