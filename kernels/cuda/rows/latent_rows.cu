// A warp takes a row, another one its index key. Angles and tables are loaded before the product is waited for.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/rows/row_writer.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/metadata_encoding.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

struct Args {
  LatentRowsParams params;
  RowView view;
  std::int32_t floats;  // of shared memory for a warp
  std::int64_t metadata_page_bytes;
};

template <KvDType kDType>
__device__ void write_row(const Args& args, std::int64_t row, float* memory) {
  const LatentRowsParams& params = args.params;
  const RowView& view = args.view;
  const std::int32_t latent = view.value_dim;
  const std::int32_t rope = view.key_dim - latent;
  const RotaryPart part{params.rotation.inv_freq, latent, params.rotation.rotary_dim / 2,
                        params.rotation.attention_factor};
  const HeadLanes<32> lanes(memory, view.key_dim, part.half);
  const float* const in = params.in + row * params.in_stride;
  const auto [position, target] = new_row_at(params.targets, row, view.row_bytes);
  if (position >= 0) lanes.turn_to(position, part);
  wait_for_kernels_before();  // also without work: who waits for this kernel waits for those before
  if (position < 0) return;
  const Group first = lanes.template first_group<true>(in, latent);
  const Group first_of_rope = lanes.template first_group<true>(in + latent, rope);
  lanes.template load_head<true>(in + latent, first_of_rope, rope, nullptr, 0.0F, lanes.values + latent);
  lanes.template load_head<true>(in, first, latent, params.norm, params.epsilon, lanes.values);
  lanes.rotate(part);
  constexpr bool kFp8 = kDType == KvDType::kFp8;
  float* const out = params.out == nullptr ? nullptr : params.out + row * params.out_stride;
#pragma unroll 1
  for (std::int32_t base = 0; base < latent; base += lanes.kStep) {
    const std::int32_t at = base + lanes.first_channel();
    Group group{};
    if (at < latent) group = load_group<true>(lanes.values, at, 0);
    if (out != nullptr && at < latent) store_group<true>(out, at, latent, group);
    write_group<kDType>(lanes, target, target + view.key_scales_offset, at, latent, group);
  }
#pragma unroll 1
  for (std::int32_t at = lanes.first_channel(); at < rope; at += lanes.kStep) {
    const Group group = load_group<true>(lanes.values, latent + at, view.key_dim);
    if (out != nullptr) store_group<true>(out + latent, at, rope, group);
    if constexpr (kFp8) {
      write_bf16(target + view.rope_offset + 2 * at, group);
    } else {
      write_group<kDType>(lanes, target, nullptr, latent + at, view.key_dim, group);
    }
  }
  if (kFp8) clear_padding(view, target, lanes.lane, 32);
}

// LayerNorm of the head that the lanes have loaded, in place; the formula of launch_layer_norm.
__device__ void layer_norm(const HeadLanes<32>& lanes, const NewIndexKeys& keys, std::int32_t dim) {
  float total = 0.0F;
#pragma unroll 1
  for (std::int32_t at = lanes.first_channel(); at < dim; at += lanes.kStep) {
    const Group group = load_group<true>(lanes.values, at, dim);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) total = __fadd_rn(total, group.values[i]);
  }
  const float mean = __fdiv_rn(lanes.sum(total), static_cast<float>(dim));
  float squares = 0.0F;
#pragma unroll 1
  for (std::int32_t at = lanes.first_channel(); at < dim; at += lanes.kStep) {
    Group group = load_group<true>(lanes.values, at, dim);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) group.values[i] = __fsub_rn(group.values[i], mean);
    squares = square_sum(squares, group);
  }
  const float factor = norm_factor(lanes.sum(squares), dim, keys.epsilon);
#pragma unroll 1
  for (std::int32_t at = lanes.first_channel(); at < dim; at += lanes.kStep) {
    Group group = load_group<true>(lanes.values, at, dim);
    const Group weight = load_group<true>(keys.norm, at, dim);
    const Group bias = load_group<true>(keys.bias, at, dim);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float scaled = __fmul_rn(__fsub_rn(group.values[i], mean), factor);
      group.values[i] = __fmaf_rn(scaled, weight.values[i], bias.values[i]);
    }
    store_group<true>(lanes.values, at, dim, group);
  }
  lanes.sync();
}

template <KvDType kDType>
__device__ void write_index_key(const Args& args, std::int64_t row, float* memory) {
  const NewRowMetadata& metadata = args.params.metadata;
  const NewIndexKeys& keys = args.params.index_keys;
  const MetadataGeometry& geometry = metadata.geometry;
  const std::int32_t dim = geometry.dim;
  const RotaryPart part{keys.rotation.inv_freq, 0, keys.rotation.rotary_dim / 2, keys.rotation.attention_factor};
  const HeadLanes<32> lanes(memory, dim, part.half);
  const MetadataPlace place = metadata_place(metadata.target, args.metadata_page_bytes, row);
  if (place.page != nullptr) lanes.turn_to(metadata.target.positions[row], part);
  wait_for_kernels_before();
  if (place.page == nullptr) return;
  const float* const in = keys.in + row * keys.in_stride;
  lanes.template load_head<true>(in, lanes.template first_group<true>(in, dim), dim, nullptr, 0.0F, lanes.values);
  layer_norm(lanes, keys, dim);
  lanes.rotate(part);
  std::byte* const codes = place.page + place.offset * dim * kv_dtype_bytes(kDType);
  std::byte* const scales = place.page + kPageTokens * dim + place.offset * 4 * fp8_scales(dim);
#pragma unroll 1
  for (std::int32_t base = 0; base < dim; base += lanes.kStep) {
    const std::int32_t at = base + lanes.first_channel();
    Group group{};
    if (at < dim) group = load_group<true>(lanes.values, at, dim);
    write_group<kDType>(lanes, codes, scales, at, dim, group);
  }
}

