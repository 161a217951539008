#include "kernels/cuda/prefill/warpgroup_form.cuh"

namespace hotset::kernels::cuda {

void launch_warpgroup_192(const PrefillArgs& args, Stream stream) {
  launch_warpgroup_kernel<3, 2, false>(args, stream);
}

}  // namespace hotset::kernels::cuda
