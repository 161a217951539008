#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/kv_geometry.h"
#include "kernels/cuda/experts/hopper.h"
#include "kernels/cuda/experts/tensor_map.h"
#include "kernels/cuda/matmul/few_rows_fp8.cuh"
#include "kernels/cuda/matmul/few_rows_fp8.h"
#include "kernels/tensor.h"

namespace hotset::kernels::cuda {
namespace {

// Rows as lines of 128 bytes.
template <class Form>
FewRowsFp8Maps make_maps(const FewRowsFp8Params& params) {
  constexpr auto kTiles = static_cast<std::uint32_t>(Form::kTiles);
  const auto n = static_cast<std::uint64_t>(params.n);
  const auto k = static_cast<std::uint64_t>(params.k);
  const auto m = static_cast<std::uint32_t>(params.m);
  FewRowsFp8Maps maps;
  if (params.gated) {
    const std::array<TensorDimension, 5> weight = {
        {{128, 0, 128}, {8, k, 8}, {2, n * k, 2}, {n / 8, 8 * k, kTiles}, {k / 128, 128, 1}}};
    maps.weight = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, params.weight, weight, true);
  } else {
    const std::array<TensorDimension, 4> weight = {
        {{128, 0, 128}, {n, k, 16 * kTiles}, {k / 128, 128, 1}, {1, n * k, 1}}};
    maps.weight = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, params.weight, weight, true);
  }
  const auto x_row = static_cast<std::uint64_t>(2 * params.x_stride);
  const std::array<TensorDimension, 4> x = {{{64, 0, 64}, {m, x_row, m}, {k / 64, 128, 2}, {1, m * x_row, 1}}};
  maps.x = make_tensor_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, params.x, x, true);
  return maps;
}

int units_of(const FewRowsFp8Params& params, int tiles) {
  const std::int64_t channels = tiles * (params.gated ? 8 : 16);
  return static_cast<int>((params.n + channels - 1) / channels);
}

template <class Form>
void launch_form(const FewRowsFp8Params& params, Stream stream) {
  constexpr std::size_t kBytes = sizeof(FewRowsFp8Shared<Form>) + 1024;
  static const bool prepared = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(few_rows_fp8_kernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kBytes)));
    return true;
  }();
  (void)prepared;
  FewRowsFp8Args args = {};
  args.scales = params.scales;
  args.bias = params.bias;
  args.y = params.y;
  args.y_stride = params.y_stride;
  args.n = params.n;
  args.m = static_cast<int>(params.m);
  args.items = static_cast<int>(params.k / Form::kDepth);
  args.units = units_of(params, Form::kTiles);
  args.up_scales = (params.n + Form::kDepth - 1) / Form::kDepth * args.items;
  args.y_f32 = params.y_type == ActivationType::kF32;
  args.accumulate = params.accumulate;
  args.gated = params.gated;
  const auto blocks = static_cast<unsigned>(std::min(args.units, launch_limits().multiprocessors));
  launch_dependent(few_rows_fp8_kernel<Form>, dim3(blocks), Form::kThreads, kBytes, 0, stream, make_maps<Form>(params),
                   args);
}

// A narrow weight gives each multiprocessor little to do: more warps share a unit's sum. How many decides the order of
// the sum, so it goes by n alone.
bool is_narrow(const FewRowsFp8Params& params) { return (params.gated ? 2 : 1) * params.n <= 2048; }

template <int kTokenTiles>
void launch_tiles(const FewRowsFp8Params& params, Stream stream, int tiles) {
  if (is_narrow(params)) {
    launch_form<FewRowsFp8Form<1, kTokenTiles, 16>>(params, stream);
  } else if (tiles == 1) {
    launch_form<FewRowsFp8Form<1, kTokenTiles, 8>>(params, stream);
  } else if (tiles == 2) {
    launch_form<FewRowsFp8Form<2, kTokenTiles, 8>>(params, stream);
  } else {
    launch_form<FewRowsFp8Form<4, kTokenTiles, 8>>(params, stream);
  }
}

// Those for which no multiprocessor has more to do; of equal ones the most, which read x least often.
int best_tiles(const FewRowsFp8Params& params) {
  const auto most_of_one = [&](int tiles) {
    return ceil_div(units_of(params, tiles), launch_limits().multiprocessors) * tiles;
  };
  int best = 4;
  for (const int tiles : {2, 1}) {
    if (most_of_one(tiles) < most_of_one(best)) best = tiles;
  }
  return best;
}

}  // namespace

void launch_few_rows_fp8(const FewRowsFp8Params& params, Stream stream, int tiles) {
  if (params.m <= 0) return;
  require_hopper("FP8 products");
  FewRowsFp8Params own = params;
  if (own.x_stride == 0) own.x_stride = own.k;
  if (own.y_stride == 0) own.y_stride = own.n;
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  HS_CHECK(own.m <= kMostFewRowsFp8 && own.n >= 1 && own.n < kMost && own.k >= 1 && own.k < kMost, "few rows");
  HS_CHECK(own.k % kFp8Block == 0 && own.x_stride % 8 == 0, "rows fit the tensor copies");
  HS_CHECK(own.x_stride >= own.k && own.y_stride >= own.n, "rows do not overlap");
  HS_CHECK(own.bias == nullptr || own.y_type == ActivationType::kF32, "a bias comes with float32");
  HS_CHECK(!own.gated || (own.n % 8 == 0 && own.bias == nullptr && !own.accumulate), "gated products are plain ones");
  if (tiles == 0) tiles = best_tiles(own);
  if (own.m <= 8) {
    launch_tiles<1>(own, stream, tiles);
  } else {
    launch_tiles<2>(own, stream, tiles);
  }
}

}  // namespace hotset::kernels::cuda
