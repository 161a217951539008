// Drives the data plane without actors: planner, step runner and pools of the right size, with every sequence's steps
// planned as the scheduler would (one decode row each, prompt chunks at multiples of the chunk).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "core/check.h"
#include "core/concat.h"
#include "model/checkpoint.h"
#include "model/kv_layout.h"
#include "sparse/selection.h"
#include "tests/engine/engine_request.h"
#include "tests/engine/next_rows.h"
#include "tests/engine/require.h"

namespace hotset::testing {

struct DriverOptions {
  std::filesystem::path checkpoint;
  sparse::SelectionPolicy policy{.algorithm = nullptr, .threshold = 0};
  KvModeChoice mode = KvModeChoice::kAuto;
  KvDType dtype = KvDType::kF32;
  std::int64_t device_tokens = 8192;
  std::int64_t host_tokens = 32768;
  std::int64_t prefill_chunk = 64;
  std::int64_t hot_ring = 128;
  std::int64_t hot_blocks = 0;  // of a hot buffer; 0: the budget
  int threads = 1;
  // Null: the CPU's.
  MakeRunner make_runner = nullptr;
};

struct DriverRequest {
  std::vector<std::int32_t> prompt;
  std::int32_t new_tokens = 0;
  std::int32_t prompt_logprobs = -1;
  model::SamplingParams sampling{.temperature = 0, .logprobs = 0};
};

struct DriverAnswer {
  std::vector<model::SampledToken> prompt_logprobs;
  std::vector<model::SampledToken> tokens;
  bool was_hot = false;
};

class EngineDriver {
 public:
  explicit EngineDriver(const DriverOptions& options)
      : EngineDriver(options, require(model::open_checkpoint(options.checkpoint))) {}
  EngineDriver(const DriverOptions& options, std::unique_ptr<model::Checkpoint> checkpoint) : options_(options) {
    const auto& algorithm = options.policy.algorithm;
    const KvLayout layout = model::kv_layout_of(checkpoint->config(), options.dtype,
                                                algorithm ? algorithm->metadata() : MetadataGeometry{});
    const bool keeps = layout.metadata_layers > 0;
    actors::KvPlannerConfig config{
        .layout = layout,
        .device_pages = static_cast<std::int32_t>(options.device_tokens / kPageTokens * layout.rows.layers),
        .metadata_pages = static_cast<std::int32_t>(options.host_tokens / kPageTokens * layout.metadata_layers),
        .host_pages = static_cast<std::int32_t>(options.host_tokens / kPageTokens),
        .mode = options.mode};
    demand_.keeps_metadata = keeps;
    demand_.threshold = options.policy.threshold;
    demand_.sparse = algorithm != nullptr;
    if (demand_.sparse) {
      const std::int64_t blocks = options.hot_blocks > 0 ? options.hot_blocks : options.policy.budget_blocks();
      demand_.hot_shape = require(sparse::make_hot_buffer_shape(blocks, algorithm->block_tokens(), options.hot_ring));
    }
    planner_ = std::make_unique<actors::KvCachePlanner>(config);
    const EngineRequest request{
        .checkpoint = *checkpoint,
        .layout = layout,
        .device_pages = {.rows = config.device_pages, .metadata = config.metadata_pages},
        .host_pages = config.host_pages,
        .keeper = keeps ? algorithm : nullptr,
        .hot_shape = demand_.hot_shape,
        .max_selected = algorithm ? std::max(algorithm->max_blocks(), algorithm->forced_blocks()) : 0,
        .prefill_chunk = options.prefill_chunk * 32,
        .threads = options.threads};
    if (options.make_runner) {
      runner_ = options.make_runner(request);
    } else {
      auto runner = make_cpu_runner(request);
      cpu_runner_ = runner.get();
      runner_ = std::move(runner);
    }
  }

  // Runs the requests together; sequence ids are the requests' numbers from `first_id` on.
  std::vector<DriverAnswer> run(const std::vector<DriverRequest>& requests, std::uint64_t first_id = 1) {
    std::vector<Active> active(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      active[i].request = &requests[i];
      active[i].state = std::make_shared<model::SequenceState>();
      active[i].state->kv.id = SequenceId{first_id + i};
      active[i].state->kv.keeps_metadata = demand_.keeps_metadata;
      active[i].state->sampler = model::Sampler(requests[i].sampling, requests[i].prompt);
    }
    std::size_t done = 0;
    while (done < active.size()) {
      model::StepPlan plan{.step = ++step_};
      std::vector<Active*> owners = plan_step(active, plan);
      HS_CHECK(!plan.sequences.empty(), "a sequence can always run");
      const model::StepResult result = runner_->run(plan);
      add(result.stats);
      for (std::size_t i = 0; i < owners.size(); ++i) done += take(*owners[i], result.sequences[i]) ? 1 : 0;
    }
    std::vector<DriverAnswer> answers;
    for (Active& one : active) answers.push_back(std::move(one.answer));
    return answers;
  }

