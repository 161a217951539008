#include <cudaTypedefs.h>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/prefill/tensor_map.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

// From the driver at run time: a program that links to it does not start without one.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  HOTSET_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) throw CudaError("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

}  // namespace

CUtensorMap map_rows(const std::byte* base, std::int32_t channels, std::int32_t heads, std::int64_t head_stride,
                     std::int64_t row_stride) {
  static const auto encode = find_encoder();
  constexpr cuuint64_t kPages = cuuint64_t{1} << 25;  // more than memory holds: nothing is read but what is asked for
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(channels), static_cast<cuuint64_t>(heads), kPageTokens, kPages};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(head_stride), static_cast<cuuint64_t>(row_stride),
                                 static_cast<cuuint64_t>(row_stride * kPageTokens)};
  const cuuint32_t box[4] = {64, 1, kPageTokens, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<std::byte*>(base), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  HS_CHECK(status == CUDA_SUCCESS, "rows that a tensor map cannot describe");
  return map;
}

}  // namespace hotset::kernels::cuda
