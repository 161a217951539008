// The bytes are those of core/kv_metadata_format.cpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/check.h"
#include "core/fp8.h"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/store_metadata.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostRank = 256;
constexpr unsigned kAll = 0xffffffffU;
constexpr float kMostCode = 7.0F;
constexpr float kMostF16 = 65504.0F;
constexpr float kTinyGroup = 0x1p-100F;
constexpr std::uint16_t kNanF16 = 0x7e00;
constexpr std::uint32_t kInfinityBits = 0x7f800000U;

// Where a row goes; page -1: nowhere.
struct Target {
  std::int64_t page, offset;
};

__device__ Target target_of(const StoreMetadataDeviceParams& params, std::int64_t row) {
  const MetadataTables& tables = params.tables;
  if (tables.positions == nullptr) return {params.pages[row], params.offsets[row]};
  const std::int64_t position = tables.positions[row];
  if (position < 0) return {-1, 0};
  const std::int64_t batch_row = tables.batch_rows == nullptr ? row : tables.batch_rows[row];
  return {tables.pages[batch_row * tables.page_stride + position / kPageTokens], position % kPageTokens};
}

__device__ float key_at(const StoreMetadataDeviceParams& params, std::int64_t row, std::int64_t channel) {
  const std::int64_t at = row * params.stride + channel;
  if (!params.keys_are_bf16) return static_cast<const float*>(params.keys)[at];
  return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(params.keys)[at]} << 16);
}

__device__ std::uint16_t bf16_nearest(float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffU) > kInfinityBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}
// By bits: the sign of NaN stays as on the CPU.
__device__ std::uint16_t bf16_below(std::uint32_t bits) {
  if ((bits & 0x7fffffffU) > kInfinityBits) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  const bool away_from_zero = bits >> 31 != 0 && (bits & 0xffffU) != 0;
  return static_cast<std::uint16_t>((bits >> 16) + (away_from_zero ? 1U : 0U));
}
__device__ std::uint16_t bf16_below(float value) { return bf16_below(__float_as_uint(value)); }
__device__ std::uint16_t bf16_above(float value) { return bf16_below(__float_as_uint(value) ^ 0x80000000U) ^ 0x8000U; }

// A warp takes a group of 128 channels of one key.
__device__ void encode_fp8_group(const StoreMetadataDeviceParams& params, std::int64_t row, int group,
                                 std::uint8_t* codes, float* scale_out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kPerLane = static_cast<int>(kFp8ScaleChannels) / 32;
  const int dim = params.geometry.dim;
  float x[kPerLane];
  std::uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int channel = group * static_cast<int>(kFp8ScaleChannels) + i * 32 + lane;
    x[i] = channel < dim ? key_at(params, row, channel) : 0.0F;
    bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffU);
  }
  bits = __reduce_max_sync(kAll, bits);  // magnitudes compare like their bits; infinity and NaN are the largest
  const float largest = __uint_as_float(bits);
  const bool finite = bits < kInfinityBits;
  const bool tiny = finite && largest < kTinyGroup;
  const float scale = !finite ? __uint_as_float(0x7fc00000U) : tiny ? 0.0F : __fdiv_rn(largest, kE4m3Max);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int channel = group * static_cast<int>(kFp8ScaleChannels) + i * 32 + lane;
    if (channel >= dim) continue;
    codes[channel] = !finite ? std::uint8_t{0x7f} : tiny ? std::uint8_t{0} : f32_to_e4m3(__fdiv_rn(x[i], scale));
  }
  if (lane == 0) scale_out[group] = scale;
}

// Block: a row.
__global__ void __launch_bounds__(kThreads) index_keys_kernel(const StoreMetadataDeviceParams params) {
  const std::int64_t row = blockIdx.x;
  const auto [page, offset] = target_of(params, row);
  if (page < 0) return;
  const MetadataGeometry& geometry = params.geometry;
  std::byte* const base = params.pool + page * geometry.page_bytes();
  std::byte* const to = base + offset * geometry.dim * kv_dtype_bytes(geometry.dtype);
  if (geometry.dtype == KvDType::kFp8) {
    const auto groups = static_cast<int>(fp8_scales(geometry.dim));
    auto* const scales = reinterpret_cast<float*>(base + kPageTokens * geometry.dim) + offset * groups;
    for (int group = static_cast<int>(threadIdx.x) / 32; group < groups; group += kThreads / 32) {
      encode_fp8_group(params, row, group, reinterpret_cast<std::uint8_t*>(to), scales);
    }
    return;
  }
  for (int channel = static_cast<int>(threadIdx.x); channel < geometry.dim; channel += kThreads) {
    const float value = key_at(params, row, channel);
    if (geometry.dtype == KvDType::kF32) {
      reinterpret_cast<float*>(to)[channel] = value;
    } else {
      reinterpret_cast<std::uint16_t*>(to)[channel] = bf16_nearest(value);
    }
  }
}

constexpr int kBasisTile = 4096;  // floats of the basis in shared memory

