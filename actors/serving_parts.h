// What the control plane is made of, as plain values: read from the configuration and the checkpoint
// (load_serving_parts), or put together by a test with a scripted executor.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "actors/engine_limits.h"
#include "actors/gateway_core.h"
#include "actors/kv_cache_planner.h"
#include "actors/prompt_encoder.h"
#include "actors/scheduler.h"
#include "actors/selection_menu.h"
#include "actors/serving_system.h"
#include "core/clock.h"
#include "core/config.h"
#include "core/metrics.h"
#include "core/result.h"
#include "model/step_executor.h"

namespace hotset::actors {

struct ServingParts {
  ServingInfo info;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<model::StepExecutor> executor;
  std::shared_ptr<const PromptEncoder> encoder;
  GatewayConfig gateway;
  SchedulerConfig scheduler;
  KvPlannerConfig pools;
  SelectionMenu menu;
  std::chrono::milliseconds stall_timeout{0};  // work open and no step done for that long: unhealthy
};

// Tokens of the longest sequence: --max-context, or as many as the model was made for. kInvalidArgument names it where
// the model or the device does not take as many.
Result<std::int64_t> context_of(const ServerConfig& config, std::int64_t max_positions, const EngineLimits& limits);

// Opens and loads the checkpoint and decides the sizes. Errors name the option.
Result<ServingParts> load_serving_parts(const ServerConfig& config);

// Spawns the actors. `metrics` outlives the system.
std::unique_ptr<ServingSystem> start_serving(ServingParts parts, MetricsRegistry& metrics);

}  // namespace hotset::actors
