// Executes step plans on a GPU: cache operations, forward pass, write-through, sampling. The generated tokens of a step
// run together; once a DecodeShape has come twice, their launches are captured and replayed as one graph. Each prompt's
// chunk runs by itself.
// Thread: one stream; plans run in the order of the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/dense_backend.h"
#include "model/decode_batch.h"
#include "model/decode_graphs.h"
#include "model/device_attention.h"
#include "model/device_sampler.h"
#include "model/step_executor.h"
#include "model/step_plan.h"
#include "model/transformer.h"
#include "sparse/device_kv.h"
#include "storage/kv_pools.h"

namespace hotset::model {

struct DeviceRunnerLimits {
  std::int64_t max_batch = 16;         // decode rows of a step
  std::int64_t least_rows = 1;         // that a decode step is padded to: with max_batch, neighbours change no bit
  std::int64_t prefill_chunk = 256;    // prefill rows of a step, all sequences together
  std::int64_t max_tokens = 0;         // rows of a sequence
  sparse::HotBufferShape largest_hot;  // of the sequences' policies; hot_blocks 0: none can be hot
  std::int64_t max_selected = 0;       // blocks of a selection, of any policy
  bool graphs = true;                  // false: everything is launched one by one
};

// What runs on the GPU; the stream outlives the backend, the backend the weights.
struct DeviceEngine {
  kernels::cuda::DeviceInfo device;
  std::unique_ptr<kernels::cuda::DeviceStream> stream;
  std::unique_ptr<kernels::DenseBackend> backend;  // queues on the stream
  std::unique_ptr<ModelWeights> weights;
};

class DeviceStepRunner final : public StepExecutor {
 public:
  // `keeper`: the algorithm whose metadata the pools have room for; null: they keep none. The device pool lies in the
  // GPU's memory, the host pool where the GPU reads it in place.
  DeviceStepRunner(DeviceEngine engine, storage::DevicePool device, storage::HostPool host,
                   std::shared_ptr<const sparse::SelectionAlgorithm> keeper, const DeviceRunnerLimits& limits);
  ~DeviceStepRunner() override;

  // A sequence whose logits hold a NaN fails alone: its result carries the error and its later rows are skipped.
  StepResult run(const StepPlan& plan) override;

  [[nodiscard]] const DecodeGraphs& graphs() const { return graphs_; }

  // For measurements; null: none. It outlives its use. Captured launches are forgotten.
  void set_probe(DecodeProbe* probe);

 private:
  struct Drawn {             // a token that is on its way
    std::size_t result = 0;  // index in StepResult::sequences
    SequenceState* state = nullptr;
    std::int64_t number = 0;  // of the sampler
  };
  void decode(const StepPlan& plan, StepResult& result);
  void tell_probe(DecodeProbe::Part part) {
    if (probe_ != nullptr) probe_->after(part, LayerId{0});
  }
  void forward_decode(const DecodeShape& shape, std::uint64_t step);
  void prefill(const SequenceStep& step, std::uint64_t number, std::size_t index, StepResult& result);
  void score_prompt(const SequenceStep& step, SequenceResult& result);
  void take_drawn(StepResult& result);
  void collect_traffic(const StepPlan& plan, StepResult& result);

  DeviceEngine engine_;
  storage::DevicePool device_;
  storage::HostPool host_;
  std::shared_ptr<const sparse::SelectionAlgorithm> keeper_;
  DeviceRunnerLimits limits_;
  sparse::DeviceKv kv_;
  Transformer transformer_;
  DeviceAttention attention_;
  DeviceSampler sampler_;
  DecodeBatch batch_;
  kernels::Array<std::int32_t> prompt_tokens_;                       // [padded chunk]
  kernels::Array<std::int64_t> prompt_positions_, prompt_metadata_;  // likewise
  std::unique_ptr<kernels::Memory> host_totals_, host_logits_;
  DecodeGraphs graphs_;
  sparse::SequenceKv any_sequence_;  // for the slices of a batch
  std::vector<SequenceSlice> slices_;
  std::vector<Drawn> drawn_;
  std::vector<SequenceState*> decoding_;  // [batch row]
  DecodeProbe* probe_ = nullptr;
  bool swapped_ = false;  // the step's decode had hot rows
};

}  // namespace hotset::model
