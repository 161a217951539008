// Steps: places of the rows, ordered by expert; rows copied there; gate and up; down; the row's experts added up.
#include <algorithm>

#include "core/check.h"
#include "kernels/cuda/dependent_launch.cuh"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/hopper.h"
#include "kernels/cuda/experts/plain_gemm.h"
#include "kernels/cuda/experts/row_copies.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kAll = 0xffffffffU;

// Sum of all threads, and of those before this one.
struct BlockSum {
  int all, before;
};
__device__ BlockSum block_sum(int mine, int* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  BlockSum out = {0, sum - mine};
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) out.before += shared[i];
    out.all += shared[i];
  }
  __syncthreads();
  return out;
}

// blockIdx.x: an expert. It finds its own uses and counts those of lower experts, so blocks need nothing of each other.
// begins, ends [experts], begins aligned; places [uses]: where a use's row lies, -1 for ids that are no expert.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const std::int32_t* ids, int uses, std::int32_t* begins, std::int32_t* ends, std::int32_t* places) {
  follow_kernels_before();
  __shared__ int shared[kThreads / 32];
  __shared__ int counts[kMostGroups];
  const int expert = static_cast<int>(blockIdx.x);
  const int experts = static_cast<int>(gridDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kMostGroups; i += kThreads) counts[i] = 0;
  __syncthreads();
  const int share = (uses + kThreads - 1) / kThreads;
  const int first_use = min(uses, thread * share);
  const int end_use = min(uses, first_use + share);
  int own = 0;
  for (int use = first_use; use < end_use; ++use) {
    const int id = ids[use];
    if (id >= 0 && id < expert) atomicAdd(&counts[id], 1);
    own += id == expert ? 1 : 0;
  }
  __syncthreads();
  int lower = 0;
  for (int i = thread; i < expert; i += kThreads) {
    lower += (counts[i] + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  }
  const int begin = block_sum(lower, shared).all;
  const BlockSum of_expert = block_sum(own, shared);
  int next = begin + of_expert.before;
  for (int use = first_use; use < end_use; ++use) {
    const int id = ids[use];
    if (id == expert) places[use] = next++;
    if (expert == 0 && (id < 0 || id >= experts)) places[use] = -1;
  }
  if (thread != 0) return;
  begins[expert] = begin;
  ends[expert] = begin + of_expert.all;
}

struct CombineParams {
  const float* terms;          // [*][hidden], by place
  const std::int32_t* places;  // [rows][per_token]
  const float* weights;        // [rows][per_token]
  float* out;
  std::int64_t out_stride;
  std::int64_t hidden;
  int per_token;
};

// blockIdx.x: the row. Places ascend with the expert.
__global__ void __launch_bounds__(kThreads) combine_kernel(const CombineParams params) {
  follow_kernels_before();
  __shared__ std::int32_t places[kMostExpertsOfARow];
  __shared__ float weights[kMostExpertsOfARow];
  const std::int64_t row = blockIdx.x;
  const std::int32_t* const own = params.places + row * params.per_token;
  const int use = static_cast<int>(threadIdx.x);
  if (use < params.per_token) {
    const std::int32_t place = own[use];
    int rank = 0;
    for (int i = 0; i < params.per_token; ++i) {
      const std::int32_t other = own[i];
      rank += other < place || (other == place && i < use) ? 1 : 0;
    }
    places[rank] = place;
    weights[rank] = params.weights[row * params.per_token + use];
  }
  __syncthreads();
  const std::int64_t at = 4 * (std::int64_t{blockIdx.y} * kThreads + threadIdx.x);
  if (at >= params.hidden) return;
  float4* const out = reinterpret_cast<float4*>(params.out + row * params.out_stride + at);
  float4 sum = *out;
  for (int i = 0; i < params.per_token; ++i) {
    if (places[i] < 0) continue;
    const float4 term = *reinterpret_cast<const float4*>(params.terms + places[i] * params.hidden + at);
    sum.x = fmaf(weights[i], term.x, sum.x);
    sum.y = fmaf(weights[i], term.y, sum.y);
    sum.z = fmaf(weights[i], term.z, sum.z);
    sum.w = fmaf(weights[i], term.w, sum.w);
  }
  *out = sum;
}

struct Workspace {
  std::int32_t *begins, *ends, *places;
  void* rows;     // the copies of x; later what the down products give
  void* gated;    // silu(gate) * up
  void* codes;    // of it, kFp8Block
  float* scales;  // of the copies of x, later of the codes
  std::size_t bytes;
};

