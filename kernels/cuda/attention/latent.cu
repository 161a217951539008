#include "kernels/cuda/attention/row_view.cuh"

namespace hotset::kernels::cuda {

void launch_latent_attention(const AttentionArgs& args, Stream stream) { launch_plain_attention(args, stream); }

}  // namespace hotset::kernels::cuda
