#include "actors/stream_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace hotset::actors {

StreamCore::StreamCore(std::shared_ptr<model::StepExecutor> executor, std::shared_ptr<const Clock> clock)
    : executor_(std::move(executor)), clock_(std::move(clock)) {}

Result<model::StepResult> StreamCore::run(const model::StepPlan& plan) {
  HS_CHECK(!broken_, "no step follows a failed one");
  const std::int64_t start = clock_->steady_ns();
  // A sequence of the plan that has rows already was running when the step before ended: the gap is lost time. Without
  // one the device had nothing to do.
  const bool was_running = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                       [](const model::SequenceStep& step) { return step.first_position > 0; });
  try {
    model::StepResult result = executor_->run(plan);
    result.deferred = plan.deferred;
    result.stats.idle_ns = was_running && last_end_ns_ >= 0 ? start - last_end_ns_ : 0;
    last_end_ns_ = clock_->steady_ns();
    return result;
  } catch (const std::exception& broken) {
    log_error("a step failed: ", broken.what());
  } catch (...) {
    log_error("a step failed for an unknown reason");
  }
  broken_ = true;
  return Error{ErrorCode::kInternal, "the engine failed while it ran a step", {}};
}

}  // namespace hotset::actors
