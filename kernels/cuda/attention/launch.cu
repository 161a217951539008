// Checks the parameters and chooses the form.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/attention/row_view.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

int capability_major() {
  int device = 0;
  int major = 0;
  HOTSET_CUDA_CHECK(cudaGetDevice(&device));
  HOTSET_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major;
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

void check_params(const SparseAttentionParams& params) {
  const KvGeometry& geometry = params.geometry;
  HS_CHECK(geometry.kv_heads > 0 && params.heads > 0 && params.heads % geometry.kv_heads == 0,
           "query heads do not divide into KV heads");
  HS_CHECK(geometry.key_dim > 0 && geometry.value_dim > 0 && geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0,
           "channels of keys and values are multiples of 16");
  HS_CHECK(aligned(params.pool) && aligned(params.q) && params.q_stride % 8 == 0, "pool and queries are aligned");
  HS_CHECK(params.max_count >= 0 && (params.whole != nullptr || params.max_count <= params.slot_stride),
           "lists overlap");
}

std::int64_t run_entries(AttentionForm form) { return form == AttentionForm::kLatent ? kLatentRun : kGroupedRun; }

// Of partial results: of every run of a list that has several; of the latent form's whole lists the totals.
std::int64_t workspace_floats(const KvGeometry& geometry, std::int32_t heads, std::int64_t rows, std::int64_t max_count,
                              AttentionForm form) {
  const std::int64_t runs = ceil_div(max_count, run_entries(form));
  if (runs <= 1) return 0;
  const auto partials = [&](std::int64_t some) { return some * heads * runs * (geometry.value_dim + kPartialTail); };
  if (form != AttentionForm::kLatent) return partials(rows);
  const std::int64_t blocks = ceil_div(heads, kLatentBlockHeads);
  const std::int64_t spread = std::min(rows, (kLatentFillingLists - 1) / blocks);
  const std::int64_t totals = rows > spread ? rows * blocks * kLatentBlockHeads * geometry.value_dim : 0;
  return std::max(totals, partials(spread));
}

}  // namespace

AttentionForm sparse_attention_form(const KvGeometry& geometry, std::int32_t heads, int capability_major) {
  if (geometry.dtype == KvDType::kF32) return AttentionForm::kPlain;
  if (geometry.layout == KvGeometry::Layout::kLatent) {
    const bool tuned = geometry.key_dim == 576 && geometry.value_dim == 512 && heads >= 16 && capability_major == 9;
    return tuned ? AttentionForm::kLatent : AttentionForm::kPlain;
  }
  const std::int32_t dim = geometry.key_dim;
  const bool tuned = dim == geometry.value_dim && (dim == 64 || dim == 80 || dim == 96 || dim == 128);
  return tuned ? AttentionForm::kGrouped : AttentionForm::kPlain;
}

std::int64_t sparse_attention_workspace_bytes(const KvGeometry& geometry, std::int32_t heads, std::int64_t rows,
                                              std::int64_t max_count, std::optional<AttentionForm> form) {
  constexpr std::int64_t kLeast = 16;  // a workspace is never null
  const AttentionForm own = form.value_or(sparse_attention_form(geometry, heads, 9));
  std::int64_t floats = std::max(kLeast, workspace_floats(geometry, heads, rows, max_count, own));
  if (!form) floats = std::max(floats, workspace_floats(geometry, heads, rows, max_count, AttentionForm::kPlain));
  return floats * static_cast<std::int64_t>(sizeof(float));
}

AttentionForm sparse_attention_form(const KvGeometry& geometry, std::int32_t heads) {
  return sparse_attention_form(geometry, heads, capability_major());
}

void launch_sparse_attention(const SparseAttentionParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check_params(params);
  const AttentionForm form =
      params.plain ? AttentionForm::kPlain : sparse_attention_form(params.geometry, params.heads, capability_major());
  HS_CHECK(aligned(params.workspace) && params.workspace != nullptr && params.arrivals != nullptr,
           "attention needs a workspace and arrivals");
  const AttentionArgs args{
      .view = row_view(params.geometry),
      .q = params.q,
      .q_stride = params.q_stride,
      .pool = params.pool,
      .slots = params.slots,
      .slot_stride = params.slot_stride,
      .counts = params.counts,
      .max_count = params.max_count,
      .whole = params.whole,
      .lengths = params.lengths,
      .out = params.out,
      .out_stride = params.out_stride,
      .rows = params.rows,
      .heads = params.heads,
      .group = params.heads / params.geometry.kv_heads,
      .scale = params.scale,
      .q_bf16 = params.q_type == ActivationType::kBF16,
      .out_bf16 = params.out_type == ActivationType::kBF16,
      .int64_slots = params.slot_type == SlotType::kInt64,
      .workspace = static_cast<float*>(params.workspace),
      .arrivals = params.arrivals,
      .max_runs = static_cast<std::int32_t>(std::max<std::int64_t>(1, ceil_div(params.max_count, run_entries(form))))};
  switch (form) {
    case AttentionForm::kPlain: return launch_plain_attention(args, stream);
    case AttentionForm::kLatent:
      HS_CHECK(params.whole == nullptr, "the latent form takes lists of slots");
      return launch_latent_attention(args, stream);
    case AttentionForm::kGrouped: break;
  }
  switch (params.geometry.key_dim) {
    case 64: return launch_grouped_attention_64(args, stream);
    case 80: return launch_grouped_attention_80(args, stream);
    case 96: return launch_grouped_attention_96(args, stream);
    default: return launch_grouped_attention_128(args, stream);
  }
}

}  // namespace hotset::kernels::cuda
