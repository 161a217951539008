// The Gateway actor: a shell around GatewayCore.
#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <memory>

#include "actors/gateway_core.h"
#include "actors/interfaces.h"
#include "core/clock.h"

namespace hotset::actors {

struct GatewayParts {
  GatewayConfig config;
  std::shared_ptr<const model::Tokenizer> tokenizer;  // null: token ids only
  std::shared_ptr<OpenRequests> open;
  std::shared_ptr<GatewayMetrics> metrics;
  std::shared_ptr<const Clock> clock;
  std::chrono::milliseconds engine_timeout{30'000};  // for the engine to accept or refuse
};

// `detached`: with a thread of its own (tests: false).
GatewayActor spawn_gateway(caf::actor_system& system, GatewayParts parts, SparseCoordinatorActor engine, bool detached);

// Requests whose client has gone meanwhile are not read.
PromptReaderActor spawn_prompt_reader(caf::actor_system& system, std::shared_ptr<const PromptReader> reader,
                                      std::shared_ptr<OpenRequests> open, GatewayActor gateway, bool detached);

}  // namespace hotset::actors
