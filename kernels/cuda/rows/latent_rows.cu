// A warp takes a row.
#include "core/check.h"
#include "kernels/cuda/rows/row_writer.cuh"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

template <class In>
__global__ void __launch_bounds__(kThreads)
    latent_rows_kernel(const LatentRowsParams params, const RowView view, std::int32_t floats) {
  extern __shared__ float4 memory[];
  const std::int64_t row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= params.rows) return;
  const std::int32_t latent = view.value_dim;
  const std::int32_t rope = view.key_dim - latent;
  const RotaryPart part{params.rotation.inv_freq, latent, params.rotation.rotary_dim / 2,
                        params.rotation.attention_factor};
  const HeadLanes<32> lanes(reinterpret_cast<float*>(memory) + threadIdx.x / 32 * floats, view.key_dim, part.half);
  const In* const in = static_cast<const In*>(params.in) + row * params.in_stride;
  const std::int64_t position = params.targets.positions[row];
  const Group first = lanes.template first_group<true>(in, latent);
  const Group first_of_rope = lanes.template first_group<true>(in + latent, rope);
  if (position < 0) return;
  std::byte* const target = target_row(params.targets, row, position, view.row_bytes);
  lanes.turn_to(position, part);
  lanes.template load_head<true>(in + latent, first_of_rope, rope, nullptr, 0.0F, lanes.values + latent);
  lanes.template load_head<true>(in, first, latent, params.norm, params.epsilon, lanes.values);
  const bool fp8 = view.dtype == KvDType::kFp8;
  float* const out = params.out == nullptr ? nullptr : params.out + row * params.out_stride;
  for (std::int32_t base = 0; base < latent; base += lanes.kStep) {
    const std::int32_t at = base + lanes.first_channel();
    Group group{};
    if (at < latent) group = load_group<true>(lanes.values, at, 0);
    if (out != nullptr && at < latent) store_group<true>(out, at, latent, group);
    write_group(lanes, view.dtype, target, target + view.key_scales_offset, at, latent, group);
  }
  for (std::int32_t at = lanes.first_channel(); at < rope; at += lanes.kStep) {
    const Group group = lanes.rotated(latent + at, part);
    if (out != nullptr) store_group<true>(out + latent, at, rope, group);
    if (fp8) {
      write_bf16(target + view.rope_offset + 2 * at, group);
    } else {
      write_group(lanes, view.dtype, target, nullptr, latent + at, view.key_dim, group);
    }
  }
  if (fp8) clear_padding(view, target, lanes.lane, 32);
}

}  // namespace

void launch_latent_rows(const LatentRowsParams& params, Stream stream) {
  if (params.rows <= 0) return;
  const KvGeometry& geometry = params.geometry;
  const std::int32_t rope = geometry.key_dim - geometry.value_dim;
  HS_CHECK(geometry.layout == KvGeometry::Layout::kLatent, "latent rows");
  HS_CHECK(geometry.key_dim % 16 == 0 && geometry.value_dim % 16 == 0 && rope >= 0, "channels are multiples of 16");
  HS_CHECK(params.rotation.rotary_dim % 2 == 0 && params.rotation.rotary_dim <= rope,
           "the rotary part lies in the rope part");
  HS_CHECK(params.norm != nullptr && aligned_rows(params.norm, ActivationType::kF32, 0) &&
               aligned_rows(params.in, params.in_type, params.in_stride) &&
               aligned_rows(params.out, ActivationType::kF32, params.out_stride) &&
               aligned_rows(params.targets.pool, ActivationType::kF32, 0),
           "rows are aligned to 16 bytes");
  const std::int64_t floats = rotary_head_floats(geometry.key_dim, params.rotation.rotary_dim / 2);
  const auto shared = static_cast<std::size_t>(kWarps * floats) * sizeof(float);
  HS_CHECK(shared <= 48 * 1024, "the rows are too wide");
  const auto blocks = static_cast<unsigned>(ceil_div(params.rows, kWarps));
  const auto kernel =
      params.in_type == ActivationType::kF32 ? latent_rows_kernel<float> : latent_rows_kernel<__nv_bfloat16>;
  kernel<<<blocks, kThreads, shared, stream>>>(params, row_view(geometry), static_cast<std::int32_t>(floats));
  HOTSET_CUDA_CHECK_LAUNCH();
}

}  // namespace hotset::kernels::cuda
