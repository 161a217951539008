// Sequences run as a server runs them, without its messages and text: the control plane's own classes (scheduler,
// planner of the cache) around the runner of a device, two steps under way. For benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "actors/scheduler.h"
#include "actors/selection_planner.h"
#include "actors/step_pager.h"
#include "model/step_executor.h"

namespace hotset {

struct LoadConfig {
  actors::SchedulerConfig scheduler;
  actors::KvPlannerConfig pools;
  actors::SharedPolicy policy;  // of every sequence; null: dense
  std::int64_t vocabulary = 0;
  bool write_through = true;  // false: finished pages stay off the host, so that nothing may be demoted or parked
};

// Of a number of steps.
struct LoadTimes {
  double seconds = 0;
  double idle_seconds = 0;  // the device waited for a step
  double plan_seconds = 0;  // the control plane worked; the device may have, too
  std::int64_t steps = 0;
  std::int64_t tokens = 0;  // generated
  std::int64_t prompt_tokens = 0;
  std::int64_t misses = 0, selected = 0;  // blocks of hot sequences
  std::int64_t bytes_loaded = 0, bytes_offloaded = 0;
};

class EngineLoad {
 public:
  // The runner has the pools that the config says, and outlives this.
  EngineLoad(const LoadConfig& config, model::StepExecutor& runner);
  // Ends every sequence.
  ~EngineLoad();
  EngineLoad(const EngineLoad&) = delete;
  EngineLoad& operator=(const EngineLoad&) = delete;

  // Queues sequences with made-up prompts.
  void submit(std::int64_t count, std::int64_t prompt_tokens, std::int64_t new_tokens);
  // Until every sequence that can run has generated something, and then `steps` steps more.
  void settle(std::int64_t steps);
  // Until nobody has anything to run.
  LoadTimes run_to_end();
  LoadTimes run(std::int64_t steps);
  // Until no step is under way.
  void wait();
  // Told of every generated token.
  void on_token(std::function<void(SequenceId, std::int32_t)> listener) { listener_ = std::move(listener); }

  [[nodiscard]] std::int64_t running() const { return scheduler_.running(); }
  [[nodiscard]] std::int64_t waiting() const { return scheduler_.queued() + scheduler_.parked(); }
  [[nodiscard]] actors::KvCounters pools() const { return pager_.counters(); }

 private:
  // False: nothing is under way and nothing can be.
  bool step();
  void admit();
  void begin_steps();
  void finish_step();
  void count(const model::StepResult& result);

  LoadConfig config_;
  model::StepExecutor& runner_;
  actors::Scheduler scheduler_;
  actors::StepPager pager_;
  actors::SelectionPlanner selection_;
  std::vector<SequenceId> ids_;
  std::uint64_t next_id_ = 1;
  std::int64_t under_way_ = 0;
  std::int64_t prompts_open_ = 0;  // whose last chunk has not been drafted
  LoadTimes times_;
  std::function<void(SequenceId, std::int32_t)> listener_;
};

}  // namespace hotset
