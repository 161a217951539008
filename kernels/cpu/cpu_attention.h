// Attention of the CPU backend: shares queries, heads and tiles out to the threads.
//
// Owner: the backend. Not thread-safe.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace hotset::kernels {

RowFormat row_format(KvDType dtype);
// Checks that the geometry makes sense. kv_head < geometry.kv_heads.
KvHeadView kv_head_view(const KvGeometry& geometry, std::int64_t kv_head);

class CpuAttention {
 public:
  CpuAttention(const IsaKernels& kernels, ThreadPool& pool);

  void slots(const SlotAttentionParams& params);
  void prefill(const PrefillAttentionParams& params);

 private:
  // Query heads that share a KV head, of one row: what is computed without looking at other heads.
  struct HeadRange {
    std::int64_t row;
    std::int64_t kv_head;
    std::int32_t first_head, heads;  // of all query heads
  };
  // Consecutive tiles for one head range. A list that is not divided has one run and no place in partials_.
  struct Run {
    HeadRange range;
    std::int64_t tile_begin, tile_end;
    std::int64_t partial;  // of its first tile, in floats; -1 = whole list
  };

  std::int64_t plan_runs(const SlotAttentionParams& params, std::int32_t group);
  void slot_run(const SlotAttentionParams& params, const Run& run, float* scratch);
  void merge_runs(const SlotAttentionParams& params, std::int64_t first_run, float* total);

  const IsaKernels& kernels_;
  ThreadPool& pool_;
  std::vector<AlignedBuffer<float>> scratch_;  // per thread
  std::vector<Run> runs_;
  std::vector<std::int64_t> divided_;  // first run of each divided list; its other runs follow, in ascending order
  AlignedBuffer<float> partials_;      // one per tile of a divided list
};

}  // namespace hotset::kernels
