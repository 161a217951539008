#include "actors/engine_metrics.h"

namespace hotset::actors {
namespace {

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }
double number(std::int64_t value) { return static_cast<double>(value); }

std::vector<double> step_bounds() { return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}; }
std::vector<double> wait_bounds() { return {0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}; }

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry& r)
    : steps_(r.counter("hotset_steps_total", "Steps that the engine ran")),
      prefill_rows_(
          r.counter("hotset_step_rows_total", "Token rows that went through the model", {{"kind", "prefill"}})),
      decode_rows_(r.counter("hotset_step_rows_total", "Token rows that went through the model", {{"kind", "decode"}})),
      step_seconds_(r.histogram("hotset_step_seconds", "Time of a step on the device", step_bounds())),
      idle_seconds_(r.counter("hotset_device_idle_seconds_total",
                              "Time that the device waited for the control plane while a sequence was running")),
      hits_(r.counter("hotset_hot_blocks_total", "Blocks that hot sequences selected", {{"found", "buffer"}})),
      ring_hits_(r.counter("hotset_hot_blocks_total", "Blocks that hot sequences selected", {{"found", "ring"}})),
      misses_(r.counter("hotset_hot_blocks_total", "Blocks that hot sequences selected", {{"found", "miss"}})),
      bytes_loaded_(r.counter("hotset_bytes_loaded_total", "KV bytes moved from the host to the device")),
      bytes_offloaded_(r.counter("hotset_bytes_offloaded_total", "KV bytes moved from the device to the host")),
      hot_sequence_steps_(
          r.counter("hotset_hot_sequence_steps_total", "Sequences that decoded in hot mode, over steps")),
      hot_steps_(r.counter("hotset_hot_steps_total", "Steps with a hot sequence")),
      steps_with_two_hot_(r.counter("hotset_steps_with_two_hot_total", "Steps with two hot sequences or more")),
      verify_checked_(r.counter("hotset_verify_checked_total",
                                "Generated tokens whose rows and attention were checked, over layers")),
      verify_failed_(r.counter("hotset_verify_failed_total", "Checks that found a difference from the host pool")),
      hit_rate_(r.gauge("hotset_hot_hit_rate", "Part of the selected blocks that was on the device, since the start")),
      queued_(r.gauge("hotset_sequences", "Sequences that have not ended", {{"state", "queued"}})),
      running_(r.gauge("hotset_sequences", "Sequences that have not ended", {{"state", "running"}})),
      waiting_parked_(r.gauge("hotset_sequences", "Sequences that have not ended", {{"state", "parked"}})),
      queue_wait_seconds_(r.histogram("hotset_queue_wait_seconds", "From arrival to admission", wait_bounds())),
      device_pages_(r.gauge("hotset_pool_pages", "Pages of a pool", {{"tier", "device"}})),
      device_pages_free_(r.gauge("hotset_pool_pages_free", "Pages of a pool that nobody holds", {{"tier", "device"}})),
      metadata_pages_(r.gauge("hotset_pool_pages", "Pages of a pool", {{"tier", "device_metadata"}})),
      metadata_pages_free_(
          r.gauge("hotset_pool_pages_free", "Pages of a pool that nobody holds", {{"tier", "device_metadata"}})),
      host_pages_(r.gauge("hotset_pool_pages", "Pages of a pool", {{"tier", "host"}})),
      host_pages_free_(r.gauge("hotset_pool_pages_free", "Pages of a pool that nobody holds", {{"tier", "host"}})),
      row_bytes_(r.gauge("hotset_kv_bytes", "Bytes of the pages that sequences hold", {{"kind", "device_rows"}})),
      metadata_bytes_(
          r.gauge("hotset_kv_bytes", "Bytes of the pages that sequences hold", {{"kind", "device_metadata"}})),
      host_bytes_(r.gauge("hotset_kv_bytes", "Bytes of the pages that sequences hold", {{"kind", "host"}})),
      host_tier_pages_(r.gauge("hotset_tier_pages", "Complete pages that a tier knows", {{"tier", "host"}})),
      resident_(r.gauge("hotset_sequences_by_mode", "Admitted sequences", {{"mode", "resident"}})),
      hot_(r.gauge("hotset_sequences_by_mode", "Admitted sequences", {{"mode", "hot"}})),
      parked_(r.gauge("hotset_sequences_by_mode", "Admitted sequences", {{"mode", "parked"}})),
      entered_hot_(r.counter("hotset_mode_transitions_total", "Changes of a sequence's mode", {{"to", "hot"}})),
      entered_resident_(
          r.counter("hotset_mode_transitions_total", "Changes of a sequence's mode", {{"to", "resident"}})),
      entered_parked_(r.counter("hotset_mode_transitions_total", "Changes of a sequence's mode", {{"to", "parked"}})),
      demoted_(r.counter("hotset_demotions_total", "Resident sequences that became hot because pages were short")),
      promoted_(r.counter("hotset_promotions_total", "Hot sequences that became resident again")),
      resumed_(r.counter("hotset_resumes_total", "Parked sequences that went on")),
      streamed_prefills_(r.counter("hotset_streamed_prefills_total", "Prompts prefilled from the host pool")),
      pages_written_through_(r.counter("hotset_pages_written_through_total", "Complete pages that went to the host")) {}

