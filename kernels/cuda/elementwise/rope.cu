// Without a norm a block takes a row: it computes the row's cosines and sines once, in shared memory, for all heads,
// and its threads share out the groups of pairs. With a norm the lanes of a head do everything for a few heads of a
// row.
#include <algorithm>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/elementwise/rotary_heads.cuh"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNormThreads = 128;
constexpr std::int64_t kMostHeadsEach = 8;
constexpr std::int32_t kMostPairs = 4096;  // their cosines and sines take 32 KiB of shared memory

// Pairs [at, at + 8) of a head's rotary part.
template <bool kAligned, class T>
__device__ __forceinline__ void rotate_group(T* rotary, std::int32_t half, std::int32_t at, const float* cosines,
                                             const float* sines) {
  Group first = load_group<kAligned>(rotary, at, half);
  Group second = load_group<kAligned>(rotary + half, at, half);
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
  follow_kernels_before();
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
  for (std::int32_t unit = static_cast<std::int32_t>(threadIdx.x); unit < params.heads * groups; unit += kThreads) {
    const std::int32_t head = unit / groups;
    T* const rotary = row + std::int64_t{head} * params.head_dim + params.rotary_begin;
    rotate_group<kAligned>(rotary, half, (unit - head * groups) * kGroup, cosines, sines);
  }
}

// kLanes lanes take `each` heads of a row, one after the other.
template <class T, bool kAligned, int kLanes>
__global__ void __launch_bounds__(kNormThreads) norm_rope_kernel(const RopeDeviceParams params, std::int32_t each) {
  follow_kernels_before();
  extern __shared__ float4 memory[];
  const RotaryPart part{params.inv_freq, params.rotary_begin, params.rotary_dim / 2, params.attention_factor};
  const std::int64_t per_row = (params.heads + each - 1) / each;
  const std::int64_t unit = std::int64_t{blockIdx.x} * (kNormThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t row = unit / per_row;
  if (row >= params.rows) return;
  const auto floats = (groups_of(params.head_dim) + 2 * groups_of(part.half)) * kGroup;
  const HeadLanes<kLanes> lanes(reinterpret_cast<float*>(memory) + threadIdx.x / kLanes * floats, params.head_dim,
                                part.half);
  const auto first_head = static_cast<std::int32_t>(unit % per_row) * each;
  const std::int32_t end_head = min(first_head + each, params.heads);
  T* x = static_cast<T*>(params.x) + row * params.row_stride + std::int64_t{first_head} * params.head_dim;
  const std::int64_t position = params.positions[row];
  Group next = lanes.template first_group<kAligned>(x, params.head_dim);
  if (position < 0) return;
  lanes.turn_to(position, part);
  for (std::int32_t head = first_head; head < end_head; ++head, x += params.head_dim) {
    const Group first = next;
    if (head + 1 < end_head) next = lanes.template first_group<kAligned>(x + params.head_dim, params.head_dim);
    lanes.template load_head<kAligned>(x, first, params.head_dim, params.norm_weight, params.epsilon, lanes.values);
    lanes.rotate(part);
    for (std::int32_t at = lanes.first_channel(); at < params.head_dim; at += lanes.kStep) {
      store_group<kAligned>(x, at, params.head_dim, load_group<true>(lanes.values, at, params.head_dim));
    }
    lanes.sync();  // all have read the head
  }
}

template <class T, bool kAligned>
void launch_norm_rope(const RopeDeviceParams& params, Stream stream) {
  // So many groups of lanes fill the device; with more of them, each takes several heads of a row and shares the
  // angles.
  constexpr std::int64_t kFilling = 132 * 48;
  const std::int64_t wanted = params.rows * params.heads / kFilling;
  const auto each =
      static_cast<std::int32_t>(std::min<std::int64_t>(std::max<std::int64_t>(wanted, 1), kMostHeadsEach));
  with_head_lanes(params.head_dim, [&](auto lanes) {
    constexpr int kHeads = kNormThreads / lanes.value;
    const std::int64_t units = params.rows * ceil_div(params.heads, each);
    const auto shared =
        static_cast<std::size_t>(kHeads * rotary_head_floats(params.head_dim, params.rotary_dim / 2)) * sizeof(float);
    HS_CHECK(shared <= 48 * 1024, "the heads are too wide for a norm");
    launch_dependent(norm_rope_kernel<T, kAligned, lanes.value>, static_cast<unsigned>(ceil_div(units, kHeads)),
                     kNormThreads, shared, 0, stream, params, each);
  });
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
      if (params.norm_weight != nullptr) return launch_norm_rope<decltype(value), is_aligned.value>(params, stream);
      launch_dependent(rope_kernel<decltype(value), is_aligned.value>, static_cast<unsigned>(params.rows), kThreads,
                       shared, 0, stream, params);
    }
  });
}

}  // namespace hotset::kernels::cuda
