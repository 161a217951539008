// A warp routes a row: lane l holds the experts l, l + 32, ... in registers. Choices compare by order_key(), those that
// are taken or may not be taken have key 0.
#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts/exponential.cuh"
#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/route.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = kMostRoutedExperts / 32;
constexpr unsigned kAll = 0xffffffffU;
constexpr float kMinusInfinity = -INFINITY;

__device__ const std::uint64_t kPowersOfTwo[32] = {
    0x3ff0000000000000, 0x3fefd9b0d3158574, 0x3fefb5586cf9890f, 0x3fef9301d0125b51, 0x3fef72b83c7d517b,
    0x3fef54873168b9aa, 0x3fef387a6e756238, 0x3fef1e9df51fdee1, 0x3fef06fe0a31b715, 0x3feef1a7373aa9cb,
    0x3feedea64c123422, 0x3feece086061892d, 0x3feebfdad5362a27, 0x3feeb42b569d4f82, 0x3feeab07dd485429,
    0x3feea47eb03a5585, 0x3feea09e667f3bcd, 0x3fee9f75e8ec5f74, 0x3feea11473eb0187, 0x3feea589994cce13,
    0x3feeace5422aa0db, 0x3feeb737b0cdc5e5, 0x3feec49182a3f090, 0x3feed503b23e255d, 0x3feee89f995ad3ad,
    0x3feeff76f2fb5e47, 0x3fef199bdd85529c, 0x3fef3720dcef9069, 0x3fef5818dcfba487, 0x3fef7c97337b9b5f,
    0x3fefa4afa2a490da, 0x3fefd0765b6e4540};

struct Shared {  // of a warp
  std::uint64_t powers[32];
  float scores[kMostRoutedExperts];
  float choices[kMostRoutedExperts];
  float group_scores[kMostRoutedExperts];
  std::uint32_t kept_groups[kMostRoutedExperts / 32];  // a bit each
  std::int32_t ids[kMostRoutedExperts];
};

__device__ __forceinline__ float number_or_minus_infinity(float x) { return isnan(x) ? kMinusInfinity : x; }

__device__ void sigmoid_scores(Shared& shared, const float* logits, int experts, int lane) {
  for (int i = lane; i < experts; i += 32) {
    const float power = library_exponential(-number_or_minus_infinity(logits[i]), shared.powers);
    shared.scores[i] = __fdiv_rn(1.0F, __fadd_rn(1.0F, power));
  }
}

__device__ void softmax_scores(Shared& shared, const float* logits, int experts, int lane) {
  float max = kMinusInfinity;
  for (int i = lane; i < experts; i += 32) max = fmaxf(max, number_or_minus_infinity(logits[i]));
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(kAll, max, step));
  for (int i = lane; i < experts; i += 32) {
    const float logit = number_or_minus_infinity(logits[i]);
    // Infinity minus itself is NaN; which exponential that has does not matter: it is NaN.
    const float distance = logit - max;
    shared.scores[i] = logit == kMinusInfinity ? 0.0F
                       : isnan(distance)       ? distance
                                               : library_exponential(distance, shared.powers);
  }
  __syncwarp();
  float sum = 0.0F;  // in the order of the experts, by every lane
#pragma unroll 8
  for (int i = 0; i < experts; ++i) sum = __fadd_rn(sum, shared.scores[i]);
  __syncwarp();
  if (sum == 0.0F) return;
  for (int i = lane; i < experts; i += 32) shared.scores[i] = __fdiv_rn(shared.scores[i], sum);
}

// Key 0 for entries from `count` on.
__device__ void load_keys(std::uint32_t (&keys)[kPerLane], const float* values, int count, int lane) {
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int i = 32 * j + lane;
    keys[j] = i < count ? order_key(values[i]) : 0;
  }
}

// The `wanted` largest keys, ties to the lower entry. Returns the lane's: bit j for entry 32 j + lane.
__device__ std::uint32_t take_largest(std::uint32_t (&keys)[kPerLane], int wanted, int lane) {
  std::uint32_t taken = 0;
  for (int round = 0; round < wanted; ++round) {
    std::uint32_t best = 0;
    int at = kPerLane;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (keys[j] > best) {
        best = keys[j];
        at = j;
      }
    }
    const std::uint32_t largest = __reduce_max_sync(kAll, best);
    if (largest == 0) return taken;
    const unsigned mine = best == largest ? static_cast<unsigned>(32 * at + lane) : kAll;
    const unsigned first = __reduce_min_sync(kAll, mine);
    if (mine != first) continue;
    taken |= 1U << at;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (j == at) keys[j] = 0;
    }
  }
  return taken;
}

