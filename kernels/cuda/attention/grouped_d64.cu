#include "kernels/cuda/attention/grouped.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_attention_64(const AttentionArgs& args, Stream stream) { launch_grouped_width<64>(args, stream); }

}  // namespace hotset::kernels::cuda
