#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/concat.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/fp8_matmul.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/matmul/few_rows_fp8.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/weight_matrix.h"

namespace hotset::kernels::cuda {
namespace {

constexpr std::int64_t kUploadBytes = std::int64_t{1} << 20;
// FP8 weights of few channels leave most multiprocessors idle in the products of more rows: up to here the products of
// few rows take no longer, 16 at a time (H200, 7,168 inputs: 10 us for 2,240 channels and 7 for 1,536, those of more
// rows 25 for either).
std::int64_t most_few_rows(std::int64_t channels) {
  return channels <= 2048 ? 64 : channels <= 4096 ? 32 : kMostFewRowsFp8;
}

ActivationType type_of(ElementType type) {
  return type == ElementType::kF32 ? ActivationType::kF32 : ActivationType::kBF16;
}

const WeightMatrix& own_matrix(const PackedMatrix* matrix) {
  const auto* const own = dynamic_cast<const WeightMatrix*>(matrix);
  HS_CHECK(own != nullptr, "the matrix was packed by this backend");
  return *own;
}

class CudaBackend final : public DenseBackend {
 public:
  CudaBackend(const DeviceInfo& device, const DeviceStream& stream, ElementType compute, bool fp8_weights)
      : device_(device),
        stream_(stream),
        compute_(compute),
        keeps_fp8_(fp8_weights && compute == ElementType::kBF16 && device.capability_major == 9),
        uploader_(stream, arena_) {}

  std::string description() const override {
    return concat(device_.name, ", ", compute_ == ElementType::kF32 ? "float32" : "bfloat16");
  }

  std::unique_ptr<Memory> allocate(std::int64_t bytes) override { return arena_.allocate(bytes); }
  void upload(const void* source, void* target, std::int64_t bytes) override {
    if (staging_ == nullptr) staging_ = allocate_pinned(kUploadBytes);
    for (std::int64_t first = 0; first < bytes; first += kUploadBytes) {
      const std::int64_t count = std::min(kUploadBytes, bytes - first);
      std::memcpy(staging_->data(), static_cast<const std::byte*>(source) + first, static_cast<std::size_t>(count));
      stream_.copy(staging_->data(), static_cast<std::byte*>(target) + first, count);
      stream_.synchronize();
    }
  }
  ElementType activation_type() const override { return compute_; }

  bool takes_fp8(std::int64_t rows, std::int64_t cols) const override {
    return keeps_fp8_ && fp8_weight_fits(rows, cols);
  }
  std::unique_ptr<PackedMatrix> pack(const MatrixView& matrix) override {
    if (matrix.type == WeightType::kFp8Block) return std::move(join_fp8(std::span(&matrix, 1)).parts.front());
    return uploader_.upload(matrix, compute_);
  }

  std::vector<std::unique_ptr<PackedMatrix>> pack_batch(std::span<const MatrixView> matrices) override {
    return uploader_.upload_batch(matrices, compute_);
  }
  JoinedMatrices pack_joined(std::span<const MatrixView> matrices) override {
    const auto is_fp8 = [](const MatrixView& matrix) { return matrix.type == WeightType::kFp8Block; };
    if (std::ranges::any_of(matrices, is_fp8)) {
      const bool joins = std::ranges::all_of(matrices, is_fp8) && fp8_rows_join(matrices);
      return joins ? join_fp8(matrices) : DenseBackend::pack_joined(matrices);
    }
    return uploader_.join(rows_of(matrices), matrices.front().cols, compute_,
                          [&](std::size_t i, void* target) { uploader_.upload_to(matrices[i], compute_, target); });
  }
  JoinedMatrices random_joined(std::span<const RandomPart> matrices) override {
    const auto is_fp8 = [&](const RandomPart& part) { return part.numbers.fp8 && takes_fp8(part.rows, part.cols); };
    if (std::ranges::any_of(matrices, is_fp8)) {
      const bool joins = std::ranges::all_of(matrices, is_fp8) && fp8_rows_join(matrices);
      return joins ? join_random_fp8(matrices) : DenseBackend::random_joined(matrices);
    }
    return uploader_.join(rows_of(matrices), matrices.front().cols, compute_, [&](std::size_t i, void* target) {
      uploader_.fill_random(matrices[i].numbers, matrices[i].rows, matrices[i].cols, compute_, target);
    });
  }
  std::unique_ptr<PackedMatrix> random_matrix(const RandomNumbers& numbers, std::int64_t rows,
                                              std::int64_t cols) override {
    if (numbers.fp8 && takes_fp8(rows, cols)) {
      const RandomPart part{numbers, rows, cols};
      return std::move(join_random_fp8(std::span(&part, 1)).parts.front());
    }
    return std::move(uploader_.make_random(numbers, 1, rows, cols, compute_).front());
  }
  std::vector<std::unique_ptr<PackedMatrix>> random_batch(const RandomNumbers& numbers, std::int64_t count,
                                                          std::int64_t rows, std::int64_t cols) override {
    return uploader_.make_random(numbers, count, rows, cols, compute_);
  }
  std::unique_ptr<PackedExperts> make_experts(const ExpertsShape& shape) override {
    return std::make_unique<DeviceExperts>(shape, compute_, uploader_, arena_);
  }

