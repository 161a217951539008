// The GPU of this process with an empty model: where --device cuda begins.
#pragma once

#include "core/result.h"
#include "model/device_step_runner.h"

namespace hotset::model {

// kUnavailable in words when there is no GPU that can be used. `compute`: see kernels/cuda/cuda_backend.h.
Result<DeviceEngine> open_device_engine(kernels::ElementType compute);

}  // namespace hotset::model
