// What launchers need to know of the current device, asked once.
#pragma once

namespace hotset::kernels::cuda {

struct LaunchLimits {
  int multiprocessors = 0;
  bool hopper = false;   // runs the code for sm_90a
  int shared_bytes = 0;  // most dynamic shared memory of a block

  // What is left beside work of other streams that takes `spared`; at least 1.
  [[nodiscard]] int multiprocessors_beside(int spared) const {
    return spared < multiprocessors ? multiprocessors - spared : 1;
  }
};

// Of the device that is current at the first call. Throws CudaError.
[[nodiscard]] const LaunchLimits& launch_limits();

}  // namespace hotset::kernels::cuda
