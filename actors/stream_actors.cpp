// BackendAdaptor, ComputeStream and StepWaiter.
#include <caf/spawn_options.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <utility>

#include "actors/engine_actors.h"
#include "actors/step_assembler.h"
#include "actors/stream_core.h"
#include "core/concat.h"

namespace hotset::actors {
namespace {

BackendAdaptorActor::behavior_type backend_adaptor(BackendAdaptorActor::pointer self, ComputeStreamActor stream) {
  return {
      [self, stream](const AdaptStep& message) {
        auto plan = assemble_step(*message.draft, *message.selection, *message.pages);
        self->send(stream, RunStep{.plan = std::make_shared<const model::StepPlan>(std::move(plan))});
      },
  };
}

StepWaiterActor::behavior_type step_waiter(StepWaiterActor::pointer self, const ComputeStreamActor& stream) {
  return {
      [self, stream](const AwaitStep& message) {
        StepReached reached;
        try {
          message.step->wait();
        } catch (const std::exception& broken) {
          reached.failure = concat("the device is broken: ", broken.what());
        }
        self->send(stream, reached);
      },
  };
}

struct StreamState {
  static constexpr const char* name = "compute stream";
  std::unique_ptr<StreamCore> core;
  SparseCoordinatorActor coordinator;
  StepWaiterActor waiter;  // spawned for the first step that runs elsewhere
  bool detached = false;
};
using Stream = ComputeStreamActor::stateful_pointer<StreamState>;

void tell_failure(Stream self, const Error& error) {
  self->send(self->state.coordinator, StepFailed{.reason = error.message});
}

void finish_step(Stream self) {
  Result<model::StepResult> result = self->state.core->finish();
  if (!result) return tell_failure(self, result.error());
  self->send(self->state.coordinator,
             StepDone{.result = std::make_shared<const model::StepResult>(std::move(result).value())});
}

void begin_step(Stream self, const RunStep& message) {
  StreamState& state = self->state;
  if (state.core->broken()) return;
  auto pending = state.core->begin(*message.plan);
  if (!pending) return tell_failure(self, pending.error());
  if (pending.value() == nullptr) return finish_step(self);
  if (!state.waiter) {
    const ComputeStreamActor stream(self);
    state.waiter = state.detached ? self->spawn<caf::detached + caf::linked>(step_waiter, stream)
                                  : self->spawn<caf::linked>(step_waiter, stream);
  }
  self->send(state.waiter, AwaitStep{.step = std::move(pending).value()});
}

void step_reached(Stream self, const StepReached& message) {
  if (self->state.core->broken()) return;
  if (!message.failure.empty()) return tell_failure(self, self->state.core->fail(message.failure));
  finish_step(self);
}

ComputeStreamActor::behavior_type compute_stream(Stream self, std::shared_ptr<model::StepExecutor> executor,
                                                 std::shared_ptr<const Clock> clock, SparseCoordinatorActor coordinator,
                                                 bool detached) {
  self->state.core = std::make_unique<StreamCore>(std::move(executor), std::move(clock));
  self->state.coordinator = std::move(coordinator);
  self->state.detached = detached;
  return {
      [self](const RunStep& message) { begin_step(self, message); },
      [self](const StepReached& message) { step_reached(self, message); },
  };
}

}  // namespace

BackendAdaptorActor spawn_backend_adaptor(caf::actor_system& system, ComputeStreamActor stream) {
  return system.spawn(backend_adaptor, std::move(stream));
}

ComputeStreamActor spawn_compute_stream(caf::actor_system& system, std::shared_ptr<model::StepExecutor> executor,
                                        std::shared_ptr<const Clock> clock, SparseCoordinatorActor coordinator,
                                        bool detached) {
  if (detached) {
    return system.spawn<caf::detached>(compute_stream, std::move(executor), std::move(clock), std::move(coordinator),
                                       detached);
  }
  return system.spawn(compute_stream, std::move(executor), std::move(clock), std::move(coordinator), detached);
}

}  // namespace hotset::actors
