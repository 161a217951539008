// The plain class behind SparseCoordinator: what gateways submit becomes sequences of the Scheduler, what steps bring
// becomes outputs for the gateway that owns the sequence.
// Thread: one owner. Time comes in as arguments (Clock::steady_ns).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/kv_demand.h"
#include "actors/scheduler.h"
#include "actors/selection_menu.h"
#include "actors/wire_messages.h"

namespace hotset::actors {

using GatewayNumber = std::uint64_t;  // chosen by the caller, one for each gateway

class CoordinatorCore {
 public:
  // `pools`: as the cache manager's.
  CoordinatorCore(const SchedulerConfig& scheduler, const KvPlannerConfig& pools, std::int64_t vocabulary,
                  SelectionMenu menu);

  // All or none. Refuses what could never run (kCapacityNever names the option), ids outside the vocabulary, a
  // selection that is not on the menu, and what the queue has no room for; sequences that are not limited get the
  // largest output that fits.
  SubmitAnswer submit(SubmitSequences submission, GatewayNumber gateway, std::int64_t now_ns);
  void cancel(const CancelSequences& message);

  std::optional<KvDemand> next_admission() { return scheduler_.next_admission(); }
  // The manager's answer; ns that a new sequence waited, when it may start.
  std::optional<std::int64_t> granted(SequenceId id, std::int64_t now_ns) { return scheduler_.admitted(id, now_ns); }
  void postponed(SequenceId id) { scheduler_.postponed(id); }
  void refused(SequenceId id, const Error& error);

  std::optional<StepDraft> plan_step() { return scheduler_.plan_step(); }
  void step_done(const model::StepResult& result);
  void fail_all(const Error& error);

  std::vector<SequenceId> take_released() { return scheduler_.take_released(); }
  // Everything that happened since the last call, one message for each gateway.
  std::map<GatewayNumber, StepOutputs> take_outputs();

  [[nodiscard]] std::int64_t queued() const { return scheduler_.queued(); }
  [[nodiscard]] std::int64_t running() const { return scheduler_.running(); }
  [[nodiscard]] std::int64_t parked() const { return scheduler_.parked(); }

 private:
  [[nodiscard]] Result<SequenceRequest> check(SequenceSubmission& submission);
  void report(SequenceEvent event);

  Scheduler scheduler_;
  KvNeeds needs_;
  SelectionMenu menu_;
  std::int64_t vocabulary_;
  std::unordered_map<SequenceId, GatewayNumber> owners_;
  std::map<GatewayNumber, StepOutputs> outputs_;
};

}  // namespace hotset::actors
