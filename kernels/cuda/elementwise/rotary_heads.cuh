// Norm and rotary embedding of one head by a few lanes of a warp: 8 lanes up to 64 channels, 16 up to 128, else 32.
// Different heads of a warp need not do the same. A head is staged in shared memory, so any width and rotary part goes.
// In float32; up to 512 channels the sum of squares is that of launch_rms_norm, bit for bit.
#pragma once

#include "kernels/cuda/elementwise/row_groups.cuh"

namespace hotset::kernels::cuda {

// Sine and cosine of position * frequency. The angle is turned into half turns in two parts, of which whole turns are
// taken away exactly: no slow path for large angles, and nothing lost below 2^31.
__device__ inline float2 cos_sin(std::int64_t position, float frequency) {
  constexpr double kInversePi = 0.31830988618379067;
  constexpr double kInversePiRest = -1.9678676675182486e-17;  // 1/pi less the number above
  const double angle = static_cast<double>(position) * static_cast<double>(frequency);
  const double high = __dmul_rn(angle, kInversePi);
  const double low = __fma_rn(angle, kInversePi, -high) + angle * kInversePiRest;
  double sine = 0;
  double cosine = 0;
  sincospi(high - 2.0 * rint(high * 0.5) + low, &sine, &cosine);
  return {static_cast<float>(cosine), static_cast<float>(sine)};
}

// The rotary part of a head: channels [begin, begin + 2 half), pairs (c, c + half).
struct RotaryPart {
  const float* inv_freq;  // [half]
  std::int32_t begin, half;
  float attention_factor;
};

// Floats of shared memory that a head's lanes need: the head in groups of 8, then cosines and sines.
[[nodiscard]] inline std::int64_t rotary_head_floats(std::int64_t head_dim, std::int64_t half) {
  return groups_of(head_dim) * kGroup + 2 * groups_of(half) * kGroup;
}

// body(std::integral_constant<int, lanes>)
template <class Body>
void with_head_lanes(std::int64_t head_dim, const Body& body) {
  if (head_dim <= 64) return body(std::integral_constant<int, 8>{});
  if (head_dim <= 128) return body(std::integral_constant<int, 16>{});
  body(std::integral_constant<int, 32>{});
}

// One object for each thread. Its methods are for all lanes of the head together.
template <int kLanes>
struct HeadLanes {
  static constexpr std::int32_t kStep = kLanes * kGroup;  // channels that the lanes hold at one time
  int lane;
  unsigned mask;
  float* values;   // [head in groups]
  float* cosines;  // [half in groups], then sines
  std::int32_t half_groups;

  __device__ HeadLanes(float* memory, std::int64_t head_dim, std::int32_t half)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        mask(kLanes == 32 ? 0xffffffffU : ((1U << (kLanes % 32)) - 1U) << (threadIdx.x % 32 / kLanes * kLanes)),
        values(memory),
        cosines(memory + (head_dim + kGroup - 1) / kGroup * kGroup),
        half_groups((half + kGroup - 1) / kGroup) {}

  __device__ float sum(float value) const {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(mask, value, step);
    return value;
  }
  __device__ void sync() const { __syncwarp(mask); }
  [[nodiscard]] __device__ std::int32_t first_channel() const { return lane * kGroup; }

  // Cosines and sines of the position. Done when load_head has returned.
  __device__ void turn_to(std::int64_t position, const RotaryPart& part) const {
    float* const sines = cosines + half_groups * kGroup;
    for (std::int32_t c = lane; c < half_groups * kGroup; c += kLanes) {
      const float2 pair = c < part.half ? cos_sin(position, part.inv_freq[c]) : float2{0.0F, 0.0F};
      cosines[c] = __fmul_rn(pair.x, part.attention_factor);
      sines[c] = __fmul_rn(pair.y, part.attention_factor);
    }
  }

  // The lane's first group of a head, to be on its way while other things are computed.
  template <bool kAligned, class T>
  __device__ Group first_group(const T* x, std::int32_t head_dim) const {
    Group group{};
    if (first_channel() < head_dim) group = load_group<kAligned>(x, first_channel(), head_dim);
    return group;
  }

  // The head, with its norm where it has a weight, into `values`. `first`: first_group of it.
  template <bool kAligned, class T>
  __device__ void load_head(const T* x, const Group& first, std::int32_t head_dim, const float* weight, float epsilon,
                            float* into) const {
    float squares = 0.0F;
    for (std::int32_t at = first_channel(); at < head_dim; at += kStep) {
      const Group group = at < kStep ? first : load_group<kAligned>(x, at, head_dim);
      squares = square_sum(squares, group);
      store_group<true>(into, at, head_dim, group);
    }
    if (weight != nullptr) {
      const float factor = norm_factor(sum(squares), head_dim, epsilon);
      for (std::int32_t at = first_channel(); at < head_dim; at += kStep) {
        Group group = load_group<true>(into, at, head_dim);
        const Group weights = load_group<kAligned>(weight, at, head_dim);
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          group.values[i] = __fmul_rn(__fmul_rn(group.values[i], factor), weights.values[i]);
        }
        store_group<true>(into, at, head_dim, group);
      }
    }
    sync();
  }

  // The lane's group of 8 channels from `at`, rotated.
  __device__ Group rotated(std::int32_t at, const RotaryPart& part) const {
    Group group = load_group<true>(values, at, at + kGroup);
    const float* const sines = cosines + half_groups * kGroup;
    const std::int32_t from = at - part.begin;
    if (part.half % kGroup == 0 && part.begin % kGroup == 0) {
      if (from < 0 || from >= 2 * part.half) return group;
      const bool lower = from < part.half;
      const std::int32_t pair = lower ? from : from - part.half;
      const Group other = load_group<true>(values, lower ? at + part.half : at - part.half, 0);
      const Group cosine = load_group<true>(cosines, pair, 0);
      const Group sine = load_group<true>(sines, pair, 0);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        group.values[i] = turned(group.values[i], other.values[i], cosine.values[i], sine.values[i], lower);
      }
      return group;
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const std::int32_t c = from + i;
      if (c < 0 || c >= 2 * part.half) continue;
      const bool lower = c < part.half;
      const std::int32_t pair = lower ? c : c - part.half;
      const float other = values[part.begin + (lower ? c + part.half : pair)];
      group.values[i] = turned(group.values[i], other, cosines[pair], sines[pair], lower);
    }
    return group;
  }

  __device__ static float turned(float own, float other, float cosine, float sine, bool lower) {
    const float product = __fmul_rn(other, sine);
    return __fmaf_rn(own, cosine, lower ? -product : product);
  }
};

}  // namespace hotset::kernels::cuda
