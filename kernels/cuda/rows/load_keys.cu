// A thread takes 16 channels of a row, which share a scale and lie in one part of the row.
#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/load_keys.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 16;

struct LoadArgs {
  RowView view;
  const std::byte* pool;
  const std::int32_t* pages;
  std::int64_t first, rows;
  void* out;
  std::int64_t out_stride;
  std::int32_t units;  // of a row
};

// 16 bf16 numbers, 4-byte aligned: a latent FP8 row's rope part may lie so.
__device__ void load_bf16(const std::byte* from, float (&x)[kUnit]) {
#pragma unroll
  for (int i = 0; i < kUnit / 2; ++i) {
    const std::uint32_t two = reinterpret_cast<const std::uint32_t*>(from)[i];
    x[2 * i] = __uint_as_float(two << 16);
    x[2 * i + 1] = __uint_as_float(two & 0xffff0000U);
  }
}

__device__ void load_codes(const std::byte* from, float scale, float (&x)[kUnit]) {
  const uint4 codes = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    x[i] = e4m3_to_f32(static_cast<std::uint8_t>(words[i / 4] >> (8 * (i % 4)))) * scale;
  }
}

__device__ void load_unit(const RowView& view, const std::byte* row, int channel, float (&x)[kUnit]) {
  switch (view.dtype) {
    case KvDType::kF32:
#pragma unroll
      for (int i = 0; i < kUnit; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + 4 * (channel + i));
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
      }
      return;
    case KvDType::kBF16: load_bf16(row + 2 * channel, x); return;
    case KvDType::kFp8: break;
  }
  if (view.latent && channel >= view.value_dim) {
    load_bf16(row + view.rope_offset + 2 * (channel - view.value_dim), x);
    return;
  }
  const int head = channel / view.key_dim;
  const int group = view.latent ? channel / static_cast<int>(kFp8ScaleChannels)
                                : head * view.key_scales + channel % view.key_dim / static_cast<int>(kFp8ScaleChannels);
  load_codes(row + channel, *reinterpret_cast<const float*>(row + view.key_scales_offset + 4 * group), x);
}

template <bool kBf16Out>
__global__ void __launch_bounds__(kThreads) load_keys_kernel(const LoadArgs args) {
  const std::int64_t job = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (job >= args.rows * args.units) return;
  const std::int64_t at = job / args.units;
  const int channel = static_cast<int>(job % args.units) * kUnit;
  const std::int64_t row = args.first + at;
  const std::int64_t page = args.pages == nullptr ? row / kPageTokens : args.pages[row / kPageTokens];
  float x[kUnit];
  load_unit(args.view, args.pool + (page * kPageTokens + row % kPageTokens) * args.view.row_bytes, channel, x);
  if constexpr (kBf16Out) {
    std::uint32_t words[kUnit / 2];
#pragma unroll
    for (int i = 0; i < kUnit / 2; ++i) {
      words[i] = std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i]))} |
                 std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i + 1]))} << 16;
    }
    auto* const to = reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(args.out) + at * args.out_stride + channel);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
  } else {
    auto* const to = reinterpret_cast<float4*>(static_cast<float*>(args.out) + at * args.out_stride + channel);
#pragma unroll
    for (int i = 0; i < kUnit / 4; ++i) to[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

}  // namespace

void launch_load_keys(const DeviceLoadKeysParams& params, Stream stream) {
  if (params.last <= params.first) return;
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.key_dim % kUnit == 0 && geometry.value_dim % kUnit == 0, "channels are multiples of 16");
  const LoadArgs args{.view = row_view(geometry),
                      .pool = params.pool,
                      .pages = params.pages,
                      .first = params.first,
                      .rows = params.last - params.first,
                      .out = params.out,
                      .out_stride = params.out_stride == 0 ? geometry.key_elements() : params.out_stride,
                      .units = static_cast<std::int32_t>(geometry.key_elements() / kUnit)};
  HS_CHECK(args.out_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(params.out) % 16 == 0 &&
               reinterpret_cast<std::uintptr_t>(params.pool) % 16 == 0,
           "pool and results are aligned");
  const std::int64_t blocks = ceil_div(args.rows * args.units, kThreads);
  HS_CHECK(blocks < (std::int64_t{1} << 31), "too many rows for one launch");
  const auto kernel = params.out_type == ActivationType::kBF16 ? load_keys_kernel<true> : load_keys_kernel<false>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
