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
  std::shared_ptr<const PromptEncoder> encoder;
  std::shared_ptr<OpenRequests> open;
  std::shared_ptr<GatewayMetrics> metrics;
  std::shared_ptr<const Clock> clock;
  std::chrono::milliseconds engine_timeout{30'000};  // for the engine to accept or refuse
};

// `detached`: with a thread of its own, because tokenizing a long prompt takes long (tests: false).
GatewayActor spawn_gateway(caf::actor_system& system, GatewayParts parts, SparseCoordinatorActor engine, bool detached);

}  // namespace hotset::actors
