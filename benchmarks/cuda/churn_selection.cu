#include "benchmarks/cuda/churn_selection.h"
#include "core/splitmix.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads) churn_kernel(const ChurnParams params) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t open = params.counts[row] - params.sink - params.window;
  const std::int64_t positions = params.length - params.sink - params.window;
  if (open <= 0 || positions < open) return;
  const auto step = static_cast<std::uint64_t>(params.steps[row]);
  std::int32_t* const chosen = params.chosen + row * params.stride;
  std::int32_t* const out = params.selections + row * params.stride + params.sink;
  for (std::int64_t i = threadIdx.x; i < open; i += kThreads) {
    const std::uint64_t hash = splitmix64(params.seed ^ (static_cast<std::uint64_t>(row) << 48) ^ (step << 20) ^
                                          static_cast<std::uint64_t>(i));
    const bool stays = static_cast<float>(hash >> 40) * 0x1p-24F >= params.churn;
    if (chosen[i] < 0 || !stays) {
      const std::int64_t first = i * positions / open;
      const std::int64_t end = (i + 1) * positions / open;
      chosen[i] =
          static_cast<std::int32_t>(params.sink + first + static_cast<std::int64_t>(hash & 0xffffffU) % (end - first));
    }
    out[i] = chosen[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) params.steps[row] = static_cast<std::int32_t>(step) + 1;
}

}  // namespace

void launch_churn(const ChurnParams& params, Stream stream) {
  if (params.rows <= 0) return;
  churn_kernel<<<static_cast<unsigned>(params.rows), kThreads, 0, stream>>>(params);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
