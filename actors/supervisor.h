// The Supervisor actor: spawns and monitors every other actor of the process.
#pragma once

#include <caf/actor_system.hpp>
#include <memory>

#include "actors/engine_health.h"
#include "actors/engine_metrics.h"
#include "actors/interfaces.h"
#include "actors/open_requests.h"
#include "actors/serving_parts.h"

namespace hotset::actors {

struct SupervisorParts {
  ServingParts serving;
  std::shared_ptr<OpenRequests> open;
  std::shared_ptr<EngineHealth> health;
  std::shared_ptr<GatewayMetrics> gateway_metrics;
  std::shared_ptr<EngineMetrics> engine_metrics;
  bool own_threads = true;  // readers, gateway and stream detached (tests: false)
};

// Handles for those who send from outside, and for tests that end an actor.
struct ProcessActors {
  PromptReaderActor prompt_reader;  // of requests
  PromptReaderActor text_reader;    // of /tokenize and /detokenize
  GatewayActor gateway;
  SparseCoordinatorActor coordinator;
  AlgorithmActor algorithm;
  SparseKVCacheManagerActor manager;
  BackendAdaptorActor adaptor;
  ComputeStreamActor stream;
  TierStoreActor host_tier;
  SupervisorActor supervisor;
};

ProcessActors spawn_process(caf::actor_system& system, SupervisorParts parts);

}  // namespace hotset::actors
