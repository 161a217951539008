// Attention of the CPU backend: shares queries, KV heads and tiles out to the threads.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {

class CpuAttention {
 public:
  CpuAttention(const IsaKernels& kernels, ThreadPool& pool);

  void slots(const SlotAttentionParams& params);
  void prefill(const PrefillAttentionParams& params);

 private:
  // Consecutive tiles of one (row, KV head). A list that is not divided has one run and no place in partials_.
  struct Run {
    std::int64_t row;
    std::int64_t kv_head;
    std::int64_t tile_begin, tile_end;
    std::int64_t partial;  // index of its first tile's partial, -1 = whole list
  };

  void slot_run(const SlotAttentionParams& params, const Run& run, float* scratch);
  void merge_runs(const SlotAttentionParams& params);

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  std::vector<AlignedBuffer<float>> scratch_;  // per thread
  std::vector<Run> runs_;
  AlignedBuffer<float> partials_;  // one per tile of a divided list
};

}  // namespace hotset::kernels
