// The tensor core form of launch_index_scores(); index_scores.h is the contract.
#pragma once

#include "kernels/cuda/selection/index_scores.h"

namespace hotset::kernels::cuda {

// bf16 keys of 128 channels, 32 or 64 heads.
[[nodiscard]] bool index_scores_bf16_fits(const IndexScoresDeviceParams& params);
// At most kMostLaunchRows rows; Hopper only.
void launch_index_scores_bf16(const IndexScoresDeviceParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