// Block: (row, KV head). The basis comes tile by tile, so that all threads load; sums go over channels in ascending
// order, as the CPU's.
__global__ void __launch_bounds__(kThreads) low_rank_kernel(const StoreMetadataDeviceParams params) {
  __shared__ float x[kMostRank];
  __shared__ float tile[kBasisTile];
  __shared__ float keys[kBasisTile / 2];
  const std::int64_t row = blockIdx.x;
  const auto kv_head = static_cast<std::int64_t>(blockIdx.y);
  const auto [page, offset] = target_of(params, row);
  if (page < 0) return;
  const MetadataGeometry& geometry = params.geometry;
  const int rank = geometry.rank;
  const float* const basis = params.basis + kv_head * geometry.dim * rank;
  const int thread = static_cast<int>(threadIdx.x);
  const int channels = kBasisTile / rank;  // of a tile
  for (int i = thread; i < rank; i += kThreads) x[i] = 0.0F;
  for (int first = 0; first < geometry.dim; first += channels) {
    const int count = min(channels, geometry.dim - first);
    __syncthreads();  // the tile before is done with
    for (int i = thread; i < count * rank; i += kThreads) tile[i] = basis[std::int64_t{first} * rank + i];
    for (int c = thread; c < count; c += kThreads) keys[c] = key_at(params, row, kv_head * geometry.dim + first + c);
    __syncthreads();
    for (int i = thread; i < rank; i += kThreads) {
      float sum = x[i];
#pragma unroll 8
      for (int c = 0; c < count; ++c) sum = fmaf(keys[c], tile[c * rank + i], sum);
      x[i] = sum;
    }
  }
  __syncthreads();
  std::uint32_t bits = 0;
  for (int i = 0; i < rank; ++i) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffU);
  const bool nan = bits > kInfinityBits;
  const float wanted = fminf(__fdiv_rn(__uint_as_float(bits), kMostCode), kMostF16);
  const std::uint16_t scale = nan ? kNanF16 : __half_as_ushort(__float2half_rn(wanted));
  const float divisor = __half2float(__ushort_as_half(scale));
  const auto code = [&](float value) {
    if (nan || divisor == 0.0F) return 8U;
    const float rounded = rintf(__fdiv_rn(value, divisor));
    return static_cast<unsigned>(fminf(fmaxf(rounded, -kMostCode), kMostCode) + 8.0F);
  };
  std::byte* const part = params.pool + page * geometry.page_bytes() + kv_head * geometry.low_rank_head_bytes();
  auto* const codes = reinterpret_cast<std::uint8_t*>(part) + offset * (rank / 2);
  for (int i = static_cast<int>(threadIdx.x); i < rank / 2; i += kThreads) {
    codes[i] = static_cast<std::uint8_t>(code(x[2 * i]) | code(x[2 * i + 1]) << 4);
  }
  if (threadIdx.x == 0) reinterpret_cast<std::uint16_t*>(part + kPageTokens * (rank / 2))[offset] = scale;
}

// Block: (row, part of the channels); the first row of a page takes all rows of the page, in order.
__global__ void __launch_bounds__(kThreads) bounds_kernel(const StoreMetadataDeviceParams params) {
  const std::int64_t first = blockIdx.x;
  const std::int64_t page = target_of(params, first).page;
  if (page < 0 || (first > 0 && target_of(params, first - 1).page == page)) return;
  const MetadataGeometry& geometry = params.geometry;
  const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
  const std::int64_t channel = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (channel >= width) return;
  const std::int64_t head = channel / geometry.dim;
  const bool wide = geometry.bounds_bytes() == 4;
  std::byte* const base = params.pool + page * geometry.page_bytes();
  for (std::int64_t row = first; row < params.rows; ++row) {
    const Target target = target_of(params, row);
    if (target.page != page) break;
    const std::int64_t offset = target.offset;
    const float key = key_at(params, row, channel);
    const bool starts = offset % geometry.block_tokens == 0;
    const std::int64_t minimum =
        (offset / geometry.block_tokens * geometry.kv_heads + head) * 2 * geometry.dim + channel % geometry.dim;
    const std::int64_t maximum = minimum + geometry.dim;
    // fmin and fmax leave NaN out.
    if (wide) {
      auto* const bounds = reinterpret_cast<float*>(base);
      bounds[minimum] = starts ? key : fminf(bounds[minimum], key);
      bounds[maximum] = starts ? key : fmaxf(bounds[maximum], key);
    } else {
      auto* const bounds = reinterpret_cast<std::uint16_t*>(base);
      const auto known = [&](std::int64_t at) { return __uint_as_float(std::uint32_t{bounds[at]} << 16); };
      bounds[minimum] = bf16_below(starts ? key : fminf(known(minimum), key));
      bounds[maximum] = bf16_above(starts ? key : fmaxf(known(maximum), key));
    }
  }
}

}  // namespace

void launch_store_metadata(const StoreMetadataDeviceParams& params, Stream stream) {
  const MetadataGeometry& geometry = params.geometry;
  if (params.rows <= 0) return;
  const auto rows = static_cast<unsigned>(params.rows);
  switch (geometry.kind) {
    case MetadataGeometry::Kind::kNone: return;
    case MetadataGeometry::Kind::kIndexKeys: index_keys_kernel<<<rows, kThreads, 0, stream>>>(params); break;
    case MetadataGeometry::Kind::kLowRankKeys:
      HS_CHECK(geometry.rank % 2 == 0 && geometry.rank <= kMostRank, "the rank is odd or too large");
      low_rank_kernel<<<dim3(rows, static_cast<unsigned>(geometry.kv_heads)), kThreads, 0, stream>>>(params);
      break;
    case MetadataGeometry::Kind::kBlockBounds: {
      const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
      bounds_kernel<<<dim3(rows, static_cast<unsigned>(ceil_div(width, kThreads))), kThreads, 0, stream>>>(params);
      break;
    }
  }
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
