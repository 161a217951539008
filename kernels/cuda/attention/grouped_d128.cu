#include "kernels/cuda/attention/grouped.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_attention_128(const AttentionArgs& args, Stream stream) { launch_grouped_width<128>(args, stream); }

}  // namespace hotset::kernels::cuda
