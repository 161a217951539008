// The data plane as the fidelity benchmark drives it: one step runner, sequences that share the pages of a common
// beginning, prompts attended densely and scored, single rows attended over selections and scored. Everything is
// resident and float32. Faults end in std::runtime_error. Thread: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/fidelity_selection.h"
#include "kernels/backend.h"
#include "model/step_runner.h"
#include "sparse/selection_observer.h"

namespace hotset::fidelity {

// One way of selecting: a row of the table at one budget.
struct Configuration {
  std::string name;         // "lowrank, rank 16"
  Algorithm algorithm;      // null: dense
  double share = 1;         // budget as a share of the context
  std::int64_t budget = 0;  // blocks
};

struct EngineLimits {
  std::int64_t tokens = 0;       // of the longest sequence
  std::int64_t pool_tokens = 0;  // of all sequences that live together, shared pages once
  std::int64_t batch = 16;       // rows of one decode()
  std::int64_t mass_every = 64;  // MassMeter
};

using Sequence = std::shared_ptr<model::SequenceState>;

class Engine {
 public:
  Engine(std::unique_ptr<model::ModelWeights> weights, std::unique_ptr<kernels::Backend> backend,
         std::vector<Configuration> configurations, const EngineLimits& limits);

  // In the order of construction; their algorithms are the measured ones.
  [[nodiscard]] std::span<const Configuration> configurations() const { return configurations_; }
  [[nodiscard]] std::int32_t layers() const { return layout_.rows.layers; }
  // Measures the attention mass of this sequence's selections from then on; it must stay alive while it runs.
  void watch(const Sequence& sequence) { meter_->watch(sequence->kv); }
  [[nodiscard]] const MassMeter& mass() const { return *meter_; }
  void observe(std::shared_ptr<sparse::SelectionObserver> observer) { runner_->observe(std::move(observer)); }

  // A sequence with room for `capacity` tokens. `base` not null: it begins with the first `shared` tokens of `base` (a
  // multiple of 64, all of them run), whose pages both read from then on.
  [[nodiscard]] Sequence start(std::int64_t capacity, const model::SequenceState* base = nullptr,
                               std::int64_t shared = 0);
  // Pages of sequences that were started after mark() are free again after release(); those sequences must be gone.
  [[nodiscard]] std::int32_t mark() const { return next_page_; }
  void release(std::int32_t mark) { next_page_ = mark; }

  // Attends densely to the sequence's next tokens, text[length] ... text[end - 1]. Returns the negative log-likelihoods
  // of text[from + 1] ... text[end - 1], each given what comes before it.
  std::vector<double> prefill(const Sequence& sequence, std::span<const std::int32_t> text, std::int64_t end,
                              std::int64_t from);

  // One row of a sequence: `token` at its end, attending as the configuration says.
  struct Row {
    Sequence sequence;
    const Configuration* configuration = nullptr;
    std::int32_t token = 0;
    std::int32_t target = 0;
  };
  struct Score {
    double nll = 0;           // of the target
    std::int32_t argmax = 0;  // the greedy choice
  };
  // Together in one step, at most `batch` rows of different sequences.
  std::vector<Score> decode(std::span<const Row> rows);

 private:
  std::vector<Configuration> configurations_;
  std::shared_ptr<const PackedMetadata> keeper_;
  std::shared_ptr<MassMeter> meter_;
  std::unique_ptr<model::StepRunner> runner_;
  KvLayout layout_;
  std::int32_t pool_pages_ = 0;  // of 64 tokens in all layers
  std::int32_t next_page_ = 0;
  std::uint64_t next_id_ = 1;
  std::uint64_t step_ = 0;
};

}  // namespace hotset::fidelity
