// The bytes are those of core/kv_metadata_format.cpp.
#include "core/check.h"
#include "kernels/cuda/attention/row_encoding.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/metadata_encoding.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr unsigned kAll = 0xffffffffU;

__device__ MetadataPlace place_of(const StoreMetadataDeviceParams& params, std::int64_t row) {
  return metadata_place(params.target, params.geometry.page_bytes(), row);
}

__device__ float key_at(const StoreMetadataDeviceParams& params, std::int64_t row, std::int64_t channel) {
  const std::int64_t at = row * params.stride + channel;
  if (!params.keys_are_bf16) return static_cast<const float*>(params.keys)[at];
  return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(params.keys)[at]} << 16);
}

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
    bits = max(bits, magnitude_bits(x[i]));
  }
  const Fp8Group scaled(__reduce_max_sync(kAll, bits));
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int channel = group * static_cast<int>(kFp8ScaleChannels) + i * 32 + lane;
    if (channel < dim) codes[channel] = scaled.code(x[i]);
  }
  if (lane == 0) scale_out[group] = scaled.scale;
}

// Block: a row.
__global__ void __launch_bounds__(kThreads) index_keys_kernel(const StoreMetadataDeviceParams params) {
  const std::int64_t row = blockIdx.x;
  const auto [base, offset] = place_of(params, row);
  if (base == nullptr) return;
  const MetadataGeometry& geometry = params.geometry;
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
      reinterpret_cast<std::uint16_t*>(to)[channel] = round_to_bf16(value);
    }
  }
}

constexpr int kBasisTile = 4096;  // floats of the basis in shared memory

// Block: (row, KV head). The basis comes tile by tile, so that all threads load; sums go over channels in ascending
// order, as the CPU's.
__global__ void __launch_bounds__(kThreads) low_rank_kernel(const StoreMetadataDeviceParams params) {
  __shared__ float x[kMostLowRank];
  __shared__ float tile[kBasisTile];
  __shared__ float keys[kBasisTile / 2];
  const std::int64_t row = blockIdx.x;
  const auto kv_head = static_cast<std::int64_t>(blockIdx.y);
  const MetadataPlace place = place_of(params, row);
  if (place.page == nullptr) return;
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
  if (thread < 32) write_low_rank_key(geometry, place, kv_head, x, thread);
}

// Block: (row, part of the channels); the first row of a page takes all rows of the page, in order.
__global__ void __launch_bounds__(kThreads) bounds_kernel(const StoreMetadataDeviceParams params) {
  const std::int64_t first = blockIdx.x;
  std::byte* const page = place_of(params, first).page;
  if (page == nullptr) return;
  const bool one_sequence = params.target.page_stride == 0;
  if (one_sequence && first > 0 && place_of(params, first - 1).page == page) return;
  const MetadataGeometry& geometry = params.geometry;
  const std::int64_t width = std::int64_t{geometry.kv_heads} * geometry.dim;
  const std::int64_t channel = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (channel >= width) return;
  const std::int64_t head = channel / geometry.dim;
  const bool wide = geometry.bounds_bytes() == 4;
  for (std::int64_t row = first; row < params.rows; ++row) {
    const MetadataPlace place = place_of(params, row);
    if (place.page != page) break;
    const float key = key_at(params, row, channel);
    const bool starts = place.offset % geometry.block_tokens == 0;
    const std::int64_t minimum = first_bound(geometry, place.offset, head) + channel % geometry.dim;
    const std::int64_t maximum = minimum + geometry.dim;
    // fmin and fmax leave NaN out.
    if (wide) {
      auto* const bounds = reinterpret_cast<float*>(page);
      bounds[minimum] = starts ? key : fminf(bounds[minimum], key);
      bounds[maximum] = starts ? key : fmaxf(bounds[maximum], key);
    } else {
      auto* const bounds = reinterpret_cast<std::uint16_t*>(page);
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
      HS_CHECK(geometry.rank % 2 == 0 && geometry.rank <= kMostLowRank, "the rank is odd or too large");
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