  // Of the CPU's runner.
  void observe(std::shared_ptr<sparse::SelectionObserver> observer) {
    HS_CHECK(cpu_runner_ != nullptr, "the runner can be observed");
    cpu_runner_->observe(std::move(observer));
  }
  [[nodiscard]] const model::StepStats& stats() const { return stats_; }
  [[nodiscard]] std::int64_t steps_with_two_hot() const { return steps_with_two_hot_; }
  [[nodiscard]] actors::KvCounters counters() const { return planner_->counters(); }

 private:
  struct Active {
    const DriverRequest* request = nullptr;
    std::shared_ptr<model::SequenceState> state;
    DriverAnswer answer;
    std::int64_t position = 0;
    std::uint32_t turn = 0;
    bool granted = false;
    bool parked = false;
    bool finished = false;
  };

  // The parked ones come first.
  void admit(std::vector<Active>& active) {
    for (const bool parked : {true, false}) {
      for (Active& one : active) {
        if (one.finished || (parked ? !one.parked : one.granted)) continue;
        actors::KvDemand demand = demand_;
        demand.id = one.state->kv.id;
        demand.prompt_tokens = static_cast<std::int64_t>(one.request->prompt.size());
        demand.max_new_tokens = one.request->new_tokens;
        demand.resume = parked;
        if (require(planner_->acquire(demand)) != actors::Admission::kGranted) continue;
        if (parked) ++one.turn;
        one.granted = true;
        one.parked = false;
      }
    }
  }

  // Returns whose rows the plan holds.
  std::vector<Active*> plan_step(std::vector<Active>& active, model::StepPlan& plan) {
    admit(active);
    std::vector<actors::KvRows> wanted;
    std::vector<Active*> owners;
    std::vector<model::SequenceStep> steps;
    for (Active& one : active) {
      if (one.finished || !one.granted || one.parked) continue;
      steps.push_back(draft(one));
      owners.push_back(&one);
      wanted.push_back({.id = one.state->kv.id,
                        .turn = one.turn,
                        .first_position = one.position,
                        .rows = steps.back().rows,
                        .prefill = steps.back().prefill});
    }
    actors::KvStepPlan pages = planner_->plan_step(wanted);
    for (Active& one : active) {
      if (std::ranges::find(pages.deferred, one.state->kv.id) != pages.deferred.end()) one.parked = true;
    }
    for (actors::KvTransition& transition : pages.transitions) {
      const auto owner =
          std::ranges::find_if(active, [&](const Active& one) { return one.state->kv.id == transition.id; });
      plan.transitions.push_back({.state = owner->state, .ops = std::move(transition.ops)});
    }
    std::vector<Active*> running;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!pages.ops[i]) continue;
      steps[i].ops = std::move(*pages.ops[i]);
      owners[i]->position += steps[i].rows;
      plan.sequences.push_back(std::move(steps[i]));
      running.push_back(owners[i]);
    }
    return running;
  }

  // The next rows, without operations.
  model::SequenceStep draft(const Active& one) const {
    model::SequenceStep step = next_rows(one.state, one.request->prompt, one.position, options_.prefill_chunk);
    step.sample = step.sample && one.request->new_tokens > 0;
    step.prompt_logprobs = step.prefill ? one.request->prompt_logprobs : -1;
    const bool may_select = !step.prefill || (options_.policy.algorithm && options_.policy.algorithm->selects_prompt());
    if (may_select && options_.policy.sparse_at(one.position + step.rows)) {
      step.selection = options_.policy.algorithm;
      step.budget = options_.policy.budget_blocks();
      step.dense_until = options_.policy.threshold;
    }
    return step;
  }

  bool take(Active& one, const model::SequenceResult& result) {
    HS_CHECK(result.error.empty(), "the sequence runs");
    one.answer.was_hot = one.answer.was_hot || one.state->kv.mode == sparse::KvMode::kHot;
    for (const auto& scored : result.prompt_logprobs) one.answer.prompt_logprobs.push_back(scored);
    if (result.sampled) one.answer.tokens.push_back(result.token);
    one.finished = one.position >= static_cast<std::int64_t>(one.request->prompt.size()) &&
                   static_cast<std::int32_t>(one.answer.tokens.size()) == one.request->new_tokens;
    if (one.finished) planner_->release(one.state->kv.id);
    return one.finished;
  }

  void add(const model::StepStats& stats) {
    stats_.hot_sequences += stats.hot_sequences;
    stats_.hits += stats.hits;
    stats_.ring_hits += stats.ring_hits;
    stats_.misses += stats.misses;
    stats_.bytes_loaded += stats.bytes_loaded;
    stats_.bytes_offloaded += stats.bytes_offloaded;
    steps_with_two_hot_ += stats.hot_sequences >= 2 ? 1 : 0;
  }

  DriverOptions options_;
  actors::KvDemand demand_;  // of every request, without its lengths
  std::unique_ptr<actors::KvCachePlanner> planner_;
  std::unique_ptr<model::StepExecutor> runner_;
  model::StepRunner* cpu_runner_ = nullptr;
  std::uint64_t step_ = 0;
  model::StepStats stats_;
  std::int64_t steps_with_two_hot_ = 0;
};

}  // namespace hotset::testing
