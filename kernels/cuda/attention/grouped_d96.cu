#include "kernels/cuda/attention/grouped.cuh"

namespace hotset::kernels::cuda {

void launch_grouped_attention_96(const AttentionArgs& args, Stream stream) { launch_grouped_width<96>(args, stream); }

}  // namespace hotset::kernels::cuda
