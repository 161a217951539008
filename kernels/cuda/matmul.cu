// cuBLASLt counts columns first: its matrices are the transposes of ours. y^T [n, m] = W [n, k] x^T [k, m], where W
// lies in memory as a k x n matrix of theirs (so it is transposed) and x as k x m.
#include <cublasLt.h>

#include "core/check.h"
#include "core/concat.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul/few_rows.h"
#include "kernels/cuda/runtime.h"

namespace hotset::kernels::cuda {
namespace {

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(concat("cuBLASLt: ", what, " failed: ", cublasLtGetStatusString(status)));
}

cudaDataType_t data_type(ActivationType type) { return type == ActivationType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

struct DeleteDescription {
  void operator()(cublasLtMatmulDescOpaque_t* description) const { cublasLtMatmulDescDestroy(description); }
};
struct DeleteLayout {
  void operator()(cublasLtMatrixLayoutOpaque_t* layout) const { cublasLtMatrixLayoutDestroy(layout); }
};
struct DeletePreference {
  void operator()(cublasLtMatmulPreferenceOpaque_t* preference) const { cublasLtMatmulPreferenceDestroy(preference); }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, DeleteDescription>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, DeleteLayout>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, DeletePreference>;

Layout make_layout(ActivationType type, std::int64_t rows, std::int64_t cols, std::int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&layout, data_type(type), static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(cols), leading),
               "a matrix layout");
  return Layout(layout);
}

void set_batch(const Layout& layout, std::int64_t batch, std::int64_t step) {
  const auto count = static_cast<std::int32_t>(batch);
  check_cublas(
      cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
      "a number of products");
  check_cublas(
      cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)),
      "a distance of products");
}

template <class Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)), "an attribute");
}

template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
               "a preference");
}

Description make_description(cublasComputeType_t compute, bool bias) {
  cublasLtMatmulDesc_t made = nullptr;
  check_cublas(cublasLtMatmulDescCreate(&made, compute, CUDA_R_32F), "a description");
  Description description(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (bias) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  return description;
}

Preference make_preference(std::uint64_t most_workspace) {
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&made), "preferences");
  Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace);
  // Parts of a divided sum are added up in float32, in the workspace.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  constexpr std::uint32_t kAlignment = 16;
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  return preference;
}

}  // namespace

MatmulLibrary::MatmulLibrary() {
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "start");
  handle_ = handle;
}

MatmulLibrary::~MatmulLibrary() { cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_)); }

struct Matmul::Plan {
  MatmulShape shape;
  bool few_rows = false;  // the rest is empty
  cublasLtHandle_t handle = nullptr;
  Description description;
  Layout weight, x, y;
  cublasLtMatmulAlgo_t algorithm = {};
  std::size_t workspace_bytes = 0;

  // Whether there is an algorithm for this kind of sum.
  bool choose(cublasComputeType_t compute) {
    description = make_description(compute, shape.bias);
    const Preference preference = make_preference(shape.most_workspace);
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, description.get(), weight.get(), x.get(),
                                                                 y.get(), y.get(), preference.get(), 1, &found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return false;
    algorithm = found.algo;
    workspace_bytes = found.workspaceSize;
    return true;
  }
};

Matmul::Matmul(const MatmulLibrary& library, const MatmulShape& shape) : plan_(std::make_unique<Plan>()) {
  HS_CHECK(shape.m >= 1 && shape.n >= 1 && shape.k >= 1, "no such product");
  HS_CHECK(shape.type != ActivationType::kF32 || shape.y_type == ActivationType::kF32, "float32 gives float32");
  plan_->shape = shape;
  MatmulShape& own = plan_->shape;
  if (own.x_stride == 0) own.x_stride = own.k;
  if (own.y_stride == 0) own.y_stride = own.n;
  HS_CHECK(own.x_stride >= own.k && own.y_stride >= own.n, "rows do not overlap");
  HS_CHECK(own.batch >= 1 && !(own.batch > 1 && own.bias), "products side by side have no bias");
  plan_->few_rows = !own.library && few_rows_takes(own);
  HS_CHECK(plan_->few_rows || (!own.gated && !own.wide_x), "gated products and wide rows are those of few rows");
  HS_CHECK(!own.gated || (!own.bias && !own.accumulate), "gated products have no bias and add to nothing");
  if (plan_->few_rows) return;
  plan_->handle = static_cast<cublasLtHandle_t>(library.handle_);
  plan_->weight = make_layout(own.type, own.k, own.n, own.k);
  plan_->x = make_layout(own.type, own.k, own.m, own.x_stride);
  plan_->y = make_layout(own.y_type, own.n, own.m, own.y_stride);
  if (own.batch > 1) {
    set_batch(plan_->weight, own.batch, own.weight_step);
    set_batch(plan_->x, own.batch, own.x_step);
    set_batch(plan_->y, own.batch, own.y_step);
  }
  // Pedantic forbids every shortcut; without such an algorithm, plain float32 sums, which are not TF32 either.
  const bool chosen = (own.type == ActivationType::kF32 && plan_->choose(CUBLAS_COMPUTE_32F_PEDANTIC)) ||
                      plan_->choose(CUBLAS_COMPUTE_32F);
  if (!chosen) throw CudaError(concat("cuBLASLt has no product of ", own.m, " x ", own.n, " x ", own.k));
}

Matmul::Matmul(Matmul&& other) noexcept = default;
Matmul& Matmul::operator=(Matmul&& other) noexcept = default;
Matmul::~Matmul() = default;

std::size_t Matmul::workspace_bytes() const { return plan_->workspace_bytes; }

void Matmul::launch(const MatmulOperands& operands, Stream stream) {
  HS_CHECK((operands.bias != nullptr) == plan_->shape.bias, "a bias is given when the shape has one");
  if (plan_->few_rows) return launch_few_rows(plan_->shape, operands, stream);
  if (plan_->shape.bias) set(plan_->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  const float alpha = 1.0F;
  const float beta = plan_->shape.accumulate ? 1.0F : 0.0F;
  check_cublas(cublasLtMatmul(plan_->handle, plan_->description.get(), &alpha, operands.weight, plan_->weight.get(),
                              operands.x, plan_->x.get(), &beta, operands.y, plan_->y.get(), operands.y, plan_->y.get(),
                              &plan_->algorithm, operands.workspace, plan_->workspace_bytes, stream),
               "a product");
}

}  // namespace hotset::kernels::cuda
