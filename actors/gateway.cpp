#include "actors/gateway.h"

#include <caf/spawn_options.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <utility>

namespace hotset::actors {
namespace {

struct GatewayState {
  static constexpr const char* name = "gateway";
  GatewayParts parts;
  std::unique_ptr<GatewayCore> core;
  SparseCoordinatorActor engine;

  [[nodiscard]] std::int64_t now() const { return parts.clock->steady_ns(); }
};
using Self = GatewayActor::stateful_pointer<GatewayState>;

void cancel_sequences(Self self, GatewayCore::Sequences sequences) {
  if (!sequences.empty()) self->send(self->state.engine, CancelSequences{.sequences = std::move(sequences)});
}

void submit(Self self, const Generate& message) {
  std::optional<SubmitSequences> submission =
      self->state.core->open(message.handle, message.request, message.arrived_ns);
  if (!submission) return;
  CancelSequences all;
  for (const SequenceSubmission& one : submission->sequences) all.sequences.push_back(one.sequence);
  const RequestHandle handle = message.handle;
  self->request(self->state.engine, self->state.parts.engine_timeout, std::move(*submission))
      .then(
          [self, handle](const SubmitAnswer& answer) {
            if (answer.accepted) self->state.core->accepted(handle);
            if (!answer.accepted) self->state.core->refused(handle, answer.error);
          },
          [self, handle, all](const caf::error&) {
            // A late answer may still be a yes.
            cancel_sequences(self, all.sequences);
            self->state.core->refused(handle, {ErrorCode::kUnavailable, "the engine does not answer", {}});
          });
}

GatewayActor::behavior_type gateway(Self self, GatewayParts parts, SparseCoordinatorActor engine) {
  self->state.core = std::make_unique<GatewayCore>(parts.config, parts.encoder, *parts.open, *parts.metrics);
  self->state.parts = std::move(parts);
  self->state.engine = std::move(engine);
  return {
      [self](const Generate& message) { submit(self, message); },
      [self](const CancelGeneration& message) { cancel_sequences(self, self->state.core->cancel(message.handle)); },
      [self](const Tokenize& message) { message.reply->deliver(self->state.core->tokenize(*message.request)); },
      [self](const Detokenize& message) { message.reply->deliver(self->state.core->detokenize(*message.tokens)); },
      [self](StepOutputs& step) {
        cancel_sequences(self, self->state.core->outputs(std::move(step), self->state.now()));
      },
      [self](const FailOpenRequests& message) { cancel_sequences(self, self->state.core->fail_all(message.error)); },
  };
}

}  // namespace

GatewayActor spawn_gateway(caf::actor_system& system, GatewayParts parts, SparseCoordinatorActor engine,
                           bool detached) {
  if (detached) return system.spawn<caf::detached>(gateway, std::move(parts), std::move(engine));
  return system.spawn(gateway, std::move(parts), std::move(engine));
}

}  // namespace hotset::actors
