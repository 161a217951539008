// The GPU of this process with an empty model: where --device cuda begins.
#pragma once

#include "core/result.h"
#include "model/device_step_runner.h"

namespace hotset::model {

// kUnavailable in words when there is no GPU that can be used. The rest: see kernels/cuda/cuda_backend.h.
Result<DeviceEngine> open_device_engine(kernels::ElementType compute, bool fp8_weights = true);

// What the GPU's kernels take of a checked config. kInvalidArgument, param --device, names what they don't.
Result<void> check_device_model(const ModelConfig& config);

}  // namespace hotset::model
