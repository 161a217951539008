// Where things lie in a row and how single numbers are decoded, on the device. Shared by the attention kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "core/fp8.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/sparse_attention.h"

namespace hotset::kernels::cuda {

// Of one geometry, in bytes; offsets of KV head 0.
struct RowView {
  KvDType dtype;
  bool latent;
  std::int32_t kv_heads, key_dim, value_dim;
  std::int32_t key_scales, value_scales;  // scales of one head's key and value
  std::int64_t row_bytes, value_offset, key_scales_offset, value_scales_offset, rope_offset;
};

inline RowView row_view(const KvGeometry& geometry) {
  return {.dtype = geometry.dtype,
          .latent = geometry.layout == KvGeometry::Layout::kLatent,
          .kv_heads = geometry.kv_heads,
          .key_dim = geometry.key_dim,
          .value_dim = geometry.value_dim,
          .key_scales = static_cast<std::int32_t>(fp8_scales(geometry.key_dim)),
          .value_scales = static_cast<std::int32_t>(fp8_scales(geometry.value_dim)),
          .row_bytes = geometry.row_bytes(),
          .value_offset = geometry.value_offset_bytes(),
          .key_scales_offset = geometry.key_scales_offset_bytes(),
          .value_scales_offset = geometry.value_scales_offset_bytes(),
          .rope_offset = geometry.rope_offset_bytes()};
}

__device__ inline float bf16_bits_to_float(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }

__device__ inline float decode_fp8_at(const std::byte* codes, const std::byte* scales, int channel) {
  const float scale = *reinterpret_cast<const float*>(scales + 4 * (channel / kFp8ScaleChannels));
  return e4m3_to_f32(static_cast<std::uint8_t>(codes[channel])) * scale;
}

__device__ inline float decode_plain_at(const std::byte* from, KvDType dtype, int channel) {
  if (dtype == KvDType::kF32) return reinterpret_cast<const float*>(from)[channel];
  return bf16_bits_to_float(reinterpret_cast<const std::uint16_t*>(from)[channel]);
}

__device__ inline float decode_key_at(const RowView& view, const std::byte* row, int kv_head, int channel) {
  if (view.dtype != KvDType::kFp8) return decode_plain_at(row, view.dtype, kv_head * view.key_dim + channel);
  if (!view.latent) {
    return decode_fp8_at(row + std::int64_t{kv_head} * view.key_dim,
                         row + view.key_scales_offset + 4 * kv_head * view.key_scales, channel);
  }
  if (channel < view.value_dim) return decode_fp8_at(row, row + view.key_scales_offset, channel);
  return decode_plain_at(row + view.rope_offset, KvDType::kBF16, channel - view.value_dim);
}

__device__ inline float decode_value_at(const RowView& view, const std::byte* row, int kv_head, int channel) {
  if (view.latent) return decode_key_at(view, row, 0, channel);
  const std::byte* const from = row + view.value_offset;
  if (view.dtype != KvDType::kFp8) return decode_plain_at(from, view.dtype, kv_head * view.value_dim + channel);
  return decode_fp8_at(from + std::int64_t{kv_head} * view.value_dim,
                       row + view.value_scales_offset + 4 * kv_head * view.value_scales, channel);
}

// Activations of either type.
__device__ inline float load_activation(const void* from, bool bf16, std::int64_t at) {
  return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]) : static_cast<const float*>(from)[at];
}
__device__ inline void store_activation(void* to, bool bf16, std::int64_t at, float value) {
  if (bf16) {
    static_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

// The parameters as the kernels take them.
struct AttentionArgs {
  RowView view;
  const void* q;
  std::int64_t q_stride;
  const std::byte* pool;
  const void* slots;
  std::int64_t slot_stride;
  const std::int32_t* counts;
  std::int64_t max_count;
  const HotRow* whole;
  const std::int32_t* lengths;
  void* out;
  std::int64_t out_stride;
  std::int64_t rows;
  std::int32_t heads;
  std::int32_t group;  // query heads of a KV head
  float scale;
  bool q_bf16, out_bf16;
  bool int64_slots;
  float* workspace;
  std::int32_t* arrivals;
  std::int32_t max_runs;  // partial results of a (row, head) in the workspace
};

__device__ inline std::int64_t list_count(const AttentionArgs& args, std::int64_t row) {
  const std::int64_t count = args.whole != nullptr ? args.lengths[row] : args.counts[row];
  return count < 0 ? 0 : count > args.max_count ? args.max_count : count;
}
__device__ inline std::int64_t list_slot(const AttentionArgs& args, std::int64_t row, std::int64_t rank) {
  const std::int64_t at = row * args.slot_stride + rank;
  return args.int64_slots ? static_cast<const std::int64_t*>(args.slots)[at]
                          : std::int64_t{static_cast<const std::int32_t*>(args.slots)[at]};
}

// Of a whole sequence; null: of a list of slots.
__device__ inline const std::int32_t* list_pages(const AttentionArgs& args, std::int64_t row) {
  return args.whole != nullptr ? args.whole[row].device_pages : nullptr;
}
__device__ inline std::int64_t list_slot(const AttentionArgs& args, std::int64_t row, const std::int32_t* pages,
                                         std::int64_t rank) {
  if (pages == nullptr) return list_slot(args, row, rank);
  return pages[rank / kPageTokens] * kPageTokens + rank % kPageTokens;
}

// A partial softmax is relative to its maximum; one without entries has the maximum -infinity, taken as 0.
inline constexpr float kLog2E = 1.44269504088896340736F;
__device__ inline float finite_or_zero(float max) { return max == -INFINITY ? 0.0F : max; }

// Joins `max`, `sum` with another partial's; the accumulators follow by acc = fma(acc, keep, other * take).
struct MergeFactors {
  float keep, take;
};
__device__ inline MergeFactors merge_sums(float& max, float& sum, float other_max, float other_sum) {
  const float joined = fmaxf(max, other_max);
  const float shift = finite_or_zero(joined);
  const MergeFactors factors{exp2f(max - shift), exp2f(other_max - shift)};
  sum = fmaf(sum, factors.keep, other_sum * factors.take);
  max = joined;
  return factors;
}

// Partial of (row, head, run) in the workspace: acc [value_dim], max, sum, 2 unused.
inline constexpr std::int64_t kPartialTail = 4;
__device__ inline float* run_partial(const AttentionArgs& args, std::int64_t row, int head, std::int64_t run) {
  return args.workspace + ((row * args.heads + head) * args.max_runs + run) * (args.view.value_dim + kPartialTail);
}

// Heads of a block of the latent form: it keeps the total of a list's runs for all of them, also those that are not
// there.
inline constexpr int kLatentBlockHeads = 64;
// From so many lists of kLatentBlockHeads heads on a block of the latent form takes a whole list and keeps such totals;
// below, each run gets a block of its own and leaves its partials.
inline constexpr std::int64_t kLatentFillingLists = 96;

void launch_plain_attention(const AttentionArgs& args, Stream stream);
void launch_latent_attention(const AttentionArgs& args, Stream stream);
// One per width, in grouped_d*.cu.
void launch_grouped_attention_64(const AttentionArgs& args, Stream stream);
void launch_grouped_attention_80(const AttentionArgs& args, Stream stream);
void launch_grouped_attention_96(const AttentionArgs& args, Stream stream);
void launch_grouped_attention_128(const AttentionArgs& args, Stream stream);

}  // namespace hotset::kernels::cuda
