#include "benchmarks/engine_load.h"

#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "actors/step_assembler.h"
#include "core/check.h"
#include "core/splitmix.h"

namespace hotset {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

EngineLoad::EngineLoad(const LoadConfig& config, model::StepExecutor& runner)
    : config_(config), runner_(runner), scheduler_(config.scheduler), pager_(config.pools) {}

EngineLoad::~EngineLoad() {
  for (const SequenceId id : ids_) scheduler_.cancel(id);
  wait();
}

void EngineLoad::submit(std::int64_t count, std::int64_t prompt_tokens, std::int64_t new_tokens) {
  std::vector<actors::SequenceRequest> requests;
  for (std::int64_t i = 0; i < count; ++i) {
    actors::SequenceRequest request{.id = SequenceId{next_id_++}, .max_new_tokens = new_tokens};
    for (std::int64_t token = 0; token < prompt_tokens; ++token) {
      const auto number = splitmix64(request.id.value() << 32 | static_cast<std::uint64_t>(token));
      request.prompt.push_back(static_cast<std::int32_t>(number % static_cast<std::uint64_t>(config_.vocabulary)));
    }
    request.sampling.temperature = 0;
    request.policy = config_.policy;
    ids_.push_back(request.id);
    requests.push_back(std::move(request));
  }
  prompts_open_ += count;
  const auto queued = scheduler_.submit(std::move(requests), 0);
  HS_CHECK(queued.ok(), "the queue holds the load");
}

void EngineLoad::admit() {
  for (const SequenceId id : scheduler_.take_released()) (void)pager_.release(id);
  while (const auto demand = scheduler_.next_admission()) {
    const auto answer = pager_.acquire(*demand);
    HS_CHECK(answer.ok(), answer.ok() ? "" : answer.error().message.c_str());
    if (answer.value() == actors::Admission::kGranted) {
      (void)scheduler_.admitted(demand->id, 0);
    } else {
      scheduler_.postponed(demand->id);
    }
  }
}

void EngineLoad::begin_steps() {
  while (true) {
    const double start = now_seconds();
    admit();
    const auto draft = scheduler_.plan_step();
    if (!draft) return;
    for (const actors::DraftRows& rows : draft->rows) {
      prompts_open_ -= rows.prefill && rows.sample;
      if (!config_.write_through) rows.state->kv.host_complete = std::numeric_limits<std::int64_t>::max();
    }
    const actors::StepSelection selection = selection_.plan(*draft);
    const actors::PagedStep paged = pager_.plan(*draft);
    const model::StepPlan plan = actors::assemble_step(*draft, selection, paged.pages);
    times_.plan_seconds += now_seconds() - start;
    (void)runner_.begin(plan);
    ++under_way_;
  }
}

bool EngineLoad::step() {
  begin_steps();
  if (under_way_ == 0) return false;
  finish_step();
  return true;
}

void EngineLoad::finish_step() {
  const model::StepResult result = runner_.finish();
  --under_way_;
  const double start = now_seconds();
  count(result);
  for (const actors::SequenceEvent& event : scheduler_.step_done(result)) {
    HS_CHECK(event.end != actors::SequenceEnd::kFailed, event.error.message.c_str());
    for (const model::SampledToken& token : event.tokens)
      if (listener_) listener_(event.id, token.token);
  }
  times_.plan_seconds += now_seconds() - start;
}

void EngineLoad::wait() {
  while (under_way_ > 0) finish_step();
}

void EngineLoad::count(const model::StepResult& result) {
  const model::StepStats& stats = result.stats;
  ++times_.steps;
  times_.tokens += stats.decode_rows;
  times_.prompt_tokens += stats.prefill_rows;
  times_.misses += stats.misses;
  times_.selected += stats.misses + stats.hits + stats.ring_hits;
  times_.bytes_loaded += stats.bytes_loaded;
  times_.bytes_offloaded += stats.bytes_offloaded;
  times_.idle_seconds += 1e-9 * static_cast<double>(stats.idle_ns);
}

void EngineLoad::settle(std::int64_t steps) {
  // Those that still wait in the queue are not admitted before somebody ends.
  do {
    do {
      if (!step()) return;
    } while (prompts_open_ > scheduler_.queued());
    (void)run(steps);
  } while (prompts_open_ > scheduler_.queued());
}

LoadTimes EngineLoad::run(std::int64_t steps) {
  times_ = {};
  const double start = now_seconds();
  while (times_.steps < steps && step()) {
  }
  times_.seconds = now_seconds() - start;
  return times_;
}

LoadTimes EngineLoad::run_to_end() { return run(std::numeric_limits<std::int64_t>::max()); }

}  // namespace hotset
