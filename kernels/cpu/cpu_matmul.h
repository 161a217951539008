// Matrix product of the CPU backend: quantises activations where the weights are quantised, and shares the panels out.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {

class CpuMatmul {
 public:
  CpuMatmul(const IsaKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  void run(const MatmulParams& params, const CpuPackedMatrix& weight);

 private:
  QuantizedRows quantize(const MatmulParams& params, const CpuPackedMatrix& weight);

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  AlignedBuffer<std::uint8_t> integers_;
  AlignedBuffer<float> scales_;
  AlignedBuffer<float> sums_;
};

}  // namespace hotset::kernels
