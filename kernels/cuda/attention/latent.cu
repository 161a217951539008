#include "kernels/cuda/attention/latent.cuh"

namespace hotset::kernels::cuda {

void launch_latent_attention(const AttentionArgs& args, Stream stream) {
  const int head_blocks = static_cast<int>(ceil_div(args.heads, kLatentHeads));
  if (args.view.dtype != KvDType::kFp8) return launch_latent_kernel<false, false>(args, head_blocks, stream);
  if (head_blocks % 2 == 0) return launch_latent_kernel<true, true>(args, head_blocks, stream);
  launch_latent_kernel<true, false>(args, head_blocks, stream);
}

}  // namespace hotset::kernels::cuda