  void embed(const EmbedParams& params) override {
    const WeightMatrix& table = own_matrix(params.table);
    HS_CHECK(table.scales() == nullptr, "embeddings are not FP8");
    launch_embed({.table = table.data(),
                  .table_type = type_of(table.type()),
                  .tokens = params.tokens,
                  .out = params.out,
                  .out_type = ActivationType::kF32,
                  .count = params.count,
                  .vocabulary = table.rows(),
                  .hidden = table.cols()},
                 stream_.get());
  }

  void rms_norm(const RmsNormParams& params) override {
    launch_rms_norm({.in = params.in,
                     .in_type = ActivationType::kF32,
                     .in_stride = params.stride,
                     .weight = params.weight,
                     .out = params.out.data(),
                     .out_type = type_of(params.out.type()),
                     .out_stride = params.out_stride == 0 ? params.stride : params.out_stride,
                     .rows = params.rows,
                     .width = params.width,
                     .epsilon = params.epsilon},
                    stream_.get());
  }

  void layer_norm(const LayerNormParams& params) override {
    launch_layer_norm({.in = params.in,
                       .weight = params.weight,
                       .bias = params.bias,
                       .out = params.out,
                       .rows = params.rows,
                       .width = params.width,
                       .epsilon = params.epsilon},
                      stream_.get());
  }

  void rope(const RopeParams& params) override {
    launch_rope({.x = params.x,
                 .type = ActivationType::kF32,
                 .row_stride = params.row_stride,
                 .positions = params.positions,
                 .inv_freq = params.inv_freq,
                 .rows = params.rows,
                 .heads = params.heads,
                 .head_dim = params.head_dim,
                 .rotary_dim = params.rotary_dim,
                 .attention_factor = params.attention_factor},
                stream_.get());
  }

  void matmul(const MatmulParams& params) override {
    if (params.m <= 0) return;
    const WeightMatrix& weight = own_matrix(params.weight);
    if (weight.scales() != nullptr) return multiply_fp8(weight, params);
    MatmulShape shape{.m = params.m,
                      .n = weight.rows(),
                      .k = weight.cols(),
                      .x_stride = params.x_stride == 0 ? weight.cols() : params.x_stride,
                      .y_stride = params.y_stride == 0 ? weight.rows() : params.y_stride,
                      .type = type_of(weight.type()),
                      .y_type = type_of(params.y.type()),
                      .bias = params.bias != nullptr,
                      .accumulate = params.accumulate};
    const void* const x = readable(params.x, weight.type(), shape);
    multiply(weight, x, params.bias, params.y.data(), shape);
  }

  void batched_matmul(const BatchedMatmulParams& params) override {
    if (params.m <= 0 || params.batch <= 0) return;
    const WeightMatrix& first = own_matrix(params.weights[0]);
    HS_CHECK(first.scales() == nullptr, "matrices of a batch are not FP8");
    const std::int64_t step = first.rows() * first.cols();
    const WeightMatrix& last = own_matrix(params.weights[params.batch - 1]);
    HS_CHECK(static_cast<const std::byte*>(last.data()) - static_cast<const std::byte*>(first.data()) ==
                 (params.batch - 1) * step * element_bytes(first.type()),
             "the matrices were packed as a batch");
    MatmulShape shape{.m = params.m,
                      .n = first.rows(),
                      .k = first.cols(),
                      .x_stride = params.x_stride,
                      .y_stride = params.y_stride,
                      .type = type_of(first.type()),
                      .y_type = type_of(params.y.type()),
                      .batch = params.batch,
                      .x_step = params.x_distance,
                      .weight_step = step,
                      .y_step = params.y_distance};
    const void* const x = readable(params.x, first.type(), shape);
    multiply(first, x, nullptr, params.y.data(), shape);
  }

