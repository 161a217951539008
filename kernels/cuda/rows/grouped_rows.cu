// A row's heads stand in the order q, k, v; the lanes of a head take a few of them, one after the other.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/rows/row_writer.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::int64_t kMostHeadsEach = 8;

enum class HeadKind { kQuery, kKey, kValue };

// A head of the input.
template <class In>
struct Source {
  HeadKind kind;
  std::int32_t head;  // of its kind
  std::int32_t dim;
  const In* x;
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

// The head has been loaded into lanes.values.
template <class In, class QOut, int kLanes>
__device__ void write_head(const GroupedRowsParams& params, const RowView& view, const RotaryPart& part,
                           const HeadLanes<kLanes>& lanes, const Source<In>& source, std::int64_t row,
                           std::byte* target) {
  const std::int64_t element = std::int64_t{source.head} * source.dim;
  const bool value = source.kind == HeadKind::kValue;
  const std::int64_t number_bytes = kv_dtype_bytes(view.dtype);
  std::byte* const codes = target + (value ? view.value_offset : 0) + element * number_bytes;
  std::byte* const scales = target + (value ? view.value_scales_offset + 4 * source.head * view.value_scales
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
    if (source.kind == HeadKind::kKey && params.k_out != nullptr && at < source.dim) {
      store_group<true>(params.k_out + row * params.k_out_stride + element, at, source.dim, group);
    }
    write_group(lanes, view.dtype, codes, scales, at, source.dim, group);
  }
}

template <class In, class QOut, int kLanes>
__global__ void __launch_bounds__(kThreads)
    grouped_rows_kernel(const GroupedRowsParams params, const RowView view, std::int32_t each, std::int32_t floats) {
  extern __shared__ float4 memory[];
  const RotaryPart part{params.rotation.inv_freq, 0, params.rotation.rotary_dim / 2, params.rotation.attention_factor};
  const std::int32_t kv_heads = params.geometry.kv_heads;
  const std::int32_t heads = params.heads + 2 * kv_heads;
  const std::int64_t per_row = (heads + each - 1) / each;
  const std::int64_t unit = std::int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t row = unit / per_row;
  if (row >= params.rows) return;
  const HeadLanes<kLanes> lanes(reinterpret_cast<float*>(memory) + threadIdx.x / kLanes * floats,
                                max(params.geometry.key_dim, params.geometry.value_dim), part.half);
  const auto first_head = static_cast<std::int32_t>(unit % per_row) * each;
  const std::int32_t end_head = min(first_head + each, heads);
  const std::int64_t position = params.targets.positions[row];
  Source<In> source = source_of<In>(params, row, first_head);
  Group next = lanes.template first_group<true>(source.x, source.dim);
  if (position < 0) return;
  std::byte* target = nullptr;
  if (end_head > params.heads) target = target_row(params.targets, row, position, view.row_bytes);
  if (first_head < params.heads + kv_heads) lanes.turn_to(position, part);
  for (std::int32_t head = first_head; head < end_head; ++head) {
    const Source<In> now = source;
    const Group first = next;
    if (head + 1 < end_head) {
      source = source_of<In>(params, row, head + 1);
      next = lanes.template first_group<true>(source.x, source.dim);
    }
    const float* const norm = now.kind == HeadKind::kQuery ? params.q_norm
                              : now.kind == HeadKind::kKey ? params.k_norm
                                                           : nullptr;
    lanes.template load_head<true>(now.x, first, now.dim, norm, params.epsilon, lanes.values);
    write_head<In, QOut>(params, view, part, lanes, now, row, target);
    if (now.kind == HeadKind::kKey && now.head == 0 && view.dtype == KvDType::kFp8) {
      clear_padding(view, target, lanes.lane, kLanes);
    }
    lanes.sync();  // all have read the head
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
               aligned_rows(params.targets.pool, ActivationType::kF32, 0),
           "rows are aligned to 16 bytes");
}

}  // namespace

void launch_grouped_rows(const GroupedRowsParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check_params(params);
  const RowView view = row_view(params.geometry);
  const std::int64_t widest = std::max(params.geometry.key_dim, params.geometry.value_dim);
  const std::int64_t floats = rotary_head_floats(widest, params.rotation.rotary_dim / 2);
  const std::int64_t heads = params.heads + 2 * std::int64_t{params.geometry.kv_heads};
  // So many groups of lanes fill the device; with more of them, each takes several heads of a row and shares the
  // angles.
  constexpr std::int64_t kFilling = 132 * 48;
  const auto each =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(params.rows * heads / kFilling, 1, kMostHeadsEach));
  with_head_lanes(widest, [&](auto lanes) {
    constexpr int kHeads = kThreads / lanes.value;
    const auto shared = static_cast<std::size_t>(kHeads * floats) * sizeof(float);
    HS_CHECK(shared <= 48 * 1024, "the heads are too wide");
    const auto blocks = static_cast<unsigned>(ceil_div(params.rows * ceil_div(heads, each), kHeads));
    with_types(params.in_type, params.q_out_type, true, [&](auto in, auto q_out, auto aligned) {
      if constexpr (aligned.value) {
        grouped_rows_kernel<decltype(in), decltype(q_out), lanes.value>
            <<<blocks, kThreads, shared, stream>>>(params, view, each, static_cast<std::int32_t>(floats));
      }
    });
  });
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
