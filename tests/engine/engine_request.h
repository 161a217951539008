// What a runner is made of, and the CPU's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/step_runner.h"
#include "model/weights.h"
#include "sparse/selection.h"
#include "tests/engine/require.h"

namespace hotset::testing {

struct EngineRequest {
  model::Checkpoint& checkpoint;
  KvLayout layout;
  storage::DevicePoolPages device_pages;
  std::int32_t host_pages = 0;
  std::shared_ptr<const sparse::SelectionAlgorithm> keeper;
  sparse::HotBufferShape hot_shape;  // hot_blocks 0: nothing selects
  std::int64_t max_selected = 0;     // blocks
  std::int64_t max_batch = 32;
  std::int64_t prefill_chunk = 0;  // of all sequences together
  int threads = 1;
};

inline std::unique_ptr<model::StepRunner> make_cpu_runner(const EngineRequest& request) {
  auto backend = kernels::make_cpu_backend(request.threads);
  auto weights = require(model::load_weights(request.checkpoint, *backend));
  auto device = require(storage::DevicePool::create(request.layout, request.device_pages));
  auto host = require(storage::HostPool::create(request.layout, request.host_pages));
  return std::make_unique<model::StepRunner>(
      std::move(weights), std::move(backend), std::move(device), std::move(host), request.keeper,
      model::StepRunnerLimits{.max_batch = request.max_batch, .prefill_chunk = request.prefill_chunk});
}

using MakeRunner = std::function<std::unique_ptr<model::StepExecutor>(const EngineRequest&)>;

}  // namespace hotset::testing
