// The one door to a device: runs steps in the order in which they come. The stream actor owns it and is its only
// thread. Tests put a scripted one here.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "model/step_plan.h"

namespace hotset::model {

// A step that was begun and runs.
class PendingStep {
 public:
  virtual ~PendingStep() = default;
  // Returns when the device has done the step. Throws when the device is broken. Any thread.
  virtual void wait() const = 0;
};

class StepExecutor {
 public:
  static constexpr std::size_t kMostBegun = 2;  // steps that are begun and not finished

  virtual ~StepExecutor() = default;
  // Returns when the step is done. A sequence that fails (NaN logits) fails alone, in its result. Throws only when the
  // environment is broken (no memory, a device error): the engine is unhealthy from then on and no step follows.
  virtual StepResult run(const StepPlan& plan) = 0;

  // The same in two halves, so that the device has the next step when it is done with this one. begin() returns when
  // the step is queued; null: it is done already, as always with a device that runs in the calling thread.
  virtual std::shared_ptr<const PendingStep> begin(const StepPlan& plan) {
    done_.push_back(run(plan));
    return nullptr;
  }
  // Of the oldest step that was begun; waits for it.
  virtual StepResult finish() {
    StepResult result = std::move(done_.front());
    done_.pop_front();
    return result;
  }

 private:
  std::deque<StepResult> done_;
};

}  // namespace hotset::model
