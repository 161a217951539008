// Executes step plans on a GPU: cache operations, forward pass, write-through, sampling. The generated tokens of a step
// run together; once a DecodeShape has come twice, their launches are captured and replayed as one graph. Each prompt's
// chunk runs by itself.
//
// A step may be begun while the one before still runs: its inputs are the tokens that the device has drawn. What the
// host then does not know yet (which logits were unusable, how many rows were missed) comes with finish().
// Thread: one stream; plans run in the order of the calls.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/swap_totals.h"
#include "kernels/dense_backend.h"
#include "model/decode_batch.h"
#include "model/decode_graphs.h"
#include "model/device_attention.h"
#include "model/device_sampler.h"
#include "model/device_selection_report.h"
#include "model/step_executor.h"
#include "model/step_plan.h"
#include "model/synthetic_prompts.h"
#include "model/transformer.h"
#include "sparse/device_kv.h"
#include "sparse/selection_observer.h"
#include "storage/kv_pools.h"

namespace hotset::model {

struct DeviceRunnerLimits {
  std::int64_t max_batch = 16;         // decode rows of a step
  std::int64_t least_rows = 1;         // that a decode step is padded to: with max_batch, neighbours change no bit
  std::int64_t prefill_chunk = 256;    // prefill rows of a step, all sequences together
  std::int64_t max_tokens = 0;         // rows of a sequence
  sparse::HotBufferShape largest_hot;  // of the sequences' policies; hot_blocks 0: none can be hot
  std::int64_t max_selected = 0;       // blocks of a selection, of any policy
  int capability_major = 9;            // of the GPU, for the plan of its memory
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

  // A sequence whose logits hold a NaN fails alone: its result carries the error and its later rows are skipped, but
  // for those of a step that was begun already.
  StepResult run(const StepPlan& plan) override;
  // Waits for the device when the plan asks for log-probabilities of a prompt, when memory has to grow (longer
  // sequences than before) or captured steps make room for others, and with an observer.
  std::shared_ptr<const PendingStep> begin(const StepPlan& plan) override;
  StepResult finish() override;

  [[nodiscard]] const DecodeGraphs& graphs() const { return graphs_; }

  // Told of every selection from then on, from the thread of begin(), which then waits for the device; null: nobody.
  void observe(std::shared_ptr<sparse::SelectionObserver> observer);

  // For measurements; null: none. It outlives its use. Captured launches are forgotten.
  // No step is under way.
  void set_probe(DecodeProbe* probe);
  // Likewise: what takes the place of selections in decode steps.
  void set_selection_model(std::unique_ptr<const sparse::DeviceSelectionModel> model);
  // For measurements: whether prompts' rows and metadata are seeded random numbers; only a prompt's last row, which
  // draws the first token, is computed. Prompts whose log-probabilities are asked for are computed.
  void set_synthetic_prompts(bool synthetic);

 private:
  struct Drawn {              // a token that is on its way
    std::size_t result = 0;   // index in StepResult::sequences
    std::int64_t number = 0;  // of the sampler
  };
  struct HotRow {            // a row of the batch whose hits and misses are on their way
    std::size_t result = 0;  // index in StepResult::sequences
    std::int32_t row = 0;
    std::int64_t block_bytes = 0;
  };
  struct BegunStep {
    StepResult result;
    std::vector<std::shared_ptr<SequenceState>> states;  // of the result's sequences
    std::vector<sparse::TierTraffic> traffic;            // likewise: what the host knows of it
    std::vector<Drawn> drawn;
    std::vector<HotRow> hot;
    std::uint64_t number = 0;
  };
  class Reached;  // how far the device is with a step
  // The newest step's first work comes next.
  void device_works();
  void apply(std::span<const sparse::KvOp> ops, SequenceState& state);
  void decode(const StepPlan& plan, BegunStep& begun);
  void tell_probe(DecodeProbe::Part part) {
    if (probe_ != nullptr) probe_->after(part, LayerId{0});
  }
  void forward_decode(const DecodeShape& shape, std::uint64_t step);
  void prefill(const SequenceStep& step, std::size_t index, BegunStep& begun);
  std::int64_t begin_prompt_rows(const SequenceStep& step, std::int64_t first, std::int64_t rows);
  std::int64_t fill_prompt(const SequenceStep& step);
  void score_prompt(const SequenceStep& step, SequenceResult& result);
  static void will_draw(std::size_t index, std::int64_t number, BegunStep& begun);
  void measure(BegunStep& begun) const;
  void take_drawn(BegunStep& begun) const;
  void take_traffic(BegunStep& begun) const;
  [[nodiscard]] kernels::cuda::SwapTotals* host_totals(std::uint64_t number) const;

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
  std::unique_ptr<kernels::Memory> host_totals_, host_logits_;       // totals: of kMostBegun steps
  DecodeGraphs graphs_;
  sparse::SequenceKv any_sequence_;  // for the slices of a batch
  std::vector<SequenceSlice> slices_;
  DecodeProbe* probe_ = nullptr;
  std::unique_ptr<const sparse::DeviceSelectionModel> selection_model_;
  std::unique_ptr<DeviceSelectionReport> report_;        // null: nobody observes
  std::unique_ptr<SyntheticPrompts> synthetic_prompts_;  // null: prompts are computed
  std::deque<BegunStep> begun_;                          // oldest first
  std::uint64_t number_ = 0;                             // of the newest step, from 1 on
  // By number: two that are begun, and the one before them, which says how long the device waited.
  std::array<std::shared_ptr<Reached>, kMostBegun + 1> reached_;
};

}  // namespace hotset::model
