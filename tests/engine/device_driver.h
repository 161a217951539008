// The engine on a GPU, for EngineDriver and ModeDriver.
#pragma once

#include <memory>
#include <utility>

#include "kernels/cuda/device.h"
#include "kernels/cuda/mapped_pool.h"
#include "model/device_engine.h"
#include "model/dummy_weights.h"
#include "tests/engine/engine_request.h"

namespace hotset::testing {

inline constexpr std::int64_t kMappedBytes = std::int64_t{4} << 30;  // of host memory, at most

inline bool has_gpu() { return kernels::cuda::find_gpu().ok(); }

// Makes runners of a compute type.
struct DeviceRunners {
  kernels::ElementType compute = kernels::ElementType::kF32;
  bool graphs = true;
  bool whole_batches = false;  // every decode step has as many rows as the largest: neighbours change no bit

  bool dummy = false;       // weights made up for the checkpoint's config
  bool fp8_weights = true;  // stay FP8 where kernels take them

  [[nodiscard]] model::DeviceRunnerLimits limits_of(const EngineRequest& request) const {
    return {.max_batch = request.max_batch,
            .least_rows = whole_batches ? request.max_batch : 1,
            .prefill_chunk = request.prefill_chunk,
            .max_tokens = request.host_pages * kPageTokens,
            .largest_hot = request.hot_shape,
            .max_selected = request.max_selected,
            .graphs = graphs};
  }

  std::unique_ptr<model::DeviceStepRunner> operator()(const EngineRequest& request) const {
    model::DeviceEngine engine = require(model::open_device_engine(compute, fp8_weights));
    engine.weights = dummy ? model::make_dummy_weights(request.checkpoint.config(), *engine.backend, 1)
                           : require(model::load_weights(request.checkpoint, *engine.backend));
    auto device =
        require(storage::DevicePool::create(request.layout, request.device_pages, kernels::cuda::device_pool_memory));
    auto host = require(
        storage::HostPool::create(request.layout, request.host_pages, kernels::cuda::mapped_pool_memory(kMappedBytes)));
    return std::make_unique<model::DeviceStepRunner>(std::move(engine), std::move(device), std::move(host),
                                                     request.keeper, limits_of(request));
  }
};

}  // namespace hotset::testing
