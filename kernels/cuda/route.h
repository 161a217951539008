// The router of a mixture of experts on the device; formula and contract: RouteParams (kernels/backend.h), with device
// pointers. ids and weights have the CPU's bits, ties and NaN included: the exponential is made by the steps of the C
// library (glibc), sums in the order of the CPU. With another C library a weight differs by 2^-22 at most, relative.
//
// A row's result depends on its own logits only.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/stream.h"

namespace hotset::kernels::cuda {

inline constexpr int kMostRoutedExperts = 512;

// At most kMostRoutedExperts experts; groups divide the experts and those that stay hold per_token of them.
void launch_route(const RouteParams& params, Stream stream);

}  // namespace hotset::kernels::cuda
