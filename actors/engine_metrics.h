// What /metrics says about the engine. Safe from any thread; keep_pools() from the cache manager only.
#pragma once

#include <cstdint>

#include "actors/kv_cache_planner.h"
#include "core/metrics.h"
#include "model/step_plan.h"

namespace hotset::actors {

class EngineMetrics {
 public:
  explicit EngineMetrics(MetricsRegistry& registry);

  void count_step(const model::StepStats& stats);
  void count_verified(const model::VerifyOutcome& verified);
  void set_queue(std::int64_t queued, std::int64_t running, std::int64_t parked);
  void observe_queue_wait(std::int64_t ns);
  void keep_pools(const KvCounters& counters);
  void set_hit_rate(double rate) { hit_rate_.set(rate); }
  void set_host_tier_pages(std::int64_t pages) { host_tier_pages_.set(static_cast<double>(pages)); }

 private:
  Counter& steps_;
  Counter& prefill_rows_;
  Counter& decode_rows_;
  Histogram& step_seconds_;
  Counter& idle_seconds_;
  Counter& hits_;
  Counter& ring_hits_;
  Counter& misses_;
  Counter& bytes_loaded_;
  Counter& bytes_offloaded_;
  Counter& hot_sequence_steps_;
  Counter& hot_steps_;
  Counter& steps_with_two_hot_;
  Counter& verify_checked_;
  Counter& verify_failed_;
  Gauge& hit_rate_;
  Gauge& queued_;
  Gauge& running_;
  Gauge& waiting_parked_;
  Histogram& queue_wait_seconds_;
  Gauge& device_pages_;
  Gauge& device_pages_free_;
  Gauge& metadata_pages_;
  Gauge& metadata_pages_free_;
  Gauge& host_pages_;
  Gauge& host_pages_free_;
  Gauge& row_bytes_;
  Gauge& metadata_bytes_;
  Gauge& host_bytes_;
  Gauge& host_tier_pages_;
  Gauge& resident_;
  Gauge& hot_;
  Gauge& parked_;
  Counter& entered_hot_;
  Counter& entered_resident_;
  Counter& entered_parked_;
  Counter& demoted_;
  Counter& promoted_;
  Counter& resumed_;
  Counter& streamed_prefills_;
  Counter& pages_written_through_;
  KvCounters last_;
};

}  // namespace hotset::actors
