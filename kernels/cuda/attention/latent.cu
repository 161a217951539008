#include "kernels/cuda/attention/latent.cuh"

namespace hotset::kernels::cuda {

void launch_latent_attention(const AttentionArgs& args, Stream stream) {
  if (args.view.dtype == KvDType::kFp8) return launch_latent_kernel<true>(args, stream);
  return launch_latent_kernel<false>(args, stream);
}

}  // namespace hotset::kernels::cuda
