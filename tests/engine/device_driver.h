// The engine on a GPU, for EngineDriver.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/device.h"
#include "model/device_engine.h"
#include "tests/engine/engine_driver.h"

namespace hotset::testing {

inline Result<kernels::PoolMemory> device_pool_memory(std::int64_t bytes) {
  const std::shared_ptr<kernels::Memory> memory = kernels::cuda::DeviceArena().allocate(bytes);
  return kernels::PoolMemory{
      .host = nullptr, .device = static_cast<std::byte*>(memory->data()), .bytes = bytes, .owner = memory};
}
inline Result<kernels::PoolMemory> mapped_pool_memory(std::int64_t bytes) {
  const std::shared_ptr<kernels::Memory> memory = kernels::cuda::allocate_pinned(bytes);
  auto* const data = static_cast<std::byte*>(memory->data());
  return kernels::PoolMemory{.host = data, .device = data, .bytes = bytes, .owner = memory};
}

inline bool has_gpu() { return kernels::cuda::find_gpu().ok(); }

// Makes runners of a compute type.
struct DeviceRunners {
  kernels::ElementType compute = kernels::ElementType::kF32;
  bool graphs = true;

  std::unique_ptr<model::StepExecutor> operator()(const EngineRequest& request) const {
    model::DeviceEngine engine = require(model::open_device_engine(compute));
    engine.weights = require(model::load_weights(request.checkpoint, *engine.backend));
    auto device = require(storage::DevicePool::create(request.layout, request.device_pages, device_pool_memory));
    auto host = require(storage::HostPool::create(request.layout, request.host_pages, mapped_pool_memory));
    return std::make_unique<model::DeviceStepRunner>(
        std::move(engine), std::move(device), std::move(host), request.keeper,
        model::DeviceRunnerLimits{.max_batch = request.max_batch,
                                  .prefill_chunk = request.prefill_chunk,
                                  .max_tokens = request.host_pages * kPageTokens,
                                  .largest_hot = request.hot_shape,
                                  .max_selected = request.max_selected,
                                  .graphs = graphs});
  }
};

}  // namespace hotset::testing