template <KvDType kDType>
__global__ void __launch_bounds__(kThreads) latent_rows_kernel(const __grid_constant__ Args args) {
  extern __shared__ float4 memory[];
  let_next_kernel_start();
  const std::int64_t unit = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  float* const own = reinterpret_cast<float*>(memory) + threadIdx.x / 32 * args.floats;
  if (unit < args.params.rows) {
    write_row<kDType>(args, unit, own);
  } else if (args.params.index_keys.in != nullptr && unit < 2 * args.params.rows) {
    write_index_key<kDType>(args, unit - args.params.rows, own);
  }
}

void check_params(const LatentRowsParams& params) {
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.layout == KvGeometry::Layout::kLatent, "latent rows");
  HS_CHECK(geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0 && geometry.key_dim >= geometry.value_dim,
           "channels are multiples of 16");
  HS_CHECK(params.rotation.rotary_dim % 2 == 0 && params.rotation.rotary_dim <= geometry.key_dim - geometry.value_dim,
           "the rotary part lies in the rope part");
  HS_CHECK(params.norm != nullptr && aligned_rows(params.norm, ActivationType::kF32, 0) &&
               aligned_rows(params.in, ActivationType::kF32, params.in_stride) &&
               aligned_rows(params.out, ActivationType::kF32, params.out_stride) &&
               aligned_rows(params.targets.pool, ActivationType::kF32, 0),
           "rows are aligned to 16 bytes");
  const NewIndexKeys& keys = params.index_keys;
  HS_CHECK((keys.in != nullptr) == (params.metadata.geometry.kind == MetadataGeometry::Kind::kIndexKeys),
           "index keys come with their metadata");
  if (keys.in == nullptr) return;
  HS_CHECK(params.metadata.geometry.dtype == geometry.dtype, "index keys are of the rows' type");
  HS_CHECK(params.metadata.geometry.dim % 16 == 0 && keys.rotation.rotary_dim % 2 == 0 &&
               keys.rotation.rotary_dim <= params.metadata.geometry.dim,
           "the rotary part lies in the index key");
  HS_CHECK(keys.norm != nullptr && keys.bias != nullptr &&
               aligned_rows(keys.in, ActivationType::kF32, keys.in_stride) &&
               aligned_rows(keys.norm, ActivationType::kF32, 0) && aligned_rows(keys.bias, ActivationType::kF32, 0) &&
               aligned_rows(params.metadata.target.pool, ActivationType::kF32, 0),
           "index keys are aligned to 16 bytes");
}

}  // namespace

void launch_latent_rows(const LatentRowsParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check_params(params);
  const MetadataGeometry& metadata = params.metadata.geometry;
  const bool index_keys = metadata.kind == MetadataGeometry::Kind::kIndexKeys;
  std::int64_t floats = rotary_head_floats(params.geometry.key_dim, params.rotation.rotary_dim / 2);
  if (index_keys) {
    floats = std::max(floats, rotary_head_floats(metadata.dim, params.index_keys.rotation.rotary_dim / 2));
  }
  const Args args{params, row_view(params.geometry), static_cast<std::int32_t>(floats), metadata.page_bytes()};
  const auto shared = static_cast<std::size_t>(kWarps * floats) * sizeof(float);
  HS_CHECK(shared <= 48 * 1024, "the rows are too wide");
  const auto blocks = static_cast<unsigned>(ceil_div((index_keys ? 2 : 1) * params.rows, kWarps));
  with_row_type(params.geometry.dtype, [&](auto dtype) {
    const auto kernel = latent_rows_kernel<dtype.value>;
    if (params.follows_product) {
      launch_dependent(kernel, dim3(blocks), kThreads, shared, 0, stream, args);
    } else {
      kernel<<<blocks, kThreads, shared, stream>>>(args);
    }
  });
  HOTSET_CUDA_CHECK_LAUNCH();
  if (index_keys || metadata.kind == MetadataGeometry::Kind::kNone) return;
  HS_CHECK(params.out != nullptr, "metadata of latent rows is made of what they are");
  launch_store_metadata({.geometry = metadata,
                         .keys = params.out,
                         .stride = params.out_stride,
                         .basis = params.metadata.basis,
                         .target = params.metadata.target,
                         .rows = params.rows},
                        stream);
}

}  // namespace hotset::kernels::cuda