// Each expert with rows may have kRowAlignment - 1 places before the next one's first.
std::int64_t most_places(const ExpertWeights& experts, std::int64_t uses) {
  const std::int64_t most = uses + (kRowAlignment - 1) * std::min<std::int64_t>(experts.experts, uses);
  return (most + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

Workspace divide(void* base, const ExpertWeights& experts, std::int64_t uses) {
  Workspace out = {};
  const auto take = [&](std::int64_t bytes) -> void* {
    std::byte* const at = static_cast<std::byte*>(base) + out.bytes;
    out.bytes += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    return at;
  };
  const bool fp8 = experts.format == ExpertFormat::kFp8Block;
  const std::int64_t rows = most_places(experts, uses);
  out.begins = static_cast<std::int32_t*>(take(4 * experts.experts));
  out.ends = static_cast<std::int32_t*>(take(4 * experts.experts));
  out.places = static_cast<std::int32_t*>(take(4 * uses));
  out.rows = take(4 * rows * experts.hidden);
  out.gated = take((experts.format == ExpertFormat::kBF16 ? 2 : 4) * rows * experts.intermediate);
  out.codes = take(fp8 ? rows * experts.intermediate : 0);
  const std::int64_t widest = std::max(experts.hidden, experts.intermediate);
  out.scales = static_cast<float*>(take(fp8 ? 4 * (widest / kFp8Block) * rows : 0));
  return out;
}

void check(const ExpertsDeviceParams& params) {
  const ExpertWeights& experts = params.experts;
  HS_CHECK(experts.experts >= 1 && experts.experts <= kMostGroups, "so many experts fit");
  HS_CHECK(params.per_token >= 1 && params.per_token <= kMostExpertsOfARow, "so many experts of a row fit");
  const std::int64_t step = experts.format == ExpertFormat::kFp8Block ? kFp8Block : 16;
  HS_CHECK(experts.hidden % step == 0 && experts.intermediate % step == 0, "widths are multiples");
  HS_CHECK(params.rows * params.per_token < std::int64_t{1} << 30, "places fit into 32 bits");
  if (experts.format == ExpertFormat::kFp8Block) require_hopper("FP8 experts");
}

void multiply(const GroupedGemm& gemm, ExpertFormat format, bool gated, Stream stream) {
  if (format == ExpertFormat::kFp8Block) {
    gated ? launch_grouped_fp8_gated(gemm, stream) : launch_grouped_fp8(gemm, stream);
  } else if (format == ExpertFormat::kBF16 && is_hopper()) {
    gated ? launch_grouped_bf16_gated(gemm, stream) : launch_grouped_bf16(gemm, stream);
  } else {
    launch_grouped_plain(gemm, format == ExpertFormat::kF32 ? ActivationType::kF32 : ActivationType::kBF16, gated,
                         stream);
  }
}

}  // namespace

std::size_t experts_workspace_bytes(const ExpertWeights& experts, std::int64_t rows, std::int32_t per_token) {
  return divide(nullptr, experts, rows * per_token).bytes;
}

void launch_experts(const ExpertsDeviceParams& params, Stream stream) {
  if (params.rows <= 0) return;
  check(params);
  const ExpertWeights& experts = params.experts;
  const bool fp8 = experts.format == ExpertFormat::kFp8Block;
  const std::int64_t uses = params.rows * params.per_token;
  const std::int64_t places = most_places(experts, uses);
  const Workspace work = divide(params.workspace, experts, uses);
  launch_dependent(place_kernel, static_cast<unsigned>(experts.experts), kThreads, 0, 0, stream, params.ids,
                   static_cast<int>(uses), work.begins, work.ends, work.places);

  RowCopies copies;
  copies.x = params.x;
  copies.x_type = params.x_type;
  copies.x_stride = params.x_stride == 0 ? experts.hidden : params.x_stride;
  copies.rows = params.rows;
  copies.width = experts.hidden;
  copies.places = work.places;
  copies.copies = params.per_token;
  copies.out = work.rows;
  copies.scales = work.scales;
  copies.scale_stride = places;
  const ActivationType type = experts.format == ExpertFormat::kBF16 ? ActivationType::kBF16 : ActivationType::kF32;
  fp8 ? launch_quantised_copies(copies, stream) : launch_row_copies(copies, type, stream);

  GroupedGemm gemm;
  gemm.weight = experts.gate_up;
  gemm.weight_scales = experts.gate_up_scales;
  gemm.rows = work.rows;
  gemm.row_scales = work.scales;
  gemm.scale_stride = places;
  gemm.row_bound = places;
  gemm.begins = work.begins;
  gemm.ends = work.ends;
  gemm.groups = experts.experts;
  gemm.n = experts.intermediate;
  gemm.k = experts.hidden;
  gemm.expected_rows = uses / experts.experts;
  gemm.out = work.gated;
  gemm.out_stride = experts.intermediate;
  gemm.out_type = type;
  multiply(gemm, experts.format, true, stream);

  if (fp8) {
    copies = {};
    copies.x = work.gated;
    copies.x_stride = experts.intermediate;
    copies.rows = places;
    copies.width = experts.intermediate;
    copies.count = work.ends + experts.experts - 1;
    copies.out = work.codes;
    copies.scales = work.scales;
    copies.scale_stride = places;
    launch_quantised_copies(copies, stream);
  }
  gemm.weight = experts.down;
  gemm.weight_scales = experts.down_scales;
  gemm.rows = fp8 ? work.codes : work.gated;
  gemm.n = experts.hidden;
  gemm.k = experts.intermediate;
  gemm.out = work.rows;
  gemm.out_stride = experts.hidden;
  gemm.out_type = ActivationType::kF32;
  multiply(gemm, experts.format, false, stream);

  const CombineParams combine = {static_cast<const float*>(work.rows),
                                 work.places,
                                 params.weights,
                                 params.out,
                                 params.out_stride == 0 ? experts.hidden : params.out_stride,
                                 experts.hidden,
                                 params.per_token};
  constexpr std::int64_t kChannels = 4 * kThreads;
  const dim3 grid(static_cast<unsigned>(params.rows),
                  static_cast<unsigned>((experts.hidden + kChannels - 1) / kChannels));
  launch_dependent(combine_kernel, grid, kThreads, 0, 0, stream, combine);
}

}  // namespace hotset::kernels::cuda
