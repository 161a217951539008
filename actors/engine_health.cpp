#include "actors/engine_health.h"

#include <utility>

namespace hotset::actors {

EngineHealth::EngineHealth(std::shared_ptr<const Clock> clock, std::int64_t stall_ns)
    : clock_(std::move(clock)), stall_ns_(stall_ns) {}

void EngineHealth::set_ready() {
  HealthState loading = HealthState::kLoading;
  state_.compare_exchange_strong(loading, HealthState::kReady);
}

void EngineHealth::set_draining() {
  HealthState ready = HealthState::kReady;
  state_.compare_exchange_strong(ready, HealthState::kDraining);
}

void EngineHealth::fail(const std::string& reason) {
  const std::lock_guard lock(reason_mutex_);
  if (reason_.empty()) reason_ = reason;
  state_.store(HealthState::kUnhealthy);
}

void EngineHealth::degrade(const std::string& reason) {
  const std::lock_guard lock(reason_mutex_);
  if (degraded_reason_.empty()) degraded_reason_ = reason;
}

std::shared_ptr<void> EngineHealth::begin_work(std::size_t open_requests) {
  if (pending_.fetch_add(1) == 0 && open_requests == 0) progress_ns_.store(clock_->steady_ns());
  return {nullptr, [health = shared_from_this()](void*) {
            health->progress_ns_.store(health->clock_->steady_ns());
            health->pending_.fetch_sub(1);
          }};
}

HealthReport EngineHealth::report(std::size_t open_requests) const {
  HealthReport out{.state = state_.load(), .reason = {}};
  if (out.state == HealthState::kUnhealthy) {
    const std::lock_guard lock(reason_mutex_);
    out.reason = reason_;
  } else if ((open_requests > 0 || pending_.load() > 0) && clock_->steady_ns() - progress_ns_.load() > stall_ns_) {
    out = {.state = HealthState::kUnhealthy,
           .reason = "there is work but no step was done for longer than --stall-timeout-ms"};
  }
  if (out.state == HealthState::kReady) {
    const std::lock_guard lock(reason_mutex_);
    if (!degraded_reason_.empty()) out = {.state = HealthState::kDegraded, .reason = degraded_reason_};
  }
  return out;
}

}  // namespace hotset::actors
