// What a stream actor runs: one step after the other. StepRunner is the real one; tests script it.
#pragma once

#include "model/step_plan.h"

namespace hotset::model {

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Throws only when the environment is broken (no memory, a device error): the engine is unhealthy from then on.
  virtual StepResult run(const StepPlan& plan) = 0;
};

}  // namespace hotset::model
