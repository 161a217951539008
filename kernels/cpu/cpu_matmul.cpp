#include "kernels/cpu/cpu_matmul.h"

#include <algorithm>

#include "core/check.h"

namespace hotset::kernels {
namespace {

constexpr std::int64_t kRowsPerTask = 128;   // of quantised activations: some 300 KiB, which fit the second-level cache
constexpr std::int64_t kTasksPerThread = 6;  // so that a slow or late thread takes fewer
constexpr std::int64_t kMinTaskWork = 32 << 10;  // multiply-adds: about a microsecond, several times the cost of a task
constexpr std::int64_t kMinParallelQuantize = 16 << 10;  // elements

}  // namespace

QuantizedRows CpuMatmul::quantize(const MatmulParams& params, const CpuPackedMatrix& weight) {
  const std::int64_t cols = weight.cols();
  const std::int64_t groups = cols / weight.group();
  const std::int64_t x_stride = params.x_stride == 0 ? cols : params.x_stride;
  const QuantizedRows all{integers_.reserve(params.m * 2 * cols), scales_.reserve(params.m * groups),
                          sums_.reserve(params.m * groups)};
  const auto one = [&](std::int64_t row) {
    const QuantizedRows out{all.integers + row * 2 * cols, all.scales + row * groups, all.sums + row * groups};
    kernels_.quantize_row(params.x.f32() + row * x_stride, cols, weight.group(), out);
  };
  if (params.m * cols < kMinParallelQuantize) {
    for (std::int64_t row = 0; row < params.m; ++row) one(row);
  } else {
    const std::int64_t step = ceil_div(params.m, pool_.threads() * kTasksPerThread);
    pool_.run(ceil_div(params.m, step), [&](std::int64_t task, int) {
      for (std::int64_t row = task * step; row < std::min(params.m, (task + 1) * step); ++row) one(row);
    });
  }
  return all;
}

void CpuMatmul::run(const MatmulParams& params, const CpuPackedMatrix& weight) {
  const std::int64_t n = weight.rows();
  HS_CHECK(params.y_stride == 0 || params.y_stride >= n, "rows of y overlap");
  HS_CHECK(params.x_stride == 0 || params.x_stride >= weight.cols(), "rows of x overlap");
  if (params.m <= 0 || n == 0) return;

  MatmulTask whole{};
  whole.weight = weight.view();
  whole.x = params.x.f32();
  whole.x_stride = params.x_stride == 0 ? weight.cols() : params.x_stride;
  if (weight.group() != 0) whole.quantized = quantize(params, weight);
  whole.bias = params.bias;
  whole.y = params.y.f32();
  whole.y_stride = params.y_stride == 0 ? n : params.y_stride;
  whole.accumulate = params.accumulate;

  const std::int64_t row_tasks = ceil_div(params.m, kRowsPerTask);
  const std::int64_t row_step = ceil_div(params.m, row_tasks);
  const std::int64_t panel_work = row_step * weight.cols() * kLanes;
  const std::int64_t wanted = ceil_div(pool_.threads() * kTasksPerThread, row_tasks);
  const std::int64_t panel_step =
      std::max(ceil_div(weight.panels(), wanted), ceil_div(kMinTaskWork, std::max<std::int64_t>(panel_work, 1)));
  const std::int64_t panel_tasks = ceil_div(weight.panels(), panel_step);
  pool_.run(row_tasks * panel_tasks, [&](std::int64_t index, int) {
    MatmulTask task = whole;
    task.row_begin = index / panel_tasks * row_step;
    task.row_end = std::min(params.m, task.row_begin + row_step);
    task.panel_begin = index % panel_tasks * panel_step;
    task.panel_end = std::min(weight.panels(), task.panel_begin + panel_step);
    kernels_.matmul(task);
  });
}

}  // namespace hotset::kernels
