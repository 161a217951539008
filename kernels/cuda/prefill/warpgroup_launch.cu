// Chooses the kernel of a width.
#include "kernels/cuda/prefill/prefill_args.cuh"

namespace hotset::kernels::cuda {

void launch_warpgroup_64(const PrefillArgs& args, Stream stream);
void launch_warpgroup_128(const PrefillArgs& args, Stream stream);
void launch_warpgroup_192(const PrefillArgs& args, Stream stream);
void launch_warpgroup_128_scaled(const PrefillArgs& args, Stream stream);

void launch_warpgroup_prefill(const PrefillArgs& args, Stream stream) {
  if (args.key_scales != nullptr) return launch_warpgroup_128_scaled(args, stream);
  if (args.view.key_dim > 128) return launch_warpgroup_192(args, stream);
  if (args.view.key_dim > 64 || args.view.value_dim > 64) return launch_warpgroup_128(args, stream);
  launch_warpgroup_64(args, stream);
}

}  // namespace hotset::kernels::cuda
