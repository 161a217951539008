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

// Floats of shared memory of a position's cosines and sines, each in groups of 8, and of a head with them.
[[nodiscard]] __host__ __device__ constexpr std::int64_t rotary_angle_floats(std::int64_t half) {
  return 2 * ((half + kGroup - 1) / kGroup) * kGroup;
}
[[nodiscard]] inline std::int64_t rotary_head_floats(std::int64_t head_dim, std::int64_t half) {
  return groups_of(head_dim) * kGroup + rotary_angle_floats(half);
}

// Cosine and sine of pair c, into `angles` (rotary_angle_floats).
__device__ inline void turn_pair(std::int64_t position, const RotaryPart& part, std::int32_t c, float* angles) {
  const float2 pair = cos_sin(position, part.inv_freq[c]);
  angles[c] = __fmul_rn(pair.x, part.attention_factor);
  angles[rotary_angle_floats(part.half) / 2 + c] = __fmul_rn(pair.y, part.attention_factor);
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
      : HeadLanes(memory, memory + (head_dim + kGroup - 1) / kGroup * kGroup, half) {}
  __device__ HeadLanes(float* head, float* angles, std::int32_t half)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        mask(kLanes == 32 ? 0xffffffffU : ((1U << (kLanes % 32)) - 1U) << (threadIdx.x % 32 / kLanes * kLanes)),
        values(head),
        cosines(angles),
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
#pragma unroll 1
    for (std::int32_t c = lane; c < part.half; c += kLanes) turn_pair(position, part, c, cosines);
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
#pragma unroll 1  // one turn for most widths
    for (std::int32_t at = first_channel(); at < head_dim; at += kStep) {
      const Group group = at < kStep ? first : load_group<kAligned>(x, at, head_dim);
      squares = square_sum(squares, group);
      store_group<true>(into, at, head_dim, group);
    }
    if (weight != nullptr) {
      const float factor = norm_factor(sum(squares), head_dim, epsilon);
#pragma unroll 1
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

  // Rotates what load_head has left in `values`; the cosines and sines are there. Each lane takes pairs.
  __device__ void rotate(const RotaryPart& part) const {
    if (part.half == 0) return;
    const float* const sines = cosines + half_groups * kGroup;
    float* const rotary = values + part.begin;
#pragma unroll 2
    for (std::int32_t c = lane; c < part.half; c += kLanes) {
      const float a = rotary[c];
      const float b = rotary[c + part.half];
      rotary[c] = __fmaf_rn(a, cosines[c], -__fmul_rn(b, sines[c]));
      rotary[c + part.half] = __fmaf_rn(b, cosines[c], __fmul_rn(a, sines[c]));
    }
    sync();
  }
};

}  // namespace hotset::kernels::cuda
