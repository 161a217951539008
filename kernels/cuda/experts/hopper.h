// Whether the current device runs the code for sm_90a. Asked once.
#pragma once

namespace hotset::kernels::cuda {

[[nodiscard]] bool is_hopper();

// Throws CudaError that names `what` where is_hopper() is false.
void require_hopper(const char* what);

}  // namespace hotset::kernels::cuda
