#include "actors/stream_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace hotset::actors {

StreamCore::StreamCore(std::shared_ptr<model::StepExecutor> executor, std::shared_ptr<const Clock> clock)
    : executor_(std::move(executor)), clock_(std::move(clock)) {}

Error StreamCore::fail(const std::string& reason) {
  log_error("a step failed: ", reason);
  broken_ = true;
  return {ErrorCode::kInternal, "the engine failed while it ran a step", {}};
}

template <class Body>
auto StreamCore::guarded(const Body& body) -> Result<decltype(body())> {
  HS_CHECK(!broken_, "no step follows a failed one");
  try {
    return body();
  } catch (const std::exception& broken) {
    return fail(broken.what());
  } catch (...) {
    return fail("for an unknown reason");
  }
}

Result<std::shared_ptr<const model::PendingStep>> StreamCore::begin(const model::StepPlan& plan) {
  // A sequence of the plan that has rows already was running when the step before ended: the gap is lost time. Without
  // one the device had nothing to do.
  const bool was_running = std::any_of(plan.sequences.begin(), plan.sequences.end(),
                                       [](const model::SequenceStep& step) { return step.first_position > 0; });
  const bool waited = was_running && begun_.empty() && last_end_ns_ >= 0;
  begun_.push_back({.deferred = plan.deferred,
                    .was_running = was_running,
                    .waited_ns = waited ? clock_->steady_ns() - last_end_ns_ : 0});
  return guarded([&] { return executor_->begin(plan); });
}

Result<model::StepResult> StreamCore::finish() {
  HS_CHECK(!begun_.empty(), "a step is under way");
  const Begun begun = std::move(begun_.front());
  begun_.pop_front();
  auto result = guarded([&] { return executor_->finish(); });
  if (!result) return result;
  model::StepResult& done = result.value();
  done.deferred = begun.deferred;
  // A device that is asked in advance knows better what it waited for.
  done.stats.idle_ns = begun.was_running ? std::max(begun.waited_ns, done.stats.idle_ns) : 0;
  last_end_ns_ = clock_->steady_ns();
  return result;
}

}  // namespace hotset::actors
