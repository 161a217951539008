// A row's heads stand in the order q, k, v; the lanes of a head take a few of them, one after the other. Where keys
// have low-rank metadata, blocks of their own take them, one KV head of up to 16 rows each, and project what they have
// written. Angles, tables and the basis are loaded before the product is waited for.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/rows/key_projection.cuh"
#include "kernels/cuda/rows/row_writer.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMostSharedBytes = 48 * 1024;  // without asking for more
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMostHeadsEach = 8;
constexpr std::int64_t kKeyBlocks = 528;  // with more of them, each takes several rows and shares the basis

enum class HeadKind { kQuery, kKey, kValue };

// A head of the input.
struct Source {
  HeadKind kind;
  std::int32_t head;  // of its kind
  std::int32_t dim;
  const float* x;
};

struct Args {
  GroupedRowsParams params;
  RowView view;
  std::int32_t head_floats, angle_floats;  // of shared memory: for the lanes of a head, and of a position
  std::int32_t each;                       // heads of a group of lanes
  std::int32_t key_blocks;                 // the first blocks, which take the keys; 0: keys are like other heads
  std::int32_t key_rows;                   // rows of one of them
  bool widens_bounds;
  std::int64_t metadata_page_bytes;
};

// Where a head is written to.
struct Destination {
  std::byte* row;        // the row in the pool
  MetadataPlace bounds;  // to be widened by a key; no page: none are
  float* kept;           // [dim] of a key, in shared memory; null: not kept
};

__device__ Source source_of(const GroupedRowsParams& params, std::int64_t row, std::int32_t head) {
  const std::int32_t key_dim = params.geometry.key_dim;
  if (head < params.heads) {
    return {HeadKind::kQuery, head, key_dim, params.q + row * params.q_stride + std::int64_t{head} * key_dim};
  }
  head -= params.heads;
  if (head < params.geometry.kv_heads) {
    return {HeadKind::kKey, head, key_dim, params.k + row * params.k_stride + std::int64_t{head} * key_dim};
  }
  head -= params.geometry.kv_heads;
  const std::int32_t dim = params.geometry.value_dim;
  return {HeadKind::kValue, head, dim, params.v + row * params.v_stride + std::int64_t{head} * dim};
}

// Channels [at, at + 8) of a key widen the bounds of its block, or begin them.
__device__ void widen_bounds(const MetadataGeometry& geometry, const MetadataPlace& place, std::int32_t head,
                             std::int32_t at, const Group& key) {
  const bool starts = place.offset % geometry.block_tokens == 0;
  const std::int64_t minimum = first_bound(geometry, place.offset, head) + at;
  const std::int64_t maximum = minimum + geometry.dim;
  Group low = key;
  Group high = key;
  const auto widen = [&](auto* bounds) {
    if (starts) return;
    const Group known_low = load_group<true>(bounds + minimum, 0, 0);
    const Group known_high = load_group<true>(bounds + maximum, 0, 0);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {  // fmin and fmax leave NaN out
      low.values[i] = fminf(known_low.values[i], key.values[i]);
      high.values[i] = fmaxf(known_high.values[i], key.values[i]);
    }
  };
  if (geometry.bounds_bytes() == 4) {
    auto* const bounds = reinterpret_cast<float*>(place.page);
    widen(bounds);
    store_group<true>(bounds + minimum, 0, 0, low);
    store_group<true>(bounds + maximum, 0, 0, high);
    return;
  }
  auto* const bounds = reinterpret_cast<__nv_bfloat16*>(place.page);
  widen(bounds);
  std::uint32_t lows[4], highs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    lows[i] = std::uint32_t{bf16_below(low.values[2 * i])} | std::uint32_t{bf16_below(low.values[2 * i + 1])} << 16;
    highs[i] = std::uint32_t{bf16_above(high.values[2 * i])} | std::uint32_t{bf16_above(high.values[2 * i + 1])} << 16;
  }
  *reinterpret_cast<uint4*>(bounds + minimum) = make_uint4(lows[0], lows[1], lows[2], lows[3]);
  *reinterpret_cast<uint4*>(bounds + maximum) = make_uint4(highs[0], highs[1], highs[2], highs[3]);
}

