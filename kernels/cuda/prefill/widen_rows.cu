// FP8 rows of a piece as bf16 rows: bytes of the piece once, against all its queries' products.
#include "kernels/cuda/attention/tensor_core.cuh"
#include "kernels/cuda/prefill/prefill_args.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A block for every row of whole pairs of tiles. What lies behind the newest position becomes zeros, scales too.
__global__ void __launch_bounds__(kThreads) widen_rows(const PrefillArgs args, std::byte* rows, float* key_scales,
                                                       float* value_scales, std::int64_t scale_stride) {
  const std::int64_t at = blockIdx.x;
  const std::int64_t position = args.first_tile * kPageTokens + at;
  const bool present = position < args.first_position + args.rows && position < args.end_tile * kPageTokens;
  const RowView& view = args.view;
  const std::byte* from = args.pool;
  if (present) {
    const std::int64_t page = tile_page(args, position / kPageTokens);
    from += (page * kPageTokens + position % kPageTokens) * view.row_bytes;
  }
  const int units = view.kv_heads * (view.key_dim + view.value_dim) / 16;
  auto* const to = reinterpret_cast<uint4*>(rows) + at * units * 2;
  for (int i = static_cast<int>(threadIdx.x); i < units; i += kThreads) {
    uint4 out[2] = {};
    if (present) {
      const uint4 codes = reinterpret_cast<const uint4*>(from)[i];
      e4m3_to_bf16(codes.x, out[0].x, out[0].y);
      e4m3_to_bf16(codes.y, out[0].z, out[0].w);
      e4m3_to_bf16(codes.z, out[1].x, out[1].y);
      e4m3_to_bf16(codes.w, out[1].z, out[1].w);
    }
    to[2 * i] = out[0];
    to[2 * i + 1] = out[1];
  }
  for (int head = static_cast<int>(threadIdx.x); head < view.kv_heads; head += kThreads) {
    const std::byte* const scales = from + 4 * head;
    key_scales[head * scale_stride + at] =
        present ? *reinterpret_cast<const float*>(scales + view.key_scales_offset) : 0.0F;
    value_scales[head * scale_stride + at] =
        present ? *reinterpret_cast<const float*>(scales + view.value_scales_offset) : 0.0F;
  }
}

}  // namespace

void launch_widen_rows(const PrefillArgs& args, std::byte* rows, float* key_scales, float* value_scales,
                       std::int64_t scale_stride, Stream stream) {
  const std::int64_t count = round_up(args.end_tile - args.first_tile, kPrefillPieceTiles) * kPageTokens;
  if (count <= 0) return;
  widen_rows<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(args, rows, key_scales, value_scales, scale_stride);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
