#include "model/step_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace hotset::model {
namespace {

// What a sequence moved joins its own total and the step's.
void collect(SequenceState& state, sparse::TierTraffic& step) {
  state.traffic += state.step_traffic;
  step += state.step_traffic;
  state.step_traffic = {};
}

}  // namespace

StepRunner::StepRunner(std::unique_ptr<ModelWeights> weights, std::unique_ptr<kernels::Backend> backend,
                       storage::DevicePool device, storage::HostPool host,
                       std::shared_ptr<const sparse::SelectionAlgorithm> keeper, const StepRunnerLimits& limits)
    : backend_(std::move(backend)),
      weights_(std::move(weights)),
      device_(std::move(device)),
      host_(std::move(host)),
      keeper_(std::move(keeper)),
      kv_(device_, host_, *backend_),
      transformer_(*weights_, *backend_, kv_, keeper_.get(), limits.max_batch + limits.prefill_chunk,
                   limits.prefill_chunk) {}

StepResult StepRunner::run(const StepPlan& plan) {
  const auto start = std::chrono::steady_clock::now();
  StepResult result;
  result.step = plan.step;
  sparse::TierTraffic traffic;
  tokens_.clear();
  slices_.clear();
  logits_rows_.clear();
  result.sequences.reserve(plan.sequences.size());
  for (const SequenceTransition& transition : plan.transitions) {
    if (transition.state->failed) continue;  // its rows were skipped, so the control plane's books of it are wrong
    for (const sparse::KvOp& op : transition.ops) {
      kv_.apply(transition.state->kv, op, transition.state->step_traffic);
    }
    collect(*transition.state, traffic);
  }
  for (const SequenceStep& step : plan.sequences) result.sequences.push_back({.id = step.state->kv.id});
  for (const bool prefill : {false, true}) {  // decode rows come first
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      const SequenceStep& step = plan.sequences[i];
      if (step.prefill != prefill || step.state->failed) continue;
      for (const sparse::KvOp& op : step.ops) kv_.apply(step.state->kv, op, step.state->step_traffic);
      (prefill ? result.stats.prefill_rows : result.stats.decode_rows) += step.rows;
      if (!prefill && step.state->kv.mode == sparse::KvMode::kHot) ++result.stats.hot_sequences;
      add_rows(step, i);
    }
  }
  if (!slices_.empty()) {
    transformer_.forward(plan.step, tokens_, slices_);
    for (const SequenceSlice& slice : slices_) kv_.commit_rows(*slice.kv, slice.rows, *slice.traffic);
    score_rows(result);
  }
  for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
    SequenceState& state = *plan.sequences[i].state;
    collect(state, traffic);
    sparse::measure(state.kv, kv_.layout(), state.traffic, state.usage);
    result.sequences[i].usage = state.usage;
  }
  result.verified = transformer_.take_verified();
  result.stats.hits = traffic.hits;
  result.stats.ring_hits = traffic.ring_hits;
  result.stats.misses = traffic.misses;
  result.stats.bytes_loaded = traffic.bytes_loaded;
  result.stats.bytes_offloaded = traffic.bytes_offloaded;
  result.stats.run_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void StepRunner::add_rows(const SequenceStep& step, std::size_t result) {
  SequenceState& state = *step.state;
  HS_CHECK(step.first_position == state.kv.length, "a sequence's rows are planned in order");
  const auto first_row = static_cast<std::int64_t>(tokens_.size());
  if (step.tokens.empty()) {
    HS_CHECK(step.rows == 1 && state.last_token >= 0, "the previous step has sampled");
    tokens_.push_back(state.last_token);
  } else {
    HS_CHECK(static_cast<std::int64_t>(step.tokens.size()) == step.rows, "one token per row");
    tokens_.insert(tokens_.end(), step.tokens.begin(), step.tokens.end());
  }
  slices_.push_back({.kv = &state.kv,
                     .first_row = first_row,
                     .rows = step.rows,
                     .first_position = step.first_position,
                     .prefill = step.prefill,
                     .selection = step.selection.get(),
                     .budget = step.budget,
                     .dense_until = step.dense_until,
                     .traffic = &state.step_traffic});
  if (step.prompt_logprobs >= 0) {
    for (std::int32_t row = 0; row < step.rows; ++row) {
      const std::int32_t target =
          row + 1 < step.rows ? step.tokens[static_cast<std::size_t>(row) + 1] : step.next_token;
      if (target < 0) continue;
      logits_rows_.push_back({.row = first_row + row,
                              .result = result,
                              .state = &state,
                              .target = target,
                              .alternatives = step.prompt_logprobs});
    }
  }
  if (step.sample) logits_rows_.push_back({.row = first_row + step.rows - 1, .result = result, .state = &state});
}

void StepRunner::score_rows(StepResult& result) {
  const auto vocabulary = static_cast<std::size_t>(weights_->config.vocabulary);
  constexpr auto kBatch = static_cast<std::size_t>(TieredTransformer::kLogitsRows);
  for (std::size_t first = 0, count = 0; first < logits_rows_.size(); first += count) {
    const std::int64_t row = logits_rows_[first].row;
    for (count = 1; count < kBatch && first + count < logits_rows_.size(); ++count) {
      if (logits_rows_[first + count].row != row + static_cast<std::int64_t>(count)) break;
    }
    const std::span<float> logits = transformer_.logits(row, static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      score_row(logits_rows_[first + i], logits.subspan(i * vocabulary, vocabulary), result);
    }
  }
}

void StepRunner::score_row(const LogitsRow& row, std::span<float> logits, StepResult& result) {
  SequenceResult& sequence = result.sequences[row.result];
  if (row.state->failed) return;
  bool good = true;
  if (row.target >= 0) {
    good = logits_usable(logits);
    if (good) sequence.prompt_logprobs.push_back(score_token(logits, row.target, row.alternatives));
  } else {
    good = row.state->sampler.sample(logits, sequence.token);
    sequence.sampled = good;
    if (good) row.state->last_token = sequence.token.token;
  }
  if (!good) {
    row.state->failed = true;
    sequence.error = "the model's output holds values that are not numbers";
  }
}

}  // namespace hotset::model
