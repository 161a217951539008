// A row's heads stand in the order q, k, v; the lanes of a head take a few of them, one after the other. Where keys
// have low-rank metadata, blocks of their own take them, one KV head of up to 16 rows each, and project what they have
// written. Angles, tables and the basis are loaded before the product is waited for.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/rows/key_projection.cuh"
#include "kernels/cuda/rows/row_writer.cuh"
#include "kernels/cuda/runtime.h"
#include "kernels/cuda/selection/dependent_launch.cuh"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr std::int64_t kMostHeadsEach = 8;
constexpr std::int64_t kKeyBlocks = 528;  // with more of them, each takes several rows and shares the basis

enum class HeadKind { kQuery, kKey, kValue };

// A head of the input.
template <class In>
struct Source {
  HeadKind kind;
  std::int32_t head;  // of its kind
  std::int32_t dim;
  const In* x;
};

struct Args {
  GroupedRowsParams params;
  RowView view;
  std::int32_t floats;      // of shared memory for the lanes of a head
  std::int32_t each;        // heads of a group of lanes
  std::int32_t key_blocks;  // the first blocks, which take the keys; 0: keys are like other heads
  std::int32_t key_rows;    // rows of one of them
  bool widens_bounds;
};

// Where a head is written to.
struct Destination {
  std::byte* row;        // the row in the pool; queries: not used
  MetadataPlace bounds;  // to be widened by a key; no page: none are
  float* kept;           // [dim] of a key, in shared memory; null: not kept
};

