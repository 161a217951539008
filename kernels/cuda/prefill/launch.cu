// Checks the parameters and chooses the form.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/prefill/prefill_args.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kWidenedRows = kWidenedTiles * kPageTokens;

int capability_major() {
  int device = 0;
  int major = 0;
  HOTSET_CUDA_CHECK(cudaGetDevice(&device));
  HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

std::int64_t state_bytes(const KvGeometry& geometry, std::int64_t heads, std::int64_t rows) {
  return round_up(rows * heads * (geometry.value_dim + 5) * 4, 16);
}

void check_params(const PrefillAttentionDeviceParams& params) {
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.kv_heads > 0 && params.heads > 0 && params.heads % geometry.kv_heads == 0,
           "query heads do not divide into KV heads");
  HS_CHECK(geometry.key_dim > 0 && geometry.value_dim > 0 && geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0,
           "channels of keys and values are multiples of 16");
  HS_CHECK(aligned(params.pool) && aligned(params.q) && params.q_stride % 8 == 0, "pool and queries are aligned");
  HS_CHECK(params.scale > 0.0F, "the scale is positive");
  HS_CHECK(params.first_tile % kPrefillPieceTiles == 0, "a piece begins at a multiple of kPrefillPieceTiles");
  HS_CHECK(params.tile_count % kPrefillPieceTiles == 0 ||
               (params.first_tile + params.tile_count) * kPageTokens >= params.first_position + params.rows,
           "a piece ends at a multiple of kPrefillPieceTiles");
  HS_CHECK((params.begin && params.finish) || params.workspace != nullptr, "pieces need a workspace");
  HS_CHECK(aligned(params.workspace), "the workspace is aligned");
  HS_CHECK(!params.finish || params.activation != ActivationType::kBF16 ||
               (aligned(params.out) && params.out_stride % 8 == 0),
           "results are aligned");
  HS_CHECK(params.expanded == nullptr || geometry.dtype != KvDType::kFp8, "expanded keys are not FP8");
}

KvSource source_of(const PrefillAttentionDeviceParams& params) {
  const KvGeometry& geometry = params.geometry;
  const std::int64_t element = kv_dtype_bytes(geometry.dtype);
  if (params.expanded == nullptr) {
    return {.keys = params.pool,
            .key_row = geometry.row_bytes(),
            .key_head = geometry.key_dim * element,
            .shared_keys = nullptr,
            .shared_row = 0,
            .own_dim = geometry.key_dim,
            .values = params.pool + geometry.value_offset_bytes(),
            .value_row = geometry.row_bytes(),
            .value_head = geometry.value_dim * element};
  }
  const ExpandedKeysValues& expanded = *params.expanded;
  return {.keys = static_cast<const std::byte*>(expanded.keys),
          .key_row = expanded.key_row_stride * element,
          .key_head = expanded.key_head_stride * element,
          .shared_keys = static_cast<const std::byte*>(expanded.shared_keys),
          .shared_row = expanded.shared_row_stride * element,
          .own_dim = geometry.key_dim - expanded.shared_dim,
          .values = static_cast<const std::byte*>(expanded.values),
          .value_row = expanded.value_row_stride * element,
          .value_head = expanded.value_head_stride * element};
}

PrefillArgs args_of(const PrefillAttentionDeviceParams& params) {
  const KvGeometry& geometry = params.geometry;
  auto* const state = static_cast<float*>(params.workspace);
  const std::int64_t all = params.rows * params.heads;
  PrefillArgs args{};
  args.view = row_view(geometry);
  args.source = source_of(params);
  if (params.expanded == nullptr) {
    args.pool = params.pool;
    args.pages = params.pages;
  }
  args.q = params.q;
  args.q_stride = params.q_stride;
  args.rows = params.rows;
  args.first_position = params.first_position;
  args.first_tile = params.first_tile;
  args.end_tile = std::max(params.first_tile, std::min(params.first_tile + params.tile_count,
                                                       pages_for_tokens(params.first_position + params.rows)));
  if (state != nullptr) {
    args.state = {.acc = state, .max = state + all * geometry.value_dim, .sum = state + all * (geometry.value_dim + 1)};
  }
  args.out = params.out;
  args.out_stride = params.out_stride;
  args.heads = params.heads;
  args.group = params.heads / geometry.kv_heads;
  args.scale = params.scale;
  args.bf16_activations = params.activation == ActivationType::kBF16;
  args.begin = params.begin;
  args.finish = params.finish;
  return args;
}