// The head has been loaded into lanes.values, and turned.
template <KvDType kDType, int kLanes>
__device__ void write_head(const Args& args, const HeadLanes<kLanes>& lanes, const Source& source, std::int64_t row,
                           const Destination& to) {
  const GroupedRowsParams& params = args.params;
  const RowView& view = args.view;
  const std::int64_t element = std::int64_t{source.head} * source.dim;
  const bool value = source.kind == HeadKind::kValue;
  const bool key = source.kind == HeadKind::kKey;
  std::byte* const codes = to.row + (value ? view.value_offset : 0) + element * kv_dtype_bytes(kDType);
  std::byte* const scales = to.row + (value ? view.value_scales_offset + 4 * source.head * view.value_scales
                                            : view.key_scales_offset + 4 * source.head * view.key_scales);
  float* out = nullptr;
  if (source.kind == HeadKind::kQuery) out = params.q_out + row * params.q_out_stride + element;
  if (key && params.k_out != nullptr) out = params.k_out + row * params.k_out_stride + element;
#pragma unroll 1
  for (std::int32_t base = 0; base < source.dim; base += lanes.kStep) {
    const std::int32_t at = base + lanes.first_channel();
    Group group{};
    if (at < source.dim) {
      group = load_group<true>(lanes.values, at, source.dim);
      if (out != nullptr) store_group<true>(out, at, source.dim, group);
      if (to.kept != nullptr) store_group<true>(to.kept, at, source.dim, group);
      if (key && to.bounds.page != nullptr) {
        widen_bounds(params.metadata.geometry, to.bounds, source.head, at, group);
      }
    }
    if (source.kind != HeadKind::kQuery) write_group<kDType>(lanes, codes, scales, at, source.dim, group);
  }
  if (kDType == KvDType::kFp8 && key && source.head == 0) clear_padding(view, to.row, lanes.lane, kLanes);
}

template <KvDType kDType, int kLanes>
__device__ void take_head(const Args& args, const HeadLanes<kLanes>& lanes, const RotaryPart& part,
                          const Source& source, const Group& first, std::int64_t row, const Destination& to) {
  const GroupedRowsParams& params = args.params;
  const float* const norm = source.kind == HeadKind::kQuery ? params.q_norm
                            : source.kind == HeadKind::kKey ? params.k_norm
                                                            : nullptr;
  lanes.template load_head<true>(source.x, first, source.dim, norm, params.epsilon, lanes.values);
  if (source.kind != HeadKind::kValue) lanes.rotate(part);
  write_head<kDType>(args, lanes, source, row, to);
  lanes.sync();  // all have read the head
}

// A block takes a KV head of a few rows. `angles`: of each row; `memory`: of the projection.
template <KvDType kDType, int kLanes>
__device__ void write_keys(const Args& args, const RotaryPart& part, float* values, float* angles, float* memory) {
  const GroupedRowsParams& params = args.params;
  const NewRowMetadata& metadata = params.metadata;
  constexpr int kHeads = kThreads / kLanes;
  const std::int32_t kv_heads = params.geometry.kv_heads;
  const auto kv_head = static_cast<std::int32_t>(blockIdx.x) % kv_heads;
  const std::int64_t first = std::int64_t{static_cast<std::int32_t>(blockIdx.x) / kv_heads} * args.key_rows;
  const auto count = static_cast<std::int32_t>(min(std::int64_t{args.key_rows}, params.rows - first));
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const KeyProjection<kThreads> projection(metadata, kv_head, args.key_rows, memory);
  projection.start_tile(0);
  const std::int32_t own = thread / kLanes;
  NewRow target{-1, nullptr};
  if (own < count) target = new_row_at(params.targets, first + own, args.view.row_bytes);
  MetadataPlace place{};
  if (thread / 32 < count) place = metadata_place(metadata.target, args.metadata_page_bytes, first + thread / 32);
#pragma unroll 1
  for (std::int32_t i = thread; i < count * part.half; i += kThreads) {
    const std::int32_t r = i / part.half;
    const std::int64_t position = params.targets.positions[first + r];
    if (position >= 0) turn_pair(position, part, i % part.half, angles + r * args.angle_floats);
  }
  wait_for_kernels_before();
  __syncthreads();
#pragma unroll 1
  for (std::int32_t r = own; r < count; r += kHeads) {
    const std::int64_t row = first + r;
    if (r != own) target = new_row_at(params.targets, row, args.view.row_bytes);
    if (target.position < 0) continue;
    const HeadLanes<kLanes> lanes(values, angles + r * args.angle_floats, part.half);
    const Source source = source_of(params, row, params.heads + kv_head);
    const Group group = lanes.template first_group<true>(source.x, source.dim);
    take_head<kDType>(args, lanes, part, source, group, row, {target.target, {}, projection.keys + r * source.dim});
  }
  projection.run(count);
#pragma unroll 1
  for (std::int32_t r = thread / 32; r < count; r += kWarps) {
    if (r != thread / 32) place = metadata_place(metadata.target, args.metadata_page_bytes, first + r);
    if (place.page == nullptr) continue;
    write_low_rank_key(metadata.geometry, place, kv_head, projection.sums + r * metadata.geometry.rank, thread % 32);
  }
}

