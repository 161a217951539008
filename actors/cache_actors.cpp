// Algorithm, SparseKVCacheManager and the host TierStore.
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <utility>

#include "actors/engine_actors.h"
#include "actors/host_tier_core.h"
#include "actors/selection_planner.h"
#include "actors/step_pager.h"

namespace hotset::actors {
namespace {

struct AlgorithmState {
  static constexpr const char* name = "algorithm";
  SelectionPlanner planner;
};

AlgorithmActor::behavior_type algorithm(AlgorithmActor::stateful_pointer<AlgorithmState> self,
                                        SparseKVCacheManagerActor manager, SharedEngineMetrics metrics) {
  return {
      [self, manager](const PlanSelection& message) {
        auto selection = std::make_shared<const StepSelection>(self->state.planner.plan(*message.draft));
        self->send(manager, PlanPages{.draft = message.draft, .selection = std::move(selection)});
      },
      [self, metrics](const StepDone& message) {
        self->state.planner.learn(message.result->stats);
        metrics->set_hit_rate(self->state.planner.totals().hit_rate());
      },
  };
}

struct ManagerState {
  static constexpr const char* name = "cache manager";
  std::unique_ptr<StepPager> pager;
  BackendAdaptorActor adaptor;
  TierStoreActor host_tier;
  SharedEngineMetrics metrics;
};
using Manager = SparseKVCacheManagerActor::stateful_pointer<ManagerState>;

AcquireAnswer acquire(ManagerState& state, const AcquirePages& message) {
  const Result<Admission> admission = state.pager->acquire(message.demand);
  state.metrics->keep_pools(state.pager->counters());
  if (!admission) return {.admission = Admission::kLater, .failed = true, .error = admission.error()};
  return {.admission = admission.value(), .failed = false, .error = {}};
}

void release(Manager self, const ReleasePages& message) {
  auto forgotten = std::make_shared<std::vector<PageIdentity>>();
  for (const SequenceId id : message.sequences) {
    const std::vector<PageIdentity> pages = self->state.pager->release(id);
    forgotten->insert(forgotten->end(), pages.begin(), pages.end());
  }
  self->state.metrics->keep_pools(self->state.pager->counters());
  if (!forgotten->empty()) self->send(self->state.host_tier, ErasePages{.pages = std::move(forgotten)});
}

void plan_pages(Manager self, const PlanPages& message) {
  PagedStep step = self->state.pager->plan(*message.draft);
  self->send(self->state.adaptor, AdaptStep{.draft = message.draft,
                                            .selection = message.selection,
                                            .pages = std::make_shared<const StepPages>(std::move(step.pages))});
  if (!step.completed.empty()) {
    auto pages = std::make_shared<const std::vector<TierPage>>(std::move(step.completed));
    self->send(self->state.host_tier, PutPages{.pages = std::move(pages)});
  }
  self->state.metrics->keep_pools(self->state.pager->counters());
}

SparseKVCacheManagerActor::behavior_type cache_manager(Manager self, const KvPlannerConfig& pools,
                                                       BackendAdaptorActor adaptor, TierStoreActor host_tier,
                                                       SharedEngineMetrics metrics) {
  self->state.pager = std::make_unique<StepPager>(pools);
  self->state.adaptor = std::move(adaptor);
  self->state.host_tier = std::move(host_tier);
  self->state.metrics = std::move(metrics);
  return {
      [self](const AcquirePages& message) { return acquire(self->state, message); },
      [self](const ReleasePages& message) { release(self, message); },
      [self](const PlanPages& message) { plan_pages(self, message); },
  };
}

struct HostTierState {
  static constexpr const char* name = "host tier";
  std::unique_ptr<HostTierCore> core;
};

TierStoreActor::behavior_type host_tier(TierStoreActor::stateful_pointer<HostTierState> self, std::int64_t capacity,
                                        SharedEngineMetrics metrics) {
  self->state.core = std::make_unique<HostTierCore>(capacity);
  return {
      [self, metrics](const PutPages& message) {
        self->state.core->put(*message.pages);
        metrics->set_host_tier_pages(self->state.core->pages());
      },
      [self](const FindPages& message) { return FoundPages{.pages = self->state.core->get(*message.pages)}; },
      [self, metrics](const ErasePages& message) {
        self->state.core->erase(*message.pages);
        metrics->set_host_tier_pages(self->state.core->pages());
      },
  };
}

}  // namespace

AlgorithmActor spawn_algorithm(caf::actor_system& system, SparseKVCacheManagerActor manager,
                               SharedEngineMetrics metrics) {
  return system.spawn(algorithm, std::move(manager), std::move(metrics));
}

SparseKVCacheManagerActor spawn_cache_manager(caf::actor_system& system, const KvPlannerConfig& pools,
                                              BackendAdaptorActor adaptor, TierStoreActor host_tier,
                                              SharedEngineMetrics metrics) {
  metrics->keep_pools(KvCachePlanner(pools).counters());  // shown before the actor first runs
  return system.spawn(cache_manager, pools, std::move(adaptor), std::move(host_tier), std::move(metrics));
}

TierStoreActor spawn_host_tier(caf::actor_system& system, std::int64_t capacity_pages, SharedEngineMetrics metrics) {
  return system.spawn(host_tier, capacity_pages, std::move(metrics));
}

}  // namespace hotset::actors
