// How long a GPU works and waits, as a step's result says.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/device_driver.h"
#include "tests/engine/engine_driver.h"
#include "tests/engine/fixture_file.h"

namespace hotset::testing {
namespace {

constexpr std::chrono::milliseconds kLate{20};

// A host that is late: between the numbers of a step and its launch.
class LateHost final : public model::DecodeProbe {
 public:
  void after(Part part, LayerId /*layer*/) override {
    if (part == Part::kInputs) std::this_thread::sleep_for(kLate);
  }
};

// Keeps what the steps of a runner say.
class Recorded final : public model::StepExecutor {
 public:
  Recorded(std::unique_ptr<model::DeviceStepRunner> runner, std::vector<model::StepStats>& stats)
      : runner_(std::move(runner)), stats_(stats) {
    runner_->set_probe(&late_);
  }
  model::StepResult run(const model::StepPlan& plan) override {
    model::StepResult result = runner_->run(plan);
    stats_.push_back(result.stats);
    return result;
  }

 private:
  LateHost late_;
  std::unique_ptr<model::DeviceStepRunner> runner_;
  std::vector<model::StepStats>& stats_;
};

TEST(DeviceStepTimes, AHostThatIsLateLeavesTheDeviceIdle) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const bool graphs : {true, false}) {
    std::vector<model::StepStats> stats;
    EngineDriver driver({.checkpoint = fixture("tiny-llama"), .make_runner = [&](const EngineRequest& request) {
                           return std::make_unique<Recorded>(DeviceRunners{.graphs = graphs}(request), stats);
                         }});
    (void)driver.run({{.prompt = std::vector<std::int32_t>(16, 7), .new_tokens = 8}});
    int steps = 0;
    for (const model::StepStats& step : stats) {
      if (step.decode_rows == 0) continue;
      ++steps;
      SCOPED_TRACE(steps);
      EXPECT_GE(step.idle_ns, std::chrono::nanoseconds(kLate).count());
      EXPECT_GT(step.run_ns, 0);  // how long depends on who else runs on the device
    }
    EXPECT_EQ(steps, 7);
  }
}

}  // namespace
}  // namespace hotset::testing
