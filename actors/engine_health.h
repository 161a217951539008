// Whether requests can be answered: from atomics, so that /health never waits for an actor. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "actors/serving_system.h"
#include "core/clock.h"

namespace hotset::actors {

class EngineHealth : public std::enable_shared_from_this<EngineHealth> {
 public:
  // With work open and nothing done for `stall_ns` the engine counts as stalled, until something is done again.
  EngineHealth(std::shared_ptr<const Clock> clock, std::int64_t stall_ns);

  void set_ready();
  void set_draining();
  // For good; the first reason stays.
  void fail(const std::string& reason);

  // For good, unless it fails; the first reason stays. Requests are still taken.
  void degrade(const std::string& reason);

  // Something that has to end begins: a step, a request on its way to the gateway (before it is counted in
  // open_requests). It ends when the last copy of the result goes. So a part that hangs is noticed also when its
  // clients give up and others come.
  [[nodiscard]] std::shared_ptr<void> begin_work(std::size_t open_requests);

  // Ready: neither loading, draining nor failed. A stalled engine still takes requests; it may recover.
  [[nodiscard]] bool accepts() const { return state_.load() == HealthState::kReady; }
  [[nodiscard]] bool failed() const { return state_.load() == HealthState::kUnhealthy; }
  [[nodiscard]] HealthReport report(std::size_t open_requests) const;

 private:
  std::shared_ptr<const Clock> clock_;
  std::int64_t stall_ns_;
  std::atomic<HealthState> state_{HealthState::kLoading};
  std::atomic<std::int64_t> pending_{0};
  std::atomic<std::int64_t> progress_ns_{0};
  mutable std::mutex reason_mutex_;
  std::string reason_;
  std::string degraded_reason_;  // empty: it is not
};

}  // namespace hotset::actors