// A block takes some heads of a row.
template <KvDType kDType, int kLanes>
__device__ void write_heads(const Args& args, const RotaryPart& part, float* values, float* angles) {
  const GroupedRowsParams& params = args.params;
  constexpr int kHeads = kThreads / kLanes;
  const std::int32_t kv_heads = params.geometry.kv_heads;
  const std::int32_t left_out = args.key_blocks > 0 ? kv_heads : 0;  // between queries and values
  const std::int32_t heads = params.heads + 2 * kv_heads - left_out;
  const std::int32_t of_block = kHeads * args.each;
  const std::int32_t per_row = (heads + of_block - 1) / of_block;
  const auto block = static_cast<std::int32_t>(blockIdx.x) - args.key_blocks;
  const std::int64_t row = block / per_row;
  const std::int32_t first_head = block % per_row * of_block;
  const std::int32_t end_head = min(first_head + of_block, heads);
  const auto head_of = [&](std::int32_t at) { return at < params.heads ? at : at + left_out; };
  const NewRow target = new_row_at(params.targets, row, args.view.row_bytes);
  Destination to{target.target, {}, nullptr};
  if (args.widens_bounds && target.position >= 0) {
    to.bounds = metadata_place(params.metadata.target, args.metadata_page_bytes, row);
  }
  if (target.position >= 0 && head_of(first_head) < params.heads + kv_heads) {
#pragma unroll 1
    for (auto c = static_cast<std::int32_t>(threadIdx.x); c < part.half; c += kThreads) {
      turn_pair(target.position, part, c, angles);
    }
  }
  wait_for_kernels_before();  // also without work: who waits for this kernel waits for those before
  __syncthreads();
  if (target.position < 0) return;
  const HeadLanes<kLanes> lanes(values, angles, part.half);
  std::int32_t head = first_head + static_cast<std::int32_t>(threadIdx.x) / kLanes;
  if (head >= end_head) return;
  Source source = source_of(params, row, head_of(head));
  Group next = lanes.template first_group<true>(source.x, source.dim);
#pragma unroll 1
  for (; head < end_head; head += kHeads) {
    const Source now = source;
    const Group first = next;
    if (head + kHeads < end_head) {
      source = source_of(params, row, head_of(head + kHeads));
      next = lanes.template first_group<true>(source.x, source.dim);
    }
    take_head<kDType>(args, lanes, part, now, first, row, to);
  }
}

template <KvDType kDType, int kLanes>
__global__ void __launch_bounds__(kThreads) grouped_rows_kernel(const __grid_constant__ Args args) {
  extern __shared__ float4 memory[];
  let_next_kernel_start();
  const NewRowRotation& rotation = args.params.rotation;
  const RotaryPart part{rotation.inv_freq, 0, rotation.rotary_dim / 2, rotation.attention_factor};
  auto* const floats = reinterpret_cast<float*>(memory);
  float* const values = floats + static_cast<std::int32_t>(threadIdx.x) / kLanes * args.head_floats;
  float* const angles = floats + kThreads / kLanes * args.head_floats;
  if (static_cast<std::int32_t>(blockIdx.x) < args.key_blocks) {
    write_keys<kDType, kLanes>(args, part, values, angles, angles + args.key_rows * args.angle_floats);
  } else {
    write_heads<kDType, kLanes>(args, part, values, angles);
  }
}

void check_params(const GroupedRowsParams& params) {
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.layout == KvGeometry::Layout::kGrouped, "grouped rows");
  HS_CHECK(geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0, "channels are multiples of 16");
  HS_CHECK(params.rotation.rotary_dim % 2 == 0 && params.rotation.rotary_dim <= geometry.key_dim,
           "the rotary part lies in the head");
  HS_CHECK(aligned_rows(params.q, ActivationType::kF32, params.q_stride) &&
               aligned_rows(params.k, ActivationType::kF32, params.k_stride) &&
               aligned_rows(params.v, ActivationType::kF32, params.v_stride) &&
               aligned_rows(params.q_out, ActivationType::kF32, params.q_out_stride) &&
               aligned_rows(params.k_out, ActivationType::kF32, params.k_out_stride) &&
               aligned_rows(params.q_norm, ActivationType::kF32, 0) &&
               aligned_rows(params.k_norm, ActivationType::kF32, 0) &&
               aligned_rows(params.metadata.basis, ActivationType::kF32, 0) &&
               aligned_rows(params.metadata.target.pool, ActivationType::kF32, 0) &&
               aligned_rows(params.targets.pool, ActivationType::kF32, 0),
           "rows are aligned to 16 bytes");
  const MetadataGeometry& metadata = params.metadata.geometry;
  if (metadata.kind == MetadataGeometry::Kind::kNone) return;
  HS_CHECK(metadata.kind != MetadataGeometry::Kind::kIndexKeys && metadata.kv_heads == geometry.kv_heads &&
               metadata.dim == geometry.key_dim,
           "the metadata is of the rows' keys");
  HS_CHECK(metadata.kind != MetadataGeometry::Kind::kLowRankKeys ||
               (params.metadata.basis != nullptr && metadata.rank % 2 == 0 && metadata.rank <= kMostLowRank),
           "the rank is odd or too large");
}

