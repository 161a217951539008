#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/prefill/prefill_args.cuh"

namespace hotset::kernels::cuda {

PrefillForm prefill_attention_form(const KvGeometry&, int) { return PrefillForm::kPlain; }

std::int64_t prefill_attention_workspace_bytes(const KvGeometry& geometry, std::int32_t heads, std::int64_t rows) {
  return rows * heads * (geometry.value_dim + 5) * 4;
}

void launch_prefill_attention(const PrefillAttentionDeviceParams& params, Stream stream) {
  if (params.rows <= 0) return;
  const KvGeometry& geometry = params.geometry;
  PrefillArgs args{};
  args.view = row_view(geometry);
  const std::int64_t element = kv_dtype_bytes(geometry.dtype);
  if (params.expanded != nullptr) {
    const ExpandedKeysValues& e = *params.expanded;
    args.source = {.keys = static_cast<const std::byte*>(e.keys),
                   .key_row = e.key_row_stride * element,
                   .key_head = e.key_head_stride * element,
                   .shared_keys = static_cast<const std::byte*>(e.shared_keys),
                   .shared_row = e.shared_row_stride * element,
                   .own_dim = geometry.key_dim - e.shared_dim,
                   .values = static_cast<const std::byte*>(e.values),
                   .value_row = e.value_row_stride * element,
                   .value_head = e.value_head_stride * element};
  } else {
    args.pool = params.pool;
    args.pages = params.pages;
  }
  args.q = params.q;
  args.q_stride = params.q_stride;
  args.rows = params.rows;
  args.first_position = params.first_position;
  args.first_tile = params.first_tile;
  args.end_tile = std::min(params.first_tile + params.tile_count, pages_for_tokens(params.first_position + params.rows));
  auto* const state = static_cast<float*>(params.workspace);
  const std::int64_t all = params.rows * params.heads;
  args.state = {.acc = state, .max = state + all * geometry.value_dim, .sum = state + all * (geometry.value_dim + 1)};
  args.out = params.out;
  args.out_stride = params.out_stride;
  args.heads = params.heads;
  args.group = params.heads / geometry.kv_heads;
  args.scale = params.scale;
  args.bf16_activations = params.activation == ActivationType::kBF16;
  args.begin = params.begin;
  args.finish = params.finish;
  launch_plain_prefill(args, stream);
}

}  // namespace hotset::kernels::cuda
