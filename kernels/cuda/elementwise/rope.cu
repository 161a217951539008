// A block takes a row: it computes the row's cosines and sines once, in shared memory, for all heads. Without a norm
// its threads share out the groups of pairs of all heads; with one, each warp takes a head at a time.
#include "core/check.h"
#include "kernels/cuda/elementwise/row_groups.cuh"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int32_t kMostPairs = 4096;  // their cosines and sines take 32 KiB of shared memory

// Sine and cosine of position * frequency. The angle is turned into half turns in two parts, of which whole turns are
// taken away exactly: no slow path for large angles, and nothing lost below 2^31.
__device__ float2 cos_sin(std::int64_t position, float frequency) {
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

// Pairs [at, at + 8) of a head's rotary part; factor: of the norm, with weights of the rotary part, or null.
template <bool kAligned, class T>
__device__ __forceinline__ void rotate_group(T* rotary, std::int32_t half, std::int32_t at, const float* cosines,
                                             const float* sines, const float* weights, float factor) {
  Group first = load_group<kAligned>(rotary, at, half);
  Group second = load_group<kAligned>(rotary + half, at, half);
  if (weights != nullptr) {
    const Group first_weights = load_group<kAligned>(weights, at, half);
    const Group second_weights = load_group<kAligned>(weights + half, at, half);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      first.values[i] = __fmul_rn(__fmul_rn(first.values[i], factor), first_weights.values[i]);
      second.values[i] = __fmul_rn(__fmul_rn(second.values[i], factor), second_weights.values[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float cosine = at + i < half ? cosines[at + i] : 0.0F;
    const float sine = at + i < half ? sines[at + i] : 0.0F;
    const float a = first.values[i];
    const float b = second.values[i];
    first.values[i] = __fmaf_rn(a, cosine, -__fmul_rn(b, sine));
    second.values[i] = __fmaf_rn(b, cosine, __fmul_rn(a, sine));
  }
  store_group<kAligned>(rotary, at, half, first);
  store_group<kAligned>(rotary + half, at, half, second);
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) rope_kernel(const RopeDeviceParams params) {
  extern __shared__ float table[];  // [2][half]
  const std::int64_t position = params.positions[blockIdx.x];
  if (position < 0) return;
  const std::int32_t half = params.rotary_dim / 2;
  float* const cosines = table;
  float* const sines = table + half;
  for (std::int32_t c = static_cast<std::int32_t>(threadIdx.x); c < half; c += kThreads) {
    const float2 pair = cos_sin(position, params.inv_freq[c]);
    cosines[c] = __fmul_rn(pair.x, params.attention_factor);
    sines[c] = __fmul_rn(pair.y, params.attention_factor);
  }
  __syncthreads();
  T* const row = static_cast<T*>(params.x) + std::int64_t{blockIdx.x} * params.row_stride;
  const std::int32_t groups = (half + kGroup - 1) / kGroup;
  if (params.norm_weight == nullptr) {
    for (std::int32_t unit = static_cast<std::int32_t>(threadIdx.x); unit < params.heads * groups; unit += kThreads) {
      const std::int32_t head = unit / groups;
      T* const rotary = row + std::int64_t{head} * params.head_dim + params.rotary_begin;
      rotate_group<kAligned>(rotary, half, (unit - head * groups) * kGroup, cosines, sines, nullptr, 1.0F);
    }
    return;
  }
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x) % 32;
  for (std::int32_t head = static_cast<std::int32_t>(threadIdx.x) / 32; head < params.heads; head += kThreads / 32) {
    T* const x = row + std::int64_t{head} * params.head_dim;
    float squares = 0.0F;
    for (std::int32_t at = lane * kGroup; at < params.head_dim; at += 32 * kGroup) {
      squares = square_sum(squares, load_group<kAligned>(x, at, params.head_dim));
    }
    // The sum's exchange also keeps every lane's reads before any lane's writes.
    const float factor = norm_factor(warp_sum(squares), params.head_dim, params.epsilon);
    __syncwarp();
    for (std::int32_t c = lane; c < params.head_dim; c += 32) {
      if (c >= params.rotary_begin && c < params.rotary_begin + params.rotary_dim) continue;
      x[c] = static_cast<T>(__fmul_rn(__fmul_rn(static_cast<float>(x[c]), factor), params.norm_weight[c]));
    }
    for (std::int32_t group = lane; group < groups; group += 32) {
      rotate_group<kAligned>(x + params.rotary_begin, half, group * kGroup, cosines, sines,
                             params.norm_weight + params.rotary_begin, factor);
    }
  }
}

}  // namespace

void launch_rope(const RopeDeviceParams& given, Stream stream) {
  RopeDeviceParams params = given;
  if (params.rows <= 0 || params.heads <= 0) return;
  if (params.row_stride == 0) params.row_stride = std::int64_t{params.heads} * params.head_dim;
  const std::int32_t half = params.rotary_dim / 2;
  HS_CHECK(params.rotary_dim >= 0 && params.rotary_dim % 2 == 0 && half <= kMostPairs, "no such rotary part");
  HS_CHECK(params.rotary_begin >= 0 && params.rotary_begin + params.rotary_dim <= params.head_dim,
           "the rotary part lies in the head");
  const bool aligned = half % kGroup == 0 && params.rotary_begin % kGroup == 0 && params.head_dim % kGroup == 0 &&
                       aligned_rows(params.x, params.type, params.row_stride) &&
                       (params.norm_weight == nullptr || aligned_rows(params.norm_weight, ActivationType::kF32, 0));
  const std::size_t shared = 2 * static_cast<std::size_t>(half) * sizeof(float);
  with_types(params.type, params.type, aligned, [&](auto value, auto same, auto is_aligned) {
    // Only the pairs of equal types occur: the others are not instantiated.
    if constexpr (std::is_same_v<decltype(value), decltype(same)>) {
      rope_kernel<decltype(value), is_aligned.value>
          <<<static_cast<unsigned>(params.rows), kThreads, shared, stream>>>(params);
    }
  });
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
