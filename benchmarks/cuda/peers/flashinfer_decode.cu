#include <cuda_bf16.h>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>
#include <vector>

#include "benchmarks/cuda/peers/flashinfer_decode.h"
#include "kernels/cuda/runtime.h"

namespace hotset::peers {
namespace {

using kernels::cuda::DeviceBuffer;
using DecodeParams = flashinfer::BatchDecodeParams<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, std::int32_t>;
using Attention = flashinfer::DefaultAttention<false, false, false, false>;

constexpr std::uint32_t kDim = 128;
constexpr auto kNoPositions = flashinfer::PosEncodingMode::kNone;
constexpr std::size_t kFloatBytes = std::size_t{256} << 20;
constexpr std::size_t kIntBytes = std::size_t{8} << 20;

DeviceBuffer<std::int32_t> on_device(const std::vector<std::int32_t>& values) {
  DeviceBuffer<std::int32_t> buffer(values.size());
  buffer.upload(values.data(), values.size());
  return buffer;
}

}  // namespace

struct FlashInferDecode::Plan {
  Shape shape;
  flashinfer::DecodePlanInfo info;
  DeviceBuffer<std::byte> floats, ints;
  DeviceBuffer<std::int32_t> starts, last_page_lengths;

  template <class T>
  [[nodiscard]] T* int_at(std::int64_t offset) const {
    return reinterpret_cast<T*>(ints.data() + offset);
  }
};

FlashInferDecode::FlashInferDecode(const Shape& shape) : plan_(std::make_unique<Plan>()) {
  std::vector<std::int32_t> starts(static_cast<std::size_t>(shape.batch + 1));
  for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = static_cast<std::int32_t>(i * shape.count);
  plan_->shape = shape;
  plan_->floats = DeviceBuffer<std::byte>(kFloatBytes);
  plan_->ints = DeviceBuffer<std::byte>(kIntBytes);
  plan_->starts = on_device(starts);
  plan_->last_page_lengths = on_device(std::vector<std::int32_t>(static_cast<std::size_t>(shape.batch), 1));
  std::vector<std::byte> host_ints(kIntBytes);
  const auto plan = [&]() -> cudaError_t {
    DISPATCH_GQA_GROUP_SIZE(shape.heads / shape.kv_heads, kGroup, {
      return flashinfer::DecodePlan<kDim, kNoPositions, Attention, DecodeParams>(
          plan_->floats.data(), kFloatBytes, plan_->ints.data(), host_ints.data(), kIntBytes, plan_->info,
          starts.data(), static_cast<std::uint32_t>(shape.batch), static_cast<std::uint32_t>(shape.heads),
          /*page_size=*/1, /*enable_cuda_graph=*/false, /*stream=*/nullptr,
          flashinfer::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<kGroup, kDim, kNoPositions, Attention,
                                                                          DecodeParams>);
    });
    return cudaErrorInvalidValue;
  };
  HOTSET_CUDA_CHECK(plan());
  HOTSET_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

FlashInferDecode::~FlashInferDecode() = default;

void FlashInferDecode::launch(const FlashInferDecodeParams& params, kernels::cuda::Stream stream) {
  const Plan& plan = *plan_;
  const flashinfer::DecodePlanInfo& info = plan.info;
  const auto kv_heads = static_cast<std::uint32_t>(plan.shape.kv_heads);
  // Keys and values of a slot lie in one row.
  const std::int64_t strides[] = {std::int64_t{2} * kv_heads * kDim, std::int64_t{kv_heads} * kDim, kDim};
  auto* const keys = reinterpret_cast<__nv_bfloat16*>(const_cast<std::byte*>(params.pool));
  const flashinfer::paged_kv_t<__nv_bfloat16, std::int32_t> paged(
      kv_heads, /*page_size=*/1, kDim, static_cast<std::uint32_t>(plan.shape.batch), flashinfer::QKVLayout::kNHD, keys,
      keys + kv_heads * kDim, strides, const_cast<std::int32_t*>(params.slots), plan.starts.data(),
      plan.last_page_lengths.data());
  DecodeParams decode(static_cast<__nv_bfloat16*>(const_cast<void*>(params.q)), nullptr, paged,
                      static_cast<__nv_bfloat16*>(params.out), nullptr, nullptr,
                      static_cast<std::uint32_t>(plan.shape.heads), plan.shape.heads * static_cast<std::int32_t>(kDim),
                      static_cast<std::int32_t>(kDim), /*window_left=*/-1, 0.0F, params.scale, 1.0F, 1e4F);
  decode.padded_batch_size = static_cast<std::uint32_t>(info.padded_batch_size);
  decode.request_indices = plan.int_at<std::int32_t>(info.request_indices_offset);
  decode.kv_tile_indices = plan.int_at<std::int32_t>(info.kv_tile_indices_offset);
  decode.o_indptr = plan.int_at<std::int32_t>(info.o_indptr_offset);
  decode.kv_chunk_size_ptr = plan.int_at<std::int32_t>(info.kv_chunk_size_ptr_offset);
  __nv_bfloat16* parts = nullptr;
  float* part_sums = nullptr;
  if (info.split_kv) {
    parts = reinterpret_cast<__nv_bfloat16*>(plan.floats.data() + info.v_offset);
    part_sums = reinterpret_cast<float*>(plan.floats.data() + info.s_offset);
    decode.block_valid_mask = plan.int_at<bool>(info.block_valid_mask_offset);
  }
  HOTSET_CUDA_CHECK((flashinfer::BatchDecodeWithPagedKVCacheDispatched<kDim, kNoPositions, Attention>(
      decode, parts, part_sums, /*enable_pdl=*/true, stream)));
}

}  // namespace hotset::peers