// FP8 rows: some at a time are widened, then attended to as bf16 rows.
void launch_widened(const PrefillAttentionDeviceParams& params, const PrefillArgs& all, Stream stream) {
  HS_CHECK(params.workspace != nullptr && aligned(params.workspace), "FP8 rows need a workspace");
  const KvGeometry& geometry = params.geometry;
  KvGeometry wide = geometry;
  wide.dtype = KvDType::kBF16;
  auto* const rows = static_cast<std::byte*>(params.workspace) + state_bytes(geometry, params.heads, params.rows);
  auto* const key_scales = reinterpret_cast<float*>(rows + kWidenedRows * wide.row_bytes());
  float* const value_scales = key_scales + kWidenedRows * geometry.kv_heads;
  PrefillAttentionDeviceParams staged = params;
  staged.geometry = wide;
  staged.pool = rows;
  staged.pages = nullptr;
  for (std::int64_t tile = all.first_tile; tile == all.first_tile || tile < all.end_tile; tile += kWidenedTiles) {
    PrefillArgs codes = all;
    codes.first_tile = tile;
    codes.end_tile = std::min(all.end_tile, tile + kWidenedTiles);
    if (all.pages != nullptr) {
      codes.pages = all.pages + (tile - all.first_tile);
    } else {
      codes.pool = all.pool + (tile - all.first_tile) * geometry.page_bytes();
    }
    launch_widen_rows(codes, rows, key_scales, value_scales, kWidenedRows, stream);
    PrefillArgs args = args_of(staged);
    args.key_scales = key_scales;
    args.value_scales = value_scales;
    args.scale_stride = kWidenedRows;
    args.first_tile = codes.first_tile;
    args.end_tile = codes.end_tile;
    args.begin = all.begin && tile == all.first_tile;
    args.finish = all.finish && codes.end_tile == all.end_tile;
    launch_warpgroup_prefill(args, stream);
  }
}

}  // namespace

PrefillForm prefill_attention_form(const KvGeometry& geometry, int capability_major) {
  const bool tuned = geometry.layout == KvGeometry::Layout::kGrouped && geometry.dtype != KvDType::kF32 &&
                     geometry.key_dim <= (geometry.dtype == KvDType::kFp8 ? 128 : 192) && geometry.value_dim <= 128 &&
                     capability_major == 9;
  return tuned ? PrefillForm::kWarpgroup : PrefillForm::kPlain;
}

std::int64_t prefill_attention_workspace_bytes(const KvGeometry& geometry, std::int32_t heads, std::int64_t rows) {
  const std::int64_t state = state_bytes(geometry, heads, rows);
  if (geometry.dtype != KvDType::kFp8) return state;
  return state + kWidenedRows * geometry.kv_heads * (2 * (std::int64_t{geometry.key_dim} + geometry.value_dim) + 8);
}

void launch_prefill_attention(const PrefillAttentionDeviceParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check_params(params);
  const PrefillArgs args = args_of(params);
  const bool blocks = args.source.own_dim == params.geometry.key_dim || args.source.own_dim % 64 == 0;
  if (params.plain || !blocks || prefill_attention_form(params.geometry, capability_major()) == PrefillForm::kPlain) {
    return launch_plain_prefill(args, stream);
  }
  if (params.geometry.dtype == KvDType::kFp8) return launch_widened(params, args, stream);
  launch_warpgroup_prefill(args, stream);
}

}  // namespace hotset::kernels::cuda
