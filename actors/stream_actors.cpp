// BackendAdaptor and CpuStream.
#include <caf/spawn_options.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <utility>

#include "actors/engine_actors.h"
#include "actors/step_assembler.h"
#include "actors/stream_core.h"

namespace hotset::actors {
namespace {

BackendAdaptorActor::behavior_type backend_adaptor(BackendAdaptorActor::pointer self, CpuStreamActor stream) {
  return {
      [self, stream](const AdaptStep& message) {
        auto plan = assemble_step(*message.draft, *message.selection, *message.pages);
        self->send(stream, RunStep{.plan = std::make_shared<const model::StepPlan>(std::move(plan))});
      },
  };
}

struct StreamState {
  static constexpr const char* name = "cpu stream";
  std::unique_ptr<StreamCore> core;
  SparseCoordinatorActor coordinator;
};
using Stream = CpuStreamActor::stateful_pointer<StreamState>;

void run_step(Stream self, const RunStep& message) {
  StreamState& state = self->state;
  if (state.core->broken()) return;
  Result<model::StepResult> result = state.core->run(*message.plan);
  if (!result) {
    self->send(state.coordinator, StepFailed{.reason = result.error().message});
    return;
  }
  self->send(state.coordinator,
             StepDone{.result = std::make_shared<const model::StepResult>(std::move(result).value())});
}

CpuStreamActor::behavior_type cpu_stream(Stream self, std::shared_ptr<model::StepExecutor> executor,
                                         std::shared_ptr<const Clock> clock, SparseCoordinatorActor coordinator) {
  self->state.core = std::make_unique<StreamCore>(std::move(executor), std::move(clock));
  self->state.coordinator = std::move(coordinator);
  return {
      [self](const RunStep& message) { run_step(self, message); },
  };
}

}  // namespace

BackendAdaptorActor spawn_backend_adaptor(caf::actor_system& system, CpuStreamActor stream) {
  return system.spawn(backend_adaptor, std::move(stream));
}

CpuStreamActor spawn_cpu_stream(caf::actor_system& system, std::shared_ptr<model::StepExecutor> executor,
                                std::shared_ptr<const Clock> clock, SparseCoordinatorActor coordinator, bool detached) {
  if (detached) {
    return system.spawn<caf::detached>(cpu_stream, std::move(executor), std::move(clock), std::move(coordinator));
  }
  return system.spawn(cpu_stream, std::move(executor), std::move(clock), std::move(coordinator));
}

}  // namespace hotset::actors
