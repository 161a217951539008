// The SparseCoordinator actor: a shell around CoordinatorCore.
#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <cstdint>
#include <memory>

#include "actors/coordinator_core.h"
#include "actors/engine_health.h"
#include "actors/engine_metrics.h"
#include "actors/interfaces.h"
#include "core/clock.h"

namespace hotset::actors {

struct CoordinatorParts {
  SchedulerConfig scheduler;
  KvPlannerConfig pools;
  std::int64_t vocabulary = 0;
  SelectionMenu menu;
  std::shared_ptr<EngineHealth> health;
  std::shared_ptr<EngineMetrics> metrics;
  std::shared_ptr<const Clock> clock;
  std::chrono::milliseconds manager_timeout{10'000};
};

SparseCoordinatorActor spawn_coordinator(caf::actor_system& system, CoordinatorParts parts);

}  // namespace hotset::actors
