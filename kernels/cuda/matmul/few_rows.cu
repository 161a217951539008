#include <array>

#include "core/check.h"
#include "kernels/cuda/experts/hopper.h"
#include "kernels/cuda/experts/tensor_map.h"
#include "kernels/cuda/matmul/few_rows.cuh"
#include "kernels/cuda/matmul/few_rows.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kTileRows = 16;

int product_units(const MatmulShape& shape, int tiles) {
  const std::int64_t channels = tiles * (shape.gated ? kTileRows / 2 : kTileRows);
  return static_cast<int>((shape.n + channels - 1) / channels);
}

template <class Form>
FewRowsMaps make_maps(const MatmulShape& shape, const MatmulOperands& operands) {
  constexpr auto kSize = static_cast<std::uint64_t>(sizeof(typename Form::Element));
  constexpr auto kType = Form::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto bytes = [](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * kSize; };
  const auto n = static_cast<std::uint64_t>(shape.n);
  const auto k = static_cast<std::uint64_t>(shape.k);
  const auto batch = static_cast<std::uint64_t>(shape.batch);
  FewRowsMaps maps;
  if (shape.gated) {
    const std::array<TensorDimension, 4> weight = {{{k, 0, Form::kDepth},
                                                    {8, bytes(shape.k), 8},
                                                    {2, n * bytes(shape.k), 2},
                                                    {n / 8, 8 * bytes(shape.k), Form::kTiles}}};
    maps.weight = make_tensor_map(kType, operands.weight, weight, true);
  } else {
    const std::int64_t step = shape.batch > 1 ? shape.weight_step : shape.n * shape.k;
    const std::array<TensorDimension, 3> weight = {
        {{k, 0, Form::kDepth}, {n, bytes(shape.k), kTileRows * Form::kTiles}, {batch, bytes(step), 1}}};
    maps.weight = make_tensor_map(kType, operands.weight, weight, true);
  }
  const std::int64_t step = shape.batch > 1 ? shape.x_step : shape.m * shape.x_stride;
  const std::array<TensorDimension, 3> x = {
      {{k, 0, Form::kDepth},
       {static_cast<std::uint64_t>(shape.m), bytes(shape.x_stride), Form::kTokens},
       {batch, bytes(step), 1}}};
  maps.x = make_tensor_map(kType, operands.x, x, true);
  return maps;
}

template <class Form>
void launch_form(const MatmulShape& shape, const MatmulOperands& operands, Stream stream) {
  constexpr std::size_t kBytes = sizeof(FewRowsShared<Form>) + 1024;
  static const bool prepared = [] {
    HOTSET_CUDA_CHECK(cudaFuncSetAttribute(few_rows_kernel<Form>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(kBytes)));
    return true;
  }();
  (void)prepared;
  FewRowsArgs args = {};
  args.bias = operands.bias;
  args.y = operands.y;
  args.y_stride = shape.y_stride;
  args.y_step = shape.y_step;
  args.n = shape.n;
  args.m = static_cast<int>(shape.m);
  args.items = static_cast<int>((shape.k + Form::kDepth - 1) / Form::kDepth);
  args.product_units = product_units(shape, Form::kTiles);
  args.units = args.product_units * static_cast<int>(shape.batch);
  args.y_f32 = shape.y_type == ActivationType::kF32;
  args.accumulate = shape.accumulate;
  args.gated = shape.gated;
  const auto blocks = static_cast<unsigned>(std::min(args.units, launch_limits().multiprocessors));
  launch_dependent(few_rows_kernel<Form>, dim3(blocks), Form::kThreads, kBytes, 0, stream,
                   make_maps<Form>(shape, operands), args);
}

template <class Element, int kTokenTiles, int kWarps, int kBlocks>
void launch_tiles(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles) {
  if (tiles == 1) return launch_form<FewRowsForm<Element, 1, kTokenTiles, kWarps, kBlocks>>(shape, operands, stream);
  if constexpr (!std::is_same_v<Element, float>) {
    if (tiles == 3) return launch_form<FewRowsForm<Element, 3, kTokenTiles, kWarps, kBlocks>>(shape, operands, stream);
    if (tiles >= 4) return launch_form<FewRowsForm<Element, 4, kTokenTiles, kWarps, kBlocks>>(shape, operands, stream);
  }
  launch_form<FewRowsForm<Element, 2, kTokenTiles, kWarps, kBlocks>>(shape, operands, stream);
}

// Even shares of the multiprocessors; of equal ones the larger units, which read x less often.
int best_tiles(const MatmulShape& shape) {
  const std::int64_t blocks = launch_limits().multiprocessors;
  int best = 1;
  std::int64_t best_share = 0;
  for (int tiles = 1; tiles <= 4; ++tiles) {
    const std::int64_t units = product_units(shape, tiles) * shape.batch;
    const std::int64_t share = (units + blocks - 1) / blocks * tiles;
    if (tiles == 1 || share <= best_share) {
      best = tiles;
      best_share = share;
    }
  }
  return best;
}

}  // namespace

bool few_rows_takes(const MatmulShape& shape) {
  const bool f32 = shape.type == ActivationType::kF32;
  const std::int64_t step = f32 ? 4 : 8;  // elements of 16 bytes
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  return is_hopper() && shape.m <= (f32 ? kMostFewRowsF32 : kMostFewRows) && shape.n < kMost && shape.k < kMost &&
         shape.n * shape.batch < kMost && shape.k % step == 0 && shape.x_stride % step == 0 &&
         shape.x_step % step == 0 && shape.weight_step % step == 0 &&
         (!shape.gated || (shape.n % 8 == 0 && shape.batch == 1));
}

void launch_few_rows(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles) {
  HS_CHECK(few_rows_takes(shape), "a product of few rows");
  const int variant = tiles / 10;
  tiles %= 10;
  if (tiles == 0) tiles = best_tiles(shape);
  if (shape.type == ActivationType::kF32) {
    launch_tiles<float, 1, 8, 1>(shape, operands, stream, tiles);
  } else if (shape.m <= 8) {
    if (variant == 0) launch_tiles<__nv_bfloat16, 1, 8, 1>(shape, operands, stream, tiles);
    if (variant == 1) launch_tiles<__nv_bfloat16, 1, 4, 2>(shape, operands, stream, tiles);
    if (variant == 2) launch_tiles<__nv_bfloat16, 1, 8, 2>(shape, operands, stream, tiles);
  } else {
    launch_tiles<__nv_bfloat16, 2, 8, 1>(shape, operands, stream, tiles);
  }
}

}  // namespace hotset::kernels::cuda
