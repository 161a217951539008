#include <array>

#include "core/concat.h"
#include "kernels/cuda/experts/tensor_map.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// By name at run time: a program linked with the driver would not start without one.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result = {};
  HOTSET_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || function == nullptr) {
    throw CudaError("the CUDA driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap make_tensor_map(CUtensorMapDataType type, const void* data, std::span<const TensorDimension> dimensions,
                            bool swizzle) {
  static const Encode encode = find_encode();
  std::array<std::uint64_t, 5> sizes = {};
  std::array<std::uint64_t, 4> strides = {};
  std::array<std::uint32_t, 5> box = {};
  constexpr std::array<std::uint32_t, 5> kEveryElement = {1, 1, 1, 1, 1};
  HS_CHECK(!dimensions.empty() && dimensions.size() <= sizes.size(), "one to five dimensions");
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    sizes[i] = dimensions[i].size;
    box[i] = dimensions[i].box;
    if (i > 0) strides[i - 1] = dimensions[i].stride;
  }
  CUtensorMap map;
  const CUresult status =
      encode(&map, type, static_cast<std::uint32_t>(dimensions.size()), const_cast<void*>(data), sizes.data(),
             strides.data(), box.data(), kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) throw CudaError(concat("a tensor map was refused: error ", static_cast<int>(status)));
  return map;
}

}  // namespace hotset::kernels::cuda
