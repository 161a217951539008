// FlashInfer's decode attention over arbitrary slots (paged, page size 1), to be timed beside ours. Defined only in a
// build with HOTSET_PEERS. Heads of 128 channels; 1, 2, 3, 4, 6, 8 or 16 query heads to a KV head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cuda/stream.h"

namespace hotset::peers {

struct FlashInferDecodeParams {
  const void* q = nullptr;              // bf16 [batch, heads * 128], 16-byte aligned
  const std::byte* pool = nullptr;      // grouped bf16 rows: kv_heads * 128 keys, then as many values
  const std::int32_t* slots = nullptr;  // [batch, count]; no holes: -1 is an illegal address
  void* out = nullptr;                  // bf16 [batch, heads * 128]
  float scale = 1.0F;                   // multiplies q.k
};

// One shape of batch. The plan is made once, on the host, so its time is in no measurement: an engine pays it anew in
// each step. It is the plan for exactly these lengths, the fastest (14.6 us at batch 1 of 2,048 entries on an H200):
// the one for graphs whose lengths change takes 28.9. One owner, one stream at a time.
class FlashInferDecode {
 public:
  struct Shape {
    std::int64_t batch = 0, count = 0;  // lists, entries of each
    std::int32_t heads = 0, kv_heads = 0;
  };
  // Allocates and waits. Throws std::runtime_error for a shape that FlashInfer refuses.
  explicit FlashInferDecode(const Shape& shape);
  ~FlashInferDecode();
  FlashInferDecode(const FlashInferDecode&) = delete;
  FlashInferDecode& operator=(const FlashInferDecode&) = delete;

  // Only enqueues: can be captured in a graph.
  void launch(const FlashInferDecodeParams& params, kernels::cuda::Stream stream);

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace hotset::peers
