#include "kernels/cuda/prefill/warpgroup_form.cuh"

namespace hotset::kernels::cuda {

void launch_warpgroup_128(const PrefillArgs& args, Stream stream) {
  launch_warpgroup_kernel<2, 2, false>(args, stream);
}

}  // namespace hotset::kernels::cuda
