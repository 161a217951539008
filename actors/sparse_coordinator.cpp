#include "actors/sparse_coordinator.h"

#include <caf/actor_cast.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <deque>
#include <unordered_map>
#include <utility>

#include "core/concat.h"
#include "core/log.h"

namespace hotset::actors {
namespace {

struct CoordinatorState {
  static constexpr const char* name = "sparse coordinator";
  CoordinatorParts parts;
  std::unique_ptr<CoordinatorCore> core;
  AlgorithmActor algorithm;
  SparseKVCacheManagerActor manager;
  std::unordered_map<GatewayNumber, GatewayActor> gateways;  // by actor id
  std::deque<std::shared_ptr<void>> steps_under_way;         // EngineHealth::begin_work, oldest first

  [[nodiscard]] std::int64_t now() const { return parts.clock->steady_ns(); }
};
using Self = SparseCoordinatorActor::stateful_pointer<CoordinatorState>;

void move_on(Self self);

void ask_for_pages(Self self, const KvDemand& demand) {
  const SequenceId id = demand.id;
  CoordinatorState& state = self->state;
  self->request(state.manager, state.parts.manager_timeout, AcquirePages{.demand = demand})
      .then(
          [self, id](const AcquireAnswer& answer) {
            if (answer.failed) {
              self->state.core->refused(id, answer.error);
            } else if (answer.admission == Admission::kLater) {
              self->state.core->postponed(id);
            } else if (const auto waited = self->state.core->granted(id, self->state.now())) {
              self->state.parts.metrics->observe_queue_wait(*waited);
            }
            move_on(self);
          },
          [self, id](const caf::error&) {
            self->state.core->refused(id, {ErrorCode::kUnavailable, "the cache manager does not answer", {}});
            move_on(self);
          });
}

// After every event: give pages back, admit, plan up to two steps ahead, tell the gateways. Pages go back before the
// next question on the same way, so an answer "later" never overtakes a release.
void move_on(Self self) {
  CoordinatorState& state = self->state;
  if (auto released = state.core->take_released(); !released.empty()) {
    self->send(state.manager, ReleasePages{.sequences = std::move(released)});
  }
  if (const auto demand = state.core->next_admission()) ask_for_pages(self, *demand);
  while (auto draft = state.core->plan_step()) {
    state.steps_under_way.push_back(state.parts.health->begin_work(static_cast<std::size_t>(state.core->running())));
    self->send(state.algorithm, PlanSelection{.draft = std::make_shared<const StepDraft>(std::move(*draft))});
  }
  for (auto& [number, outputs] : state.core->take_outputs()) {
    if (const auto gateway = state.gateways.find(number); gateway != state.gateways.end()) {
      self->send(gateway->second, std::move(outputs));
    }
  }
  state.parts.metrics->set_queue(state.core->queued(), state.core->running(), state.core->parked());
}

SubmitAnswer submit(Self self, SubmitSequences& message) {
  const caf::strong_actor_ptr sender = self->current_sender();
  const GatewayNumber number = sender ? sender->id() : 0;
  if (sender) self->state.gateways.try_emplace(number, caf::actor_cast<GatewayActor>(sender));
  SubmitAnswer answer = self->state.core->submit(std::move(message), number, self->state.now());
  if (answer.accepted) self->send(self, Proceed{});
  return answer;
}

void report_verified(CoordinatorState& state, const model::VerifyOutcome& verified) {
  state.parts.metrics->count_verified(verified);
  for (const model::VerifyFailure& failure : verified.failures) log_error("verification: ", describe(failure));
  if (verified.failed > 0 && !verified.failures.empty()) {
    state.parts.health->degrade(concat("verification failed: ", describe(verified.failures.front())));
  }
}

void step_done(Self self, const StepDone& message) {
  CoordinatorState& state = self->state;
  if (!state.steps_under_way.empty()) state.steps_under_way.pop_front();
  state.parts.metrics->count_step(message.result->stats);
  report_verified(state, message.result->verified);
  state.core->step_done(*message.result);
  move_on(self);
  self->send(state.algorithm, message);
}

void step_failed(Self self, const StepFailed& message) {
  self->state.parts.health->fail(message.reason);
  self->state.core->fail_all({ErrorCode::kInternal, message.reason, {}});
  move_on(self);
}

SparseCoordinatorActor::behavior_type coordinator(Self self, CoordinatorParts parts) {
  self->state.core = std::make_unique<CoordinatorCore>(parts.scheduler, parts.pools, parts.vocabulary, parts.menu);
  self->state.parts = std::move(parts);
  return {
      [self](SubmitSequences& message) { return submit(self, message); },
      [self](const Proceed&) { move_on(self); },
      [self](const CancelSequences& message) {
        self->state.core->cancel(message);
        move_on(self);
      },
      [self](const StepDone& message) { step_done(self, message); },
      [self](const StepFailed& message) { step_failed(self, message); },
      [self](const ConnectEngine& message) {
        self->state.algorithm = message.algorithm;
        self->state.manager = message.manager;
      },
  };
}

}  // namespace

SparseCoordinatorActor spawn_coordinator(caf::actor_system& system, CoordinatorParts parts) {
  return system.spawn(coordinator, std::move(parts));
}

}  // namespace hotset::actors
