#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/hopper.h"
#include "kernels/cuda/experts/row_copies.h"
#include "kernels/cuda/fp8_matmul.h"

namespace hotset::kernels::cuda {
namespace {

// Up to here small tiles are faster: more multiprocessors read weights. From 64 rows on large ones.
constexpr std::int64_t kFewRows = 32;

std::int64_t codes_bytes(std::int64_t m, std::int64_t k) { return (m * k + 255) / 256 * 256; }
std::int64_t scale_stride_of(std::int64_t m) { return (m + 3) / 4 * 4; }

}  // namespace

std::size_t fp8_matmul_workspace_bytes(std::int64_t m, std::int64_t k) {
  return static_cast<std::size_t>(codes_bytes(m, k) + 4 * (k / kFp8Block) * scale_stride_of(m));
}

void launch_fp8_matmul(const Fp8MatmulParams& params, Stream stream) {
  if (params.m <= 0) return;
  require_hopper("FP8 products");
  auto* const codes = static_cast<std::byte*>(params.workspace);
  auto* const scales = reinterpret_cast<float*>(codes + codes_bytes(params.m, params.k));
  RowCopies copies;
  copies.x = params.x;
  copies.x_type = params.x_type;
  copies.x_stride = params.x_stride == 0 ? params.k : params.x_stride;
  copies.rows = params.m;
  copies.width = params.k;
  copies.out = codes;
  copies.scales = scales;
  copies.scale_stride = scale_stride_of(params.m);
  launch_quantised_copies(copies, stream);
  GroupedGemm gemm;
  gemm.weight = params.weight;
  gemm.weight_scales = params.weight_scales;
  gemm.rows = codes;
  gemm.row_scales = scales;
  gemm.scale_stride = copies.scale_stride;
  gemm.row_bound = params.m;
  gemm.n = params.n;
  gemm.k = params.k;
  gemm.expected_rows = params.m <= kFewRows ? 1 : params.m;
  gemm.bias = params.bias;
  gemm.out = params.y;
  gemm.out_stride = params.y_stride == 0 ? params.n : params.y_stride;
  gemm.out_type = params.y_type;
  gemm.accumulate = params.accumulate;
  launch_grouped_fp8(gemm, stream);
}

}  // namespace hotset::kernels::cuda
