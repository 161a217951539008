// Executes step plans: cache operations, forward pass, write-through, sampling. What the CPU's ComputeStream wraps.
// Thread: one stream; plans run in the order of the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "model/step_executor.h"
#include "model/step_plan.h"
#include "model/tiered_transformer.h"
#include "sparse/tiered_kv.h"
#include "storage/kv_pools.h"

namespace hotset::model {

struct StepRunnerLimits {
  std::int64_t max_batch = 16;       // decode rows of a step
  std::int64_t prefill_chunk = 256;  // prefill rows of a step, all sequences together
};

class StepRunner final : public StepExecutor {
 public:
  // `keeper`: the algorithm whose metadata the pools have room for; null: they keep none.
  StepRunner(std::unique_ptr<ModelWeights> weights, std::unique_ptr<kernels::Backend> backend,
             storage::DevicePool device, storage::HostPool host,
             std::shared_ptr<const sparse::SelectionAlgorithm> keeper, const StepRunnerLimits& limits);

  // Told of every selection from then on, from the thread of run(); null: nobody.
  void observe(std::shared_ptr<sparse::SelectionObserver> observer) {
    transformer_.observe(observer.get());
    observer_ = std::move(observer);
  }
  // Checks that share of (step, layer) against the host pool from then on.
  void verify(double rate) { transformer_.verify(rate); }

  // A sequence whose logits hold a NaN fails alone: its result carries the error and its later rows are skipped.
  StepResult run(const StepPlan& plan) override;

 private:
  struct LogitsRow {  // a row whose logits are needed, and what for
    std::int64_t row = 0;
    std::size_t result = 0;  // index in StepResult::sequences
    SequenceState* state = nullptr;
    std::int32_t target = -1;  // >= 0: score this prompt token; -1: sample
    std::int32_t alternatives = -1;
  };
  void add_rows(const SequenceStep& step, std::size_t result);
  void score_rows(StepResult& result);
  void score_row(const LogitsRow& row, std::span<float> logits, StepResult& result);

  std::unique_ptr<kernels::Backend> backend_;  // outlives the packed weights
  std::unique_ptr<ModelWeights> weights_;
  storage::DevicePool device_;
  storage::HostPool host_;
  std::shared_ptr<const sparse::SelectionAlgorithm> keeper_;
  std::shared_ptr<sparse::SelectionObserver> observer_;
  sparse::TieredKv kv_;
  TieredTransformer transformer_;
  // Scratch, reused.
  std::vector<std::int32_t> tokens_;
  std::vector<SequenceSlice> slices_;
  std::vector<LogitsRow> logits_rows_;
};

}  // namespace hotset::model
