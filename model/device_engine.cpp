#include "model/device_engine.h"

#include <exception>

#include "core/concat.h"
#include "kernels/cuda/cuda_backend.h"

namespace hotset::model {

Result<DeviceEngine> open_device_engine(kernels::ElementType compute) {
  auto found = kernels::cuda::find_gpu();
  if (!found) return found.error();
  try {
    DeviceEngine engine;
    engine.device = std::move(found).value();
    engine.stream = std::make_unique<kernels::cuda::DeviceStream>();
    engine.backend = kernels::cuda::make_cuda_backend(engine.device, *engine.stream, compute);
    return engine;
  } catch (const std::exception& broken) {
    return Error{ErrorCode::kUnavailable, concat("the GPU cannot be used: ", broken.what()), {}};
  }
}

}  // namespace hotset::model