  bool gated_matmul(const GatedMatmulParams& params) override {
    const WeightMatrix& weight = own_matrix(params.gate_up);
    if (weight.scales() != nullptr) return gated_matmul_fp8(weight, params);
    const MatmulShape shape{.m = params.m,
                            .n = weight.rows() / 2,
                            .k = weight.cols(),
                            .x_stride = weight.cols(),
                            .y_stride = weight.rows() / 2,
                            .type = type_of(weight.type()),
                            .y_type = type_of(params.out.type()),
                            .gated = true};
    if (params.x.type() != weight.type() || !few_rows_takes(shape)) return false;
    if (params.m > 0) multiply(weight, params.x.data(), nullptr, params.out.data(), shape);
    return true;
  }

  void copy_columns(const CopyColumnsParams& params) override {
    launch_convert_rows({.in = params.source,
                         .in_stride = params.source_stride,
                         .out = params.target,
                         .out_stride = params.target_stride,
                         .rows = params.rows,
                         .width = params.width},
                        stream_.get());
  }

  void silu_gate(const SiluGateParams& params) override {
    launch_silu_gate({.gate = params.gate,
                      .gate_stride = params.stride,
                      .up = params.up,
                      .up_stride = params.stride,
                      .out = params.out.data(),
                      .out_type = type_of(params.out.type()),
                      .rows = params.rows,
                      .width = params.width},
                     stream_.get());
  }

  void route(const RouteParams& params) override { launch_route(params, stream_.get()); }

  void experts(const ExpertsParams& params) override {
    const auto* const own = dynamic_cast<const DeviceExperts*>(params.experts);
    HS_CHECK(own != nullptr, "the experts were packed by this backend");
    const ExpertWeights weights = own->weights();
    const auto bytes = static_cast<std::int64_t>(experts_workspace_bytes(weights, params.rows, params.per_token));
    launch_experts({.experts = weights,
                    .x = params.x.data(),
                    .x_type = type_of(params.x.type()),
                    .ids = params.ids,
                    .weights = params.weights,
                    .per_token = params.per_token,
                    .rows = params.rows,
                    .out = params.out,
                    .workspace = experts_.reserve(bytes)},
                   stream_.get());
  }

 private:
  template <class Matrix>
  static std::vector<std::int64_t> rows_of(std::span<const Matrix> matrices) {
    std::vector<std::int64_t> rows;
    for (const Matrix& matrix : matrices) rows.push_back(matrix.rows);
    return rows;
  }
  // Whether no block of scales would lie in two of them. Others lie apart.
  template <class Matrix>
  static bool fp8_rows_join(std::span<const Matrix> matrices) {
    return std::ranges::all_of(matrices.first(matrices.size() - 1),
                               [](const Matrix& matrix) { return matrix.rows % kFp8Block == 0; });
  }
  JoinedMatrices join_fp8(std::span<const MatrixView> matrices) {
    return uploader_.join_fp8(
        rows_of(matrices), matrices.front().cols,
        [&](std::size_t i, WeightUploader::Fp8Target target) { uploader_.upload_fp8_to(matrices[i], target); });
  }
  JoinedMatrices join_random_fp8(std::span<const RandomPart> matrices) {
    return uploader_.join_fp8(
        rows_of(matrices), matrices.front().cols, [&](std::size_t i, WeightUploader::Fp8Target target) {
          uploader_.fill_random_fp8(matrices[i].numbers, matrices[i].rows, matrices[i].cols, target);
        });
  }

  void multiply_fp8(const WeightMatrix& weight, const MatmulParams& params) {
    const std::int64_t k = weight.cols();
    std::int64_t x_stride = params.x_stride == 0 ? k : params.x_stride;
    if (params.m > most_few_rows(weight.rows())) {
      const auto bytes = static_cast<std::int64_t>(fp8_matmul_workspace_bytes(params.m, k));
      return launch_fp8_matmul({.x = params.x.data(),
                                .x_type = type_of(params.x.type()),
                                .x_stride = x_stride,
                                .weight = weight.data(),
                                .weight_scales = weight.scales(),
                                .bias = params.bias,
                                .y = params.y.data(),
                                .y_type = type_of(params.y.type()),
                                .y_stride = params.y_stride,
                                .accumulate = params.accumulate,
                                .m = params.m,
                                .n = weight.rows(),
                                .k = k,
                                .workspace = quantised_.reserve(bytes)},
                               stream_.get());
    }
    const void* x = params.x.data();
    if (params.x.type() != ElementType::kBF16) {
      x = converted(params.x, x_stride, 0, params.m, 1, k, ElementType::kBF16);
      x_stride = k;
    }
    const std::int64_t y_stride = params.y_stride == 0 ? weight.rows() : params.y_stride;
    for (std::int64_t first = 0; first < params.m; first += kMostFewRowsFp8) {
      launch_few_rows_fp8({.x = static_cast<const std::byte*>(x) + first * x_stride * element_bytes(ElementType::kBF16),
                           .x_stride = x_stride,
                           .weight = weight.data(),
                           .scales = weight.scales(),
                           .bias = params.bias,
                           .y = params.y.from(first * y_stride).data(),
                           .y_type = type_of(params.y.type()),
                           .y_stride = y_stride,
                           .accumulate = params.accumulate,
                           .m = std::min(kMostFewRowsFp8, params.m - first),
                           .n = weight.rows(),
                           .k = k},
                          stream_.get());
    }
  }

