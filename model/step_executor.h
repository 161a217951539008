// The one door to a device: runs steps in the order in which they come. The stream actor owns it and is its only
// thread. Tests put a scripted one here.
#pragma once

#include "model/step_plan.h"

namespace hotset::model {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Returns when the step is done. A sequence that fails (NaN logits) fails alone, in its result. Throws only when the
  // environment is broken (no memory, a device error): the engine is unhealthy from then on and no step follows.
  virtual StepResult run(const StepPlan& plan) = 0;
};

}  // namespace hotset::model