// Sum of the two best choices of each group, or its best one; NaN counts as minus infinity. `lanes` lanes take a group,
// as many groups at once as there is room for.
__device__ void score_groups(Shared& shared, const RouteParams& params, int width, int lane) {
  int lanes = 32;
  while (lanes > 1 && lanes * params.groups > 32) lanes /= 2;
  for (int base = 0; base < params.groups; base += 32 / lanes) {
    const int group = base + lane / lanes;
    float best = kMinusInfinity;
    float second = kMinusInfinity;
    for (int i = lane % lanes; i < width && group < params.groups; i += lanes) {
      const float choice = number_or_minus_infinity(shared.choices[group * width + i]);
      second = fmaxf(second, fminf(best, choice));
      best = fmaxf(best, choice);
    }
    for (int step = lanes / 2; step > 0; step /= 2) {
      const float other_best = __shfl_xor_sync(kAll, best, step);
      const float other_second = __shfl_xor_sync(kAll, second, step);
      second = fmaxf(fmaxf(second, other_second), fminf(best, other_best));
      best = fmaxf(best, other_best);
    }
    const bool one = params.group_by_best || width == 1;
    if (group < params.groups && lane % lanes == 0) shared.group_scores[group] = one ? best : __fadd_rn(best, second);
  }
  __syncwarp();
}

// Leaves keys to the experts of the groups that stay.
__device__ void keep_groups(Shared& shared, std::uint32_t (&keys)[kPerLane], const RouteParams& params, int lane) {
  const int width = params.experts / params.groups;
  score_groups(shared, params, width, lane);
  std::uint32_t group_keys[kPerLane];
  load_keys(group_keys, shared.group_scores, params.groups, lane);
  const std::uint32_t kept = take_largest(group_keys, params.top_groups, lane);
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const std::uint32_t word = __ballot_sync(kAll, (kept >> j & 1U) != 0);
    if (lane == 0) shared.kept_groups[j] = word;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const int group = (32 * j + lane) / width;
    if (keys[j] != 0 && (shared.kept_groups[group / 32] >> (group % 32) & 1U) == 0) keys[j] = 0;
  }
}

__device__ void route_row(Shared& shared, const RouteParams& params, std::int64_t row, int lane) {
  const float* const logits = params.logits + row * params.experts;
  if (params.softmax) {
    softmax_scores(shared, logits, params.experts, lane);
  } else {
    sigmoid_scores(shared, logits, params.experts, lane);
  }
  for (int i = lane; i < params.experts; i += 32) {
    const float choice = params.bias == nullptr ? shared.scores[i] : __fadd_rn(shared.scores[i], params.bias[i]);
    shared.choices[i] = isnan(logits[i]) ? kMinusInfinity : choice;
  }
  __syncwarp();
  std::uint32_t keys[kPerLane];
  load_keys(keys, shared.choices, params.experts, lane);
  if (params.top_groups < params.groups) keep_groups(shared, keys, params, lane);
  const std::uint32_t taken = take_largest(keys, params.per_token, lane);
  std::int32_t* const ids = params.ids + row * params.per_token;
  int before = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const bool mine = (taken >> j & 1U) != 0;
    const unsigned all = __ballot_sync(kAll, mine);
    const int place = before + __popc(all & ((1U << lane) - 1U));
    if (mine) {
      shared.ids[place] = 32 * j + lane;
      ids[place] = 32 * j + lane;
    }
    before += __popc(all);
  }
  __syncwarp();
  float sum = 0.0F;
  for (int i = 0; i < params.per_token; ++i) sum = __fadd_rn(sum, shared.scores[shared.ids[i]]);
  const float divisor = params.normalised ? __fadd_rn(sum, 1e-20F) : 1.0F;
  for (int i = lane; i < params.per_token; i += 32) {
    params.weights[row * params.per_token + i] =
        __fmul_rn(__fdiv_rn(shared.scores[shared.ids[i]], divisor), params.scaling_factor);
  }
}

__global__ void __launch_bounds__(32 * kWarps) route_kernel(const RouteParams params) {
  follow_kernels_before();
  __shared__ Shared shared[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + warp;
  if (row >= params.rows) return;
  shared[warp].powers[lane] = kPowersOfTwo[lane];
  __syncwarp();
  route_row(shared[warp], params, row, lane);
}

}  // namespace

void launch_route(const RouteParams& params, Stream stream) {
  if (params.rows <= 0) return;
  HS_CHECK(params.experts >= 1 && params.experts <= kMostRoutedExperts, "so many experts can be routed to");
  HS_CHECK(params.groups >= 1 && params.experts % params.groups == 0, "groups divide the experts");
  HS_CHECK(params.top_groups >= 1 && params.top_groups <= params.groups &&
               params.per_token <= params.top_groups * (params.experts / params.groups),
           "the groups that stay hold enough experts");
  const auto blocks = static_cast<unsigned>((params.rows + kWarps - 1) / kWarps);
  launch_dependent(route_kernel, blocks, 32 * kWarps, 0, 0, stream, params);
}

}  // namespace hotset::kernels::cuda