bool widens_bounds(const GroupedRowsParams& params) {
  return params.metadata.geometry.kind == MetadataGeometry::Kind::kBlockBounds &&
         params.metadata.target.page_stride != 0;
}

// Rows of one sequence widen the same bounds, one after the other.
void store_bounds_of_chunk(const GroupedRowsParams& params, Stream stream) {
  if (params.metadata.geometry.kind != MetadataGeometry::Kind::kBlockBounds || widens_bounds(params)) return;
  HS_CHECK(params.k_out != nullptr, "bounds of a chunk are made of the keys");
  launch_store_metadata({.geometry = params.metadata.geometry,
                         .keys = params.k_out,
                         .stride = params.k_out_stride,
                         .target = params.metadata.target,
                         .rows = params.rows},
                        stream);
}

}  // namespace

void launch_grouped_rows(const GroupedRowsParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check_params(params);
  const MetadataGeometry& metadata = params.metadata.geometry;
  const std::int64_t kv_heads = params.geometry.kv_heads;
  const std::int64_t widest = std::max(params.geometry.key_dim, params.geometry.value_dim);
  const std::int64_t half = params.rotation.rotary_dim / 2;
  Args args{.params = params,
            .view = row_view(params.geometry),
            .head_floats = static_cast<std::int32_t>(widest),
            .angle_floats = static_cast<std::int32_t>(rotary_angle_floats(half)),
            .key_rows = 1,
            .widens_bounds = widens_bounds(params),
            .metadata_page_bytes = metadata.page_bytes()};
  std::int64_t key_floats = 0;
  if (metadata.kind == MetadataGeometry::Kind::kLowRankKeys) {
    // A block's shared memory also holds the channels of its heads (below) and a tile of the basis.
    const std::int64_t heads = std::max<std::int64_t>(kThreads / 16 * 128, kThreads / 32 * widest);
    const std::int64_t left = kMostSharedBytes / static_cast<std::int64_t>(sizeof(float)) - heads - kBasisTile;
    const std::int64_t row_floats = metadata.dim + metadata.rank;
    const std::int64_t most = std::clamp<std::int64_t>(
        std::min(kProjectedFloats / row_floats, left / (args.angle_floats + row_floats)), 1, kMostProjectedRows);
    const std::int64_t rows = std::clamp<std::int64_t>(params.rows * kv_heads / kKeyBlocks, 1, most);
    args.key_rows = static_cast<std::int32_t>(rows);
    args.key_blocks = static_cast<std::int32_t>(ceil_div(params.rows, rows) * kv_heads);
    key_floats = KeyProjection<kThreads>::floats(metadata.dim, metadata.rank, rows);
  }
  const std::int64_t heads = params.heads + (args.key_blocks > 0 ? 1 : 2) * kv_heads;
  // So many groups of lanes fill the device; with more of them, each takes several heads of a row.
  constexpr std::int64_t kFilling = 132 * 48;
  args.each = static_cast<std::int32_t>(std::clamp<std::int64_t>(params.rows * heads / kFilling, 1, kMostHeadsEach));
  with_head_lanes(widest, [&](auto lanes) {
    constexpr int kHeads = kThreads / lanes.value;
    const auto shared =
        static_cast<std::size_t>(kHeads * widest + args.key_rows * args.angle_floats + key_floats) * sizeof(float);
    HS_CHECK(shared <= kMostSharedBytes, "the heads are too wide");
    const auto blocks = static_cast<unsigned>(args.key_blocks + params.rows * ceil_div(heads, kHeads * args.each));
    with_row_type(params.geometry.dtype, [&](auto dtype) {
      const auto kernel = grouped_rows_kernel<dtype.value, lanes.value>;
      if (params.follows_product) {
        launch_dependent(kernel, dim3(blocks), kThreads, shared, 0, stream, args);
      } else {
        kernel<<<blocks, kThreads, shared, stream>>>(args);
      }
    });
  });
  HOTSET_CUDA_CHECK_LAUNCH();
  store_bounds_of_chunk(params, stream);
}

}  // namespace hotset::kernels::cuda
