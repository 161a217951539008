// The plain class behind CpuStream: runs plans and measures how long the device waited for them.
// Thread: the stream's; the executor is used and destroyed there.
#pragma once

#include <memory>

#include "core/clock.h"
#include "core/result.h"
#include "model/step_executor.h"

namespace hotset::actors {

class StreamCore {
 public:
  StreamCore(std::shared_ptr<model::StepExecutor> executor, std::shared_ptr<const Clock> clock);

  // kInternal when the executor threw: the environment is broken, and broken() from then on.
  Result<model::StepResult> run(const model::StepPlan& plan);
  [[nodiscard]] bool broken() const { return broken_; }

 private:
  std::shared_ptr<model::StepExecutor> executor_;
  std::shared_ptr<const Clock> clock_;
  std::int64_t last_end_ns_ = -1;
  bool broken_ = false;
};

}  // namespace hotset::actors
