#include "kernels/cuda/prefill/warpgroup_form.cuh"

namespace hotset::kernels::cuda {

void launch_warpgroup_64(const PrefillArgs& args, Stream stream) { launch_warpgroup_kernel<1, 1, false>(args, stream); }

}  // namespace hotset::kernels::cuda
