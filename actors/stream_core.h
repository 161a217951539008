// The plain class behind ComputeStream: begins and ends steps and measures how long the device waited for them.
// Thread: the stream's; the executor is used and destroyed there.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/result.h"
#include "model/step_executor.h"

namespace hotset::actors {

class StreamCore {
 public:
  StreamCore(std::shared_ptr<model::StepExecutor> executor, std::shared_ptr<const Clock> clock);

  // Null: the step is done already. kInternal when the executor threw: the environment is broken, and broken() from
  // then on.
  Result<std::shared_ptr<const model::PendingStep>> begin(const model::StepPlan& plan);
  // Of the oldest step that was begun. Errors as above.
  Result<model::StepResult> finish();
  // What waited for a step has found the device broken.
  Error fail(const std::string& reason);
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  struct Begun {
    std::vector<SequenceId> deferred;
    bool was_running = false;
    std::int64_t waited_ns = 0;
  };
  template <class Body>
  auto guarded(const Body& body) -> Result<decltype(body())>;

  std::shared_ptr<model::StepExecutor> executor_;
  std::shared_ptr<const Clock> clock_;
  std::deque<Begun> begun_;  // oldest first
  std::int64_t last_end_ns_ = -1;
  bool broken_ = false;
};

}  // namespace hotset::actors