template <class In>
__device__ Source<In> source_of(const GroupedRowsParams& params, std::int64_t row, std::int32_t unit) {
  const std::int32_t key_dim = params.geometry.key_dim;
  if (unit < params.heads) {
    return {HeadKind::kQuery, unit, key_dim,
            static_cast<const In*>(params.q) + row * params.q_stride + std::int64_t{unit} * key_dim};
  }
  unit -= params.heads;
  if (unit < params.geometry.kv_heads) {
    return {HeadKind::kKey, unit, key_dim,
            static_cast<const In*>(params.k) + row * params.k_stride + std::int64_t{unit} * key_dim};
  }
  unit -= params.geometry.kv_heads;
  const std::int32_t dim = params.geometry.value_dim;
  return {HeadKind::kValue, unit, dim,
          static_cast<const In*>(params.v) + row * params.v_stride + std::int64_t{unit} * dim};
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

// The head has been loaded into lanes.values.
template <class In, class QOut, int kLanes>
__device__ void write_head(const Args& args, const RotaryPart& part, const HeadLanes<kLanes>& lanes,
                           const Source<In>& source, std::int64_t row, const Destination& to) {
  const GroupedRowsParams& params = args.params;
  const RowView& view = args.view;
  const std::int64_t element = std::int64_t{source.head} * source.dim;
  const bool value = source.kind == HeadKind::kValue;
  const bool key = source.kind == HeadKind::kKey;
  const std::int64_t number_bytes = kv_dtype_bytes(view.dtype);
  std::byte* const codes = to.row + (value ? view.value_offset : 0) + element * number_bytes;
  std::byte* const scales = to.row + (value ? view.value_scales_offset + 4 * source.head * view.value_scales
                                            : view.key_scales_offset + 4 * source.head * view.key_scales);
  for (std::int32_t base = 0; base < source.dim; base += lanes.kStep) {
    const std::int32_t at = base + lanes.first_channel();
    Group group{};
    if (at < source.dim) group = value ? load_group<true>(lanes.values, at, 0) : lanes.rotated(at, part);
    if (source.kind == HeadKind::kQuery) {
      if (at < source.dim) {
        store_group<true>(static_cast<QOut*>(params.q_out) + row * params.q_out_stride + element, at, source.dim,
                          group);
      }
      continue;
    }
    if (key && at < source.dim) {
      if (params.k_out != nullptr) {
        store_group<true>(params.k_out + row * params.k_out_stride + element, at, source.dim, group);
      }
      if (to.kept != nullptr) store_group<true>(to.kept, at, source.dim, group);
      if (to.bounds.page != nullptr) widen_bounds(params.metadata.geometry, to.bounds, source.head, at, group);
    }
    write_group(lanes, view.dtype, codes, scales, at, source.dim, group);
  }
  if (key && source.head == 0 && view.dtype == KvDType::kFp8) clear_padding(view, to.row, lanes.lane, kLanes);
}

// A block takes a KV head of a few rows.
template <class In, class QOut, int kLanes>
__device__ void write_keys(const Args& args, const RotaryPart& part, const HeadLanes<kLanes>& lanes, float* memory) {
  const GroupedRowsParams& params = args.params;
  const NewRowMetadata& metadata = params.metadata;
  constexpr int kHeads = kThreads / kLanes;
  const std::int32_t kv_heads = params.geometry.kv_heads;
  const auto kv_head = static_cast<std::int32_t>(blockIdx.x) % kv_heads;
  const std::int64_t first = std::int64_t{static_cast<std::int32_t>(blockIdx.x) / kv_heads} * args.key_rows;
  const auto count = static_cast<std::int32_t>(min(std::int64_t{args.key_rows}, params.rows - first));
  const KeyProjection<kThreads> projection(metadata, kv_head, args.key_rows, memory);
  projection.start_tile(0);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t page_bytes = metadata.geometry.page_bytes();
  MetadataPlace place{};
  if (warp < count) place = metadata_place(metadata.target, page_bytes, first + warp);
  const int own = static_cast<int>(threadIdx.x) / kLanes;
  for (std::int32_t r = own; r < args.key_rows; r += kHeads) {
    const std::int64_t row = first + r;
    const std::int64_t position = r < count ? params.targets.positions[row] : -1;
    std::byte* target = nullptr;
    if (position >= 0) {
      target = target_row(params.targets, row, position, args.view.row_bytes);
      lanes.turn_to(position, part);
    }
    if (r == own) wait_for_kernels_before();
    if (position < 0) continue;
    const Source<In> source = source_of<In>(params, row, params.heads + kv_head);
    const Group group = lanes.template first_group<true>(source.x, source.dim);
    lanes.template load_head<true>(source.x, group, source.dim, params.k_norm, params.epsilon, lanes.values);
    write_head<In, QOut>(args, part, lanes, source, row, {target, {}, projection.keys + r * source.dim});
    lanes.sync();  // all have read the head
  }
  projection.run(count);
  for (std::int32_t r = warp; r < count; r += kWarps) {
    if (r > warp) place = metadata_place(metadata.target, page_bytes, first + r);
    if (place.page == nullptr) continue;
    write_low_rank_key(metadata.geometry, place, kv_head, projection.sums + r * metadata.geometry.rank,
                       static_cast<int>(threadIdx.x) % 32);
  }
}

template <class In, class QOut, int kLanes>
__device__ void write_heads(const Args& args, const RotaryPart& part, const HeadLanes<kLanes>& lanes) {
  const GroupedRowsParams& params = args.params;
  const std::int32_t kv_heads = params.geometry.kv_heads;
  const std::int32_t left_out = args.key_blocks > 0 ? kv_heads : 0;  // between queries and values
  const std::int32_t heads = params.heads + 2 * kv_heads - left_out;
  const std::int64_t per_row = (heads + args.each - 1) / args.each;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) - args.key_blocks;
  const std::int64_t unit = block * (kThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t row = unit / per_row;
  if (row >= params.rows) return;
  const auto head_of = [&](std::int32_t at) { return at < params.heads ? at : at + left_out; };
  const auto first_head = static_cast<std::int32_t>(unit % per_row) * args.each;
  const std::int32_t end_head = min(first_head + args.each, heads);
  const std::int64_t position = params.targets.positions[row];
  Destination to{};
  if (position >= 0 && end_head > params.heads) {
    to.row = target_row(params.targets, row, position, args.view.row_bytes);
    if (args.widens_bounds) {
      to.bounds = metadata_place(params.metadata.target, params.metadata.geometry.page_bytes(), row);
    }
  }
  if (position >= 0 && head_of(first_head) < params.heads + kv_heads) lanes.turn_to(position, part);
  wait_for_kernels_before();  // also without work: who waits for this kernel waits for those before
  if (position < 0) return;
  Source<In> source = source_of<In>(params, row, head_of(first_head));
  Group next = lanes.template first_group<true>(source.x, source.dim);
  for (std::int32_t head = first_head; head < end_head; ++head) {
    const Source<In> now = source;
    const Group first = next;
    if (head + 1 < end_head) {
      source = source_of<In>(params, row, head_of(head + 1));
      next = lanes.template first_group<true>(source.x, source.dim);
    }
    const float* const norm = now.kind == HeadKind::kQuery ? params.q_norm
                              : now.kind == HeadKind::kKey ? params.k_norm
                                                           : nullptr;
    lanes.template load_head<true>(now.x, first, now.dim, norm, params.epsilon, lanes.values);
    write_head<In, QOut>(args, part, lanes, now, row, to);
    lanes.sync();  // all have read the head
  }
}

template <class In, class QOut, int kLanes>
__global__ void __launch_bounds__(kThreads) grouped_rows_kernel(const __grid_constant__ Args args) {
  extern __shared__ float4 memory[];
  let_next_kernel_start();
  const GroupedRowsParams& params = args.params;
  const RotaryPart part{params.rotation.inv_freq, 0, params.rotation.rotary_dim / 2, params.rotation.attention_factor};
  auto* const floats = reinterpret_cast<float*>(memory);
  const HeadLanes<kLanes> lanes(floats + threadIdx.x / kLanes * args.floats,
                                max(params.geometry.key_dim, params.geometry.value_dim), part.half);
  if (static_cast<std::int32_t>(blockIdx.x) < args.key_blocks) {
    write_keys<In, QOut>(args, part, lanes, floats + kThreads / kLanes * args.floats);
  } else {
    write_heads<In, QOut>(args, part, lanes);
  }
}

void check_params(const GroupedRowsParams& params) {
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.layout == KvGeometry::Layout::kGrouped, "grouped rows");
  HS_CHECK(geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0, "channels are multiples of 16");
  HS_CHECK(params.rotation.rotary_dim % 2 == 0 && params.rotation.rotary_dim <= geometry.key_dim,
           "the rotary part lies in the head");
  HS_CHECK(aligned_rows(params.q, params.in_type, params.q_stride) &&
               aligned_rows(params.k, params.in_type, params.k_stride) &&
               aligned_rows(params.v, params.in_type, params.v_stride) &&
               aligned_rows(params.q_out, params.q_out_type, params.q_out_stride) &&
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
  Args args{.params = params, .view = row_view(params.geometry), .widens_bounds = widens_bounds(params)};
  args.floats = static_cast<std::int32_t>(rotary_head_floats(widest, params.rotation.rotary_dim / 2));
  std::int64_t key_floats = 0;
  if (metadata.kind == MetadataGeometry::Kind::kLowRankKeys) {
    const std::int64_t most =
        std::clamp<std::int64_t>(kProjectedFloats / (metadata.dim + metadata.rank), 1, kMostProjectedRows);
    const std::int64_t rows = std::clamp<std::int64_t>(params.rows * kv_heads / kKeyBlocks, 1, most);
    args.key_rows = static_cast<std::int32_t>(rows);
    args.key_blocks = static_cast<std::int32_t>(ceil_div(params.rows, rows) * kv_heads);
    key_floats = KeyProjection<kThreads>::floats(metadata.dim, metadata.rank, rows);
  }
  const std::int64_t heads = params.heads + (args.key_blocks > 0 ? 1 : 2) * kv_heads;
  // So many groups of lanes fill the device; with more of them, each takes several heads of a row and shares the
  // angles.
  constexpr std::int64_t kFilling = 132 * 48;
  args.each = static_cast<std::int32_t>(std::clamp<std::int64_t>(params.rows * heads / kFilling, 1, kMostHeadsEach));
  with_head_lanes(widest, [&](auto lanes) {
    constexpr int kHeads = kThreads / lanes.value;
    const auto shared = static_cast<std::size_t>(kHeads * args.floats + key_floats) * sizeof(float);
    HS_CHECK(shared <= 48 * 1024, "the heads are too wide");
    const auto blocks =
        static_cast<unsigned>(args.key_blocks + ceil_div(params.rows * ceil_div(heads, args.each), kHeads));
    with_types(params.in_type, params.q_out_type, true, [&](auto in, auto q_out, auto aligned) {
      if constexpr (aligned.value) {
        const auto kernel = grouped_rows_kernel<decltype(in), decltype(q_out), lanes.value>;
        if (params.follows_product) {
          launch_dependent(kernel, dim3(blocks), kThreads, shared, 0, stream, args);
        } else {
          kernel<<<blocks, kThreads, shared, stream>>>(args);
        }
      }
    });
  });
  HOTSET_CUDA_CHECK_LAUNCH();
  store_bounds_of_chunk(params, stream);
}

}  // namespace hotset::kernels::cuda