  bool gated_matmul_fp8(const WeightMatrix& weight, const GatedMatmulParams& params) {
    if (params.m > kMostFewRowsFp8 || params.x.type() != ElementType::kBF16) return false;
    HS_CHECK(weight.rows() % 256 == 0, "gates and ups have scales of their own");
    launch_few_rows_fp8({.x = params.x.data(),
                         .weight = weight.data(),
                         .scales = weight.scales(),
                         .y = params.out.data(),
                         .y_type = type_of(params.out.type()),
                         .gated = true,
                         .m = params.m,
                         .n = weight.rows() / 2,
                         .k = weight.cols()},
                        stream_.get());
    return true;
  }

  // x as the product of this shape reads it: where types differ, as it is if the product rounds it itself; else
  // converted, and the shape follows.
  const void* readable(Activations x, ElementType type, MatmulShape& shape) {
    if (x.type() == type) return x.data();
    shape.wide_x = type == ElementType::kBF16;
    if (shape.wide_x && few_rows_takes(shape)) return x.data();
    shape.wide_x = false;
    const void* const out = converted(x, shape.x_stride, shape.x_step, shape.m, shape.batch, shape.k, type);
    shape.x_stride = shape.batch * shape.k;
    shape.x_step = shape.batch > 1 ? shape.k : 0;
    return out;
  }

  // [rows, batch * width] of `type`, from rows of `batch` parts that lie `distance` apart.
  const void* converted(Activations x, std::int64_t stride, std::int64_t distance, std::int64_t rows,
                        std::int64_t batch, std::int64_t width, ElementType type) {
    const std::int64_t bytes = rows * batch * width * element_bytes(type);
    auto* const out = static_cast<std::byte*>(converted_.reserve(bytes));
    const bool one_pattern = stride == batch * distance;  // all parts of all rows lie equally far apart
    const std::int64_t calls = one_pattern ? 1 : batch;
    for (std::int64_t i = 0; i < calls; ++i) {
      launch_convert_rows({.in = static_cast<const std::byte*>(x.data()) + i * distance * element_bytes(x.type()),
                           .in_type = type_of(x.type()),
                           .in_stride = one_pattern ? distance : stride,
                           .out = out + i * width * element_bytes(type),
                           .out_type = type_of(type),
                           .out_stride = one_pattern ? width : batch * width,
                           .rows = one_pattern ? rows * batch : rows,
                           .width = width},
                          stream_.get());
    }
    return out;
  }

  void multiply(const WeightMatrix& weight, const void* x, const float* bias, void* y, const MatmulShape& shape) {
    auto found = products_.find(shape);
    if (found == products_.end()) {
      found = products_.emplace(shape, Matmul(library_, shape)).first;
      (void)workspace_.reserve(static_cast<std::int64_t>(found->second.workspace_bytes()));
    }
    found->second.launch({.x = x, .weight = weight.data(), .bias = bias, .y = y, .workspace = workspace_.reserve(0)},
                         stream_.get());
  }

  DeviceInfo device_;
  const DeviceStream& stream_;
  ElementType compute_;
  bool keeps_fp8_;
  DeviceArena arena_;
  WeightUploader uploader_;
  std::unique_ptr<Memory> staging_;
  MatmulLibrary library_;
  std::map<MatmulShape, Matmul> products_;
  GrowingMemory workspace_, converted_, experts_, quantised_;
};

}  // namespace

std::unique_ptr<DenseBackend> make_cuda_backend(const DeviceInfo& device, const DeviceStream& stream,
                                                ElementType compute, bool fp8_weights) {
  return std::make_unique<CudaBackend>(device, stream, compute, fp8_weights);
}

}  // namespace hotset::kernels::cuda
