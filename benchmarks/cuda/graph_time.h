// Times launches as the engine runs them: captured into a graph, replayed, between two events. For benchmarks only.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {

[[nodiscard]] inline double median_of(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// Microseconds of one replay of what `launch(stream)` launches: the median of `repeats`, after one more to warm up and
// one plain run, which loads the kernels. `prepare(stream)` runs before each and is not timed.
template <class Launch, class Prepare>
double graph_time_us(cudaStream_t stream, int repeats, const Launch& launch, const Prepare& prepare) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  prepare(stream);
  launch(stream);
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(stream));
  HOTSET_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch(stream);
  HOTSET_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  HOTSET_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  Event begin(true), end(true);
  std::vector<double> times;
  for (int i = 0; i <= repeats; ++i) {
    prepare(stream);
    begin.record(stream);
    HOTSET_CUDA_CHECK(cudaGraphLaunch(replay, stream));
    end.record(stream);
    HOTSET_CUDA_CHECK(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    HOTSET_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i > 0) times.push_back(1e3 * milliseconds);
  }
  HOTSET_CUDA_CHECK(cudaGraphExecDestroy(replay));
  HOTSET_CUDA_CHECK(cudaGraphDestroy(graph));
  return median_of(std::move(times));
}

}  // namespace hotset::kernels::cuda