void EngineMetrics::count_step(const model::StepStats& stats) {
  steps_.add();
  prefill_rows_.add(number(stats.prefill_rows));
  decode_rows_.add(number(stats.decode_rows));
  step_seconds_.observe(seconds(stats.run_ns));
  idle_seconds_.add(seconds(stats.idle_ns));
  hits_.add(number(stats.hits));
  ring_hits_.add(number(stats.ring_hits));
  misses_.add(number(stats.misses));
  bytes_loaded_.add(number(stats.bytes_loaded));
  bytes_offloaded_.add(number(stats.bytes_offloaded));
  hot_sequence_steps_.add(number(stats.hot_sequences));
  if (stats.hot_sequences >= 1) hot_steps_.add();
  if (stats.hot_sequences >= 2) steps_with_two_hot_.add();
}

void EngineMetrics::count_verified(const model::VerifyOutcome& verified) {
  verify_checked_.add(number(verified.checked));
  verify_failed_.add(number(verified.failed));
}

void EngineMetrics::set_queue(std::int64_t queued, std::int64_t running, std::int64_t parked) {
  queued_.set(number(queued));
  running_.set(number(running));
  waiting_parked_.set(number(parked));
}

void EngineMetrics::observe_queue_wait(std::int64_t ns) { queue_wait_seconds_.observe(seconds(ns)); }

void EngineMetrics::keep_pools(const KvCounters& now) {
  device_pages_.set(now.device_pages_total);
  device_pages_free_.set(now.device_pages_free);
  metadata_pages_.set(now.metadata_pages_total);
  metadata_pages_free_.set(now.metadata_pages_free);
  row_bytes_.set(number(now.device_row_bytes));
  metadata_bytes_.set(number(now.device_metadata_bytes));
  host_bytes_.set(number(now.host_bytes));
  host_pages_.set(now.host_pages_total);
  host_pages_free_.set(now.host_pages_free);
  resident_.set(now.resident);
  hot_.set(now.hot);
  parked_.set(now.parked);
  entered_hot_.add(number(now.entered_hot - last_.entered_hot));
  entered_resident_.add(number(now.entered_resident - last_.entered_resident));
  entered_parked_.add(number(now.entered_parked - last_.entered_parked));
  demoted_.add(number(now.demoted - last_.demoted));
  promoted_.add(number(now.promoted - last_.promoted));
  resumed_.add(number(now.resumed - last_.resumed));
  streamed_prefills_.add(number(now.streamed_prefills - last_.streamed_prefills));
  pages_written_through_.add(number(now.pages_written_through - last_.pages_written_through));
  last_ = now;
}

}  // namespace hotset::actors
