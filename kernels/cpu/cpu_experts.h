// Mixture of experts of the CPU backend: the router, and the rows of each expert as one product.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu_matmul.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {

class CpuPackedExperts final : public PackedExperts {
 public:
  CpuPackedExperts(const ExpertsShape& shape, ThreadPool& pool)
      : shape_(shape), pool_(pool), parts_(static_cast<std::size_t>(shape.count)) {}
  void set(std::int32_t expert, Part part, const MatrixView& matrix) override;
  [[nodiscard]] std::int64_t bytes() const override;

  [[nodiscard]] const ExpertsShape& shape() const { return shape_; }
  [[nodiscard]] const CpuPackedMatrix& part(std::int32_t expert, Part part) const;

 private:
  ExpertsShape shape_;
  ThreadPool& pool_;
  std::vector<std::array<std::unique_ptr<CpuPackedMatrix>, 3>> parts_;
};

class CpuExperts {
 public:
  CpuExperts(const IsaKernels& kernels, ThreadPool& pool, CpuMatmul& matmul);

  void route(const RouteParams& params);
  void run(const ExpertsParams& params);

 private:
  struct RouteScratch {  // of a thread
    std::vector<float> scores, choices, group_scores, candidates;
    std::vector<std::int32_t> groups, taken;
    std::vector<std::uint32_t> keys;
  };
  void group_by_expert(const ExpertsParams& params, std::int32_t count);
  void run_expert(const ExpertsParams& params, const CpuPackedExperts& experts, std::int32_t expert);

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  CpuMatmul& matmul_;
  std::vector<RouteScratch> scratch_;   // per thread
  std::vector<std::int64_t> first_;     // [experts + 1]: where an expert's uses start
  std::vector<std::int64_t> uses_;      // row * per_token + place in the row, rows ascending for each expert
  AlignedBuffer<float> x_, gate_, up_;  // of one expert's rows
};

}  // namespace hotset::kernels
