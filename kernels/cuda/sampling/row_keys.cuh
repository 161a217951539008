// The order keys (kernels/cuda/order_key.cuh) of a row's logits. Each warp has a contiguous range of ids, and the warps of
// all blocks have them in ascending order; where the keys fit, a block keeps its own in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/sampling/block_team.cuh"

namespace hotset::kernels::cuda::sampling {

inline constexpr int kStepBytes = kThreads * 16;  // kept keys of one step of all warps
inline constexpr int kLoads = 4;                  // of a thread on their way together

__device__ __forceinline__ float value_of_key(std::uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0U ? 0x80000000U : 0xffffffffU));
}

// A token as one number: higher key first, then lower id. 0 is no token.
__device__ __forceinline__ Weight order_of(std::uint32_t key, std::int32_t id) {
  return Weight{key} << 32 | (0xffffffffU - static_cast<std::uint32_t>(id));
}
__device__ __forceinline__ std::uint32_t key_of_order(Weight order) { return static_cast<std::uint32_t>(order >> 32); }
__device__ __forceinline__ std::int32_t id_of_order(Weight order) {
  return static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(order));
}

// Steps of 32 groups of four logits that a warp takes. Three more than there are may lie in the groups.
[[nodiscard]] __host__ __device__ inline std::int32_t steps_of(std::int32_t vocabulary, int blocks) {
  const std::int32_t groups = (vocabulary + 3 + 3) / 4;
  const std::int32_t warps = blocks * kWarps;
  return ((groups + 31) / 32 + warps - 1) / warps;
}

template <bool kKept>
class RowKeys {
 public:
  // `kept`: [steps_of()][kThreads], or null.
  __device__ RowKeys(const float* logits, std::int32_t vocabulary, const Team& team, uint4* kept)
      : logits_(logits), kept_(kept), vocabulary_(vocabulary) {
    before_ = static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(logits) / sizeof(float) % 4);
    const std::int32_t groups = (vocabulary + before_ + 3) / 4;
    const std::int32_t share = steps_of(vocabulary, team.size()) * 32;
    begin_ = min((team.rank() * kWarps + warp_id()) * share, groups);
    end_ = min(begin_ + share, groups);
  }

  [[nodiscard]] __device__ const float* logits() const { return logits_; }
  [[nodiscard]] __device__ std::int32_t vocabulary() const { return vocabulary_; }
  // Ids of this warp: [first_id(), end_id()).
  [[nodiscard]] __device__ std::int32_t first_id() const { return max(4 * begin_ - before_, 0); }
  [[nodiscard]] __device__ std::int32_t end_id() const { return min(4 * end_ - before_, vocabulary_); }

  // Reads the logits: visit(id, logit) for each of this warp's. Before everything else, once.
  template <class Visit>
  __device__ void load(const Visit& visit) {
    for (std::int32_t start = begin_; start < end_; start += 32 * kLoads) {
      float4 values[kLoads];
      load_groups(start, values);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const std::int32_t group = start + 32 * i + lane_id();
        if (group >= end_) break;
        if constexpr (kKept) kept_[place_of(group)] = keys_of(group, values[i]);
        const std::int32_t id = 4 * group - before_;
        const float four[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
        if (whole(id)) {
#pragma unroll
          for (int j = 0; j < 4; ++j) visit(id + j, four[j]);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (id + j >= 0 && id + j < vocabulary_) visit(id + j, four[j]);
          }
        }
      }
    }
  }

  // visit(id, key) for each of this warp's.
  template <class Visit>
  __device__ void each(const Visit& visit) const {
    if constexpr (kKept) {
      for (std::int32_t group = begin_ + lane_id(); group < end_; group += 32) {
        visit_group(group, kept_[place_of(group)], visit);
      }
    } else {
      for (std::int32_t start = begin_; start < end_; start += 32 * kLoads) {
        float4 values[kLoads];
        load_groups(start, values);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const std::int32_t group = start + 32 * i + lane_id();
          if (group < end_) visit_group(group, keys_of(group, values[i]), visit);
        }
      }
    }
  }

 private:
  [[nodiscard]] __device__ std::int32_t place_of(std::int32_t group) const {
    return (group - begin_) / 32 * kThreads + static_cast<std::int32_t>(threadIdx.x);
  }
  __device__ void load_groups(std::int32_t start, float4 (&values)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int32_t id = 4 * (start + 32 * i + lane_id()) - before_;
      if (start + 32 * i + lane_id() >= end_) continue;
      if (whole(id)) {
        values[i] = *reinterpret_cast<const float4*>(logits_ + id);
      } else {
        const auto one = [&](std::int32_t at) { return at >= 0 && at < vocabulary_ ? logits_[at] : 0.0F; };
        values[i] = {one(id), one(id + 1), one(id + 2), one(id + 3)};
      }
    }
  }
  [[nodiscard]] __device__ bool whole(std::int32_t id) const { return id >= 0 && id + 4 <= vocabulary_; }
  // 0 where no logit is.
  [[nodiscard]] __device__ uint4 keys_of(std::int32_t group, const float4& values) const {
    const std::int32_t id = 4 * group - before_;
    if (whole(id)) return {order_key(values.x), order_key(values.y), order_key(values.z), order_key(values.w)};
    const auto one = [&](int i, float x) { return id + i >= 0 && id + i < vocabulary_ ? order_key(x) : 0U; };
    return {one(0, values.x), one(1, values.y), one(2, values.z), one(3, values.w)};
  }
  template <class Visit>
  __device__ void visit_group(std::int32_t group, const uint4& keys, const Visit& visit) const {
    const std::int32_t id = 4 * group - before_;
    if (keys.x != 0) visit(id, keys.x);
    if (keys.y != 0) visit(id + 1, keys.y);
    if (keys.z != 0) visit(id + 2, keys.z);
    if (keys.w != 0) visit(id + 3, keys.w);
  }

  const float* logits_;
  uint4* kept_;
  std::int32_t vocabulary_;
  std::int32_t before_;       // places between a 16-byte boundary and the first logit
  std::int32_t begin_, end_;  // groups of this warp
};

}  // namespace hotset::kernels::cuda::sampling
