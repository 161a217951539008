// GroupedGemm with rows and weights in float32, or in bfloat16 where there are no Hopper tensor cores: any widths that
// are multiples of 16, one accumulator for each sum, in ascending k. No scales.
#pragma once

#include "kernels/cuda/experts/grouped_gemm.h"

namespace hotset::kernels::cuda {

void launch_grouped_plain(const GroupedGemm& gemm, ActivationType type, bool gated, Stream stream);

}  // namespace hotset::kernels::cuda
