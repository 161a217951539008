#include "kernels/cuda/prefill/warpgroup_form.cuh"

namespace hotset::kernels::cuda {

void launch_warpgroup_128_scaled(const PrefillArgs& args, Stream stream) {
  launch_warpgroup_kernel<2, 2, true>(args, stream);
}

}  // namespace hotset::kernels::cuda
