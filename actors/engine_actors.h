// The actors of an engine between its coordinator and its device: Algorithm, SparseKVCacheManager, BackendAdaptor,
// ComputeStream and the host TierStore. Each is a shell around a plain class of nearly the same name.
#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <memory>

#include "actors/engine_metrics.h"
#include "actors/interfaces.h"
#include "actors/kv_cache_planner.h"
#include "core/clock.h"
#include "model/step_executor.h"

namespace hotset::actors {

using SharedEngineMetrics = std::shared_ptr<EngineMetrics>;

AlgorithmActor spawn_algorithm(caf::actor_system& system, SparseKVCacheManagerActor manager,
                               SharedEngineMetrics metrics);

SparseKVCacheManagerActor spawn_cache_manager(caf::actor_system& system, const KvPlannerConfig& pools,
                                              BackendAdaptorActor adaptor, TierStoreActor host_tier,
                                              SharedEngineMetrics metrics);

BackendAdaptorActor spawn_backend_adaptor(caf::actor_system& system, ComputeStreamActor stream);

// `detached`: with a thread of its own, which alone runs and destroys the executor, and another one that waits for the
// device (tests: false).
ComputeStreamActor spawn_compute_stream(caf::actor_system& system, std::shared_ptr<model::StepExecutor> executor,
                                        std::shared_ptr<const Clock> clock, SparseCoordinatorActor coordinator,
                                        bool detached);

TierStoreActor spawn_host_tier(caf::actor_system& system, std::int64_t capacity_pages, SharedEngineMetrics metrics);

}  // namespace hotset::actors
