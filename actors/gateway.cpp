#include "actors/gateway.h"

#include <caf/spawn_options.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <new>
#include <utility>

#include "core/log.h"

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

void submit(Self self, const OpenGeneration& opening) {
  const Generate& message = opening.generate;
  std::optional<SubmitSequences> submission =
      self->state.core->open(message.handle, message.request, *opening.prompts, message.arrived_ns);
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
  self->state.core = std::make_unique<GatewayCore>(parts.config, parts.tokenizer, *parts.open, *parts.metrics);
  self->state.parts = std::move(parts);
  self->state.engine = std::move(engine);
  return {
      [self](const OpenGeneration& message) { submit(self, message); },
      [self](const CancelGeneration& message) { cancel_sequences(self, self->state.core->cancel(message.handle)); },
      [self](StepOutputs& step) {
        cancel_sequences(self, self->state.core->outputs(std::move(step), self->state.now()));
      },
      [self](const FailOpenRequests& message) { cancel_sequences(self, self->state.core->fail_all(message.error)); },
  };
}

struct ReaderState {
  static constexpr const char* name = "prompt reader";
};

// `read()`. What it throws is this prompt's error: an exception would end the actor, and with it the server.
template <class Read>
auto guarded(const Read& read) -> decltype(read()) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kOverloaded, "there is not enough memory to read the prompt", {}};
  } catch (const std::exception& failed) {
    log_error("a prompt could not be read: ", failed.what());
    return Error{ErrorCode::kInternal, "the server failed to read the prompt", {}};
  }
}

PromptReaderActor::behavior_type prompt_reader(PromptReaderActor::stateful_pointer<ReaderState> self,
                                               std::shared_ptr<const PromptReader> reader,
                                               std::shared_ptr<OpenRequests> open, GatewayActor gateway) {
  return {
      [self, reader, open, gateway](const Generate& message) {
        if (open->find(message.handle) == nullptr) return;
        auto prompts =
            std::make_shared<const Result<PromptTokens>>(guarded([&] { return reader->read(*message.request); }));
        self->send(gateway, OpenGeneration{.generate = message, .prompts = std::move(prompts)});
      },
      [reader](const Tokenize& message) {
        message.reply->deliver(guarded([&] { return reader->tokenize(*message.request); }));
      },
      [reader](const Detokenize& message) {
        message.reply->deliver(guarded([&] { return reader->detokenize(*message.tokens); }));
      },
  };
}

}  // namespace

PromptReaderActor spawn_prompt_reader(caf::actor_system& system, std::shared_ptr<const PromptReader> reader,
                                      std::shared_ptr<OpenRequests> open, GatewayActor gateway, bool detached) {
  if (detached) {
    return system.spawn<caf::detached>(prompt_reader, std::move(reader), std::move(open), std::move(gateway));
  }
  return system.spawn(prompt_reader, std::move(reader), std::move(open), std::move(gateway));
}

GatewayActor spawn_gateway(caf::actor_system& system, GatewayParts parts, SparseCoordinatorActor engine,
                           bool detached) {
  if (detached) return system.spawn<caf::detached>(gateway, std::move(parts), std::move(engine));
  return system.spawn(gateway, std::move(parts), std::move(engine));
}

}  // namespace hotset::actors
