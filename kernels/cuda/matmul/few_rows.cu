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

std::uint64_t bytes_of(std::int64_t elements, ActivationType type) {
  return static_cast<std::uint64_t>(elements) * (type == ActivationType::kF32 ? 4 : 2);
}

CUtensorMapDataType map_type(ActivationType type) {
  return type == ActivationType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

// Rows as lines of 128 bytes.
template <class Form>
FewRowsMaps make_maps(const MatmulShape& shape, const MatmulOperands& operands) {
  constexpr auto kLine = static_cast<std::uint32_t>(Form::kLineDepth);
  const auto n = static_cast<std::uint64_t>(shape.n);
  const auto batch = static_cast<std::uint64_t>(shape.batch);
  const std::uint64_t row = bytes_of(shape.k, shape.type);
  const std::uint64_t lines = row / 128;
  FewRowsMaps maps;
  if (shape.gated) {
    const std::array<TensorDimension, 5> weight = {
        {{kLine, 0, kLine}, {8, row, 8}, {2, n * row, 2}, {n / 8, 8 * row, Form::kTiles}, {lines, 128, Form::kLines}}};
    maps.weight = make_tensor_map(map_type(shape.type), operands.weight, weight, true);
  } else {
    const std::int64_t step = shape.batch > 1 ? shape.weight_step : shape.n * shape.k;
    const std::array<TensorDimension, 4> weight = {{{kLine, 0, kLine},
                                                    {n, row, kTileRows * Form::kTiles},
                                                    {lines, 128, Form::kLines},
                                                    {batch, bytes_of(step, shape.type), 1}}};
    maps.weight = make_tensor_map(map_type(shape.type), operands.weight, weight, true);
  }
  const ActivationType x_type = shape.wide_x ? ActivationType::kF32 : shape.type;
  const std::uint32_t x_line = x_type == ActivationType::kF32 ? 32 : 64;
  const auto m = static_cast<std::uint32_t>(shape.m);
  const std::int64_t step = shape.batch > 1 ? shape.x_step : shape.m * shape.x_stride;
  const std::array<TensorDimension, 4> x = {{{x_line, 0, x_line},
                                             {m, bytes_of(shape.x_stride, x_type), m},
                                             {static_cast<std::uint64_t>(shape.k) / x_line, 128, Form::kXLines},
                                             {batch, bytes_of(step, x_type), 1}}};
  maps.x = make_tensor_map(map_type(x_type), operands.x, x, true);
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
  launch_dependent(few_rows_kernel<Form>, dim3(blocks), kFewRowsThreads, kBytes, 0, stream,
                   make_maps<Form>(shape, operands), args);
}

template <class Element, int kTokenTiles, int kSplit, bool kWide>
void launch_tiles(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles) {
  if (tiles == 1) {
    launch_form<FewRowsForm<Element, 1, kTokenTiles, kSplit, kWide>>(shape, operands, stream);
  } else {
    launch_form<FewRowsForm<Element, 2, kTokenTiles, kSplit, kWide>>(shape, operands, stream);
  }
}

template <class Element, int kTokenTiles, bool kWide>
void launch_split(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles, bool narrow) {
  if (narrow) {
    launch_tiles<Element, kTokenTiles, 1, kWide>(shape, operands, stream, tiles);
  } else {
    launch_tiles<Element, kTokenTiles, kFewRowsWarps, kWide>(shape, operands, stream, tiles);
  }
}

// Two where a unit's sum is short, or where warps of their own find enough to do: measured.
int best_tiles(const MatmulShape& shape, bool narrow) {
  if (!narrow) return bytes_of(shape.k, shape.type) <= 4096 ? 2 : 1;
  const std::int64_t workers = launch_limits().multiprocessors * kFewRowsWarps;
  return 2 * product_units(shape, 2) * shape.batch <= workers * 5 / 4 ? 1 : 2;
}

}  // namespace

bool few_rows_takes(const MatmulShape& shape) {
  const bool f32 = shape.type == ActivationType::kF32;
  const std::int64_t step = f32 ? 4 : 8;  // elements of 16 bytes
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  return is_hopper() && shape.m <= (f32 ? kMostFewRowsF32 : kMostFewRows) && shape.n < kMost && shape.k < kMost &&
         shape.n * shape.batch < kMost && shape.k % (8 * step) == 0 && shape.x_stride % step == 0 &&
         shape.x_step % step == 0 && shape.weight_step % step == 0 && !(f32 && shape.wide_x) &&
         (!shape.gated || (shape.n % 8 == 0 && shape.batch == 1));
}

void launch_few_rows(const MatmulShape& shape, const MatmulOperands& operands, Stream stream, int tiles) {
  HS_CHECK(few_rows_takes(shape), "a product of few rows");
  // So few items are not shared out: which warps add up what depends on k alone.
  const bool narrow = bytes_of(shape.k, shape.type) <= 1024;
  if (tiles == 0) tiles = best_tiles(shape, narrow);
  if (shape.type == ActivationType::kF32) {
    launch_split<float, 1, false>(shape, operands, stream, tiles, narrow);
  } else if (shape.m <= 8 && shape.wide_x) {
    launch_split<__nv_bfloat16, 1, true>(shape, operands, stream, tiles, narrow);
  } else if (shape.m <= 8) {
    launch_split<__nv_bfloat16, 1, false>(shape, operands, stream, tiles, narrow);
  } else if (shape.wide_x) {
    launch_split<__nv_bfloat16, 2, true>(shape, operands, stream, tiles, narrow);
  } else {
    launch_split<__nv_bfloat16, 2, false>(shape, operands, stream, tiles, narrow);
  }
}

}  // namespace hotset::kernels::cuda
