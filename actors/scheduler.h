// The plain class behind SparseCoordinator: queue, admission order, continuous batching with chunked prefill, the life
// cycle of every sequence, and steps planned one ahead of the device. It knows no pages (KvCachePlanner) and no text
// (Gateway).
//
// Rules:
// - First come, first served; a request that can't start yet blocks those behind it (so nobody starves).
// - A step holds one decode row of every running sequence (up to max_batch sequences) and prompt chunks of up to
//   prefill_chunk rows together. Chunks of a prompt end at multiples of prefill_chunk or at its end, whatever the
//   neighbours.
// - At most two steps are on their way to the device (one runs, one waits). A decode step's input is the token that the
//   step before samples; an end-of-sequence is therefore known one step late, and the overshoot row is dropped.
// - A sequence that reaches max_tokens gets no further row (that end is known in time).
// - A step's result names the sequences that the cache manager parked in it (StepResult::deferred). Such a sequence
//   goes back to its last row that was run, and waits until it is resumed; parked ones are resumed in the order of
//   their admission, before anything new is admitted. Its rows in a step that was drafted before the scheduler heard of
//   it are dropped by the cache manager, which knows them by their turn: the number of times that it was resumed.
// - Who was told "later" is asked for again after every step: room also comes when a sequence may be demoted.
// Thread: one owner. Time comes in as arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "actors/kv_cache_planner.h"
#include "actors/step_draft.h"
#include "core/result.h"
#include "model/step_executor.h"
#include "model/step_plan.h"

namespace hotset::actors {

struct SchedulerConfig {
  std::int64_t max_batch = 16;
  std::int64_t prefill_chunk = 256;
  std::int64_t max_queue = 512;  // sequences that wait
};

// One choice of one prompt.
struct SequenceRequest {
  SequenceId id;
  std::vector<std::int32_t> prompt;  // not empty, ids inside the vocabulary
  std::int64_t max_new_tokens = 0;   // > 0, or 0 when only the prompt is scored
  model::SamplingParams sampling;
  std::vector<std::int32_t> stop_token_ids;  // end-of-sequence ids included unless ignore_eos
  std::int32_t prompt_logprobs = -1;
  SharedPolicy policy;  // null: dense
};

// What the cache manager is asked.
[[nodiscard]] KvDemand demand_of(const SequenceRequest& request);

enum class SequenceEnd { kNone, kStopToken, kMaxTokens, kFailed };

struct SequenceEvent {
  SequenceId id;
  std::vector<model::SampledToken> prompt_logprobs;
  std::vector<model::SampledToken> tokens;
  SequenceEnd end = SequenceEnd::kNone;
  Error error;            // kFailed
  sparse::KvUsage usage;  // since it began
};

class Scheduler {
 public:
  static constexpr std::size_t kStepsAhead = 2;  // steps on their way to the device
  static_assert(kStepsAhead <= model::StepExecutor::kMostBegun, "the device takes all of them");

  explicit Scheduler(const SchedulerConfig& config);

  // All of them or none, in their order, behind those that wait. kOverloaded when the queue has no room now,
  // kInvalidArgument when it could never hold so many.
  Result<void> submit(std::vector<SequenceRequest> requests, std::int64_t now_ns);

  // Drops the sequence in any phase; it gives no further event. Unknown ids are ignored.
  void cancel(SequenceId id);

  // The sequence that the cache manager has to be asked for now, a parked one first; it counts as asked for until
  // admitted(), postponed(), refused() or cancel(). nullopt: nobody waits, max_batch are running, an answer is
  // outstanding, or the answer was "later" and neither a step ended nor pages came back since.
  std::optional<KvDemand> next_admission();
  // nanoseconds that a new one waited; nullopt: it was resumed, or cancelled meanwhile, and its pages are in
  // take_released() already.
  std::optional<std::int64_t> admitted(SequenceId id, std::int64_t now_ns);
  void postponed(SequenceId id);
  std::optional<SequenceEvent> refused(SequenceId id, Error error);

  // nullopt: two steps are under way, or no sequence has a row to run.
  std::optional<StepDraft> plan_step();

  // Results come in the order of the drafts. One event for each sequence that brought something.
  std::vector<SequenceEvent> step_done(const model::StepResult& result);

  // The device is gone: every sequence ends, no further step is planned, submit() answers kUnavailable.
  std::vector<SequenceEvent> fail_all(const Error& error);

  // Sequences that were asked for or admitted and ended since the last call: the cache manager gets their pages back.
  std::vector<SequenceId> take_released();

  [[nodiscard]] std::int64_t queued() const { return static_cast<std::int64_t>(waiting_.size()); }
  [[nodiscard]] std::int64_t running() const { return static_cast<std::int64_t>(running_.size()); }
  [[nodiscard]] std::int64_t parked() const { return static_cast<std::int64_t>(parked_.size()); }
  [[nodiscard]] std::size_t steps_under_way() const { return under_way_.size(); }

 private:
  struct Sequence {
    SequenceRequest request;
    std::int64_t submitted_ns = 0;
    std::uint64_t order = 0;  // of admission
    std::uint32_t turn = 0;   // times resumed
    std::shared_ptr<model::SequenceState> state;
    std::int64_t planned_rows = 0;
    std::int64_t planned_samples = 0;
    std::int64_t done_rows = 0;
    std::int64_t tokens = 0;  // sampled and known
  };
  struct PlannedRows {
    SequenceId id;
    std::int32_t rows = 0;
    bool sample = false;
  };
  struct PlannedStep {
    std::uint64_t step = 0;
    std::vector<PlannedRows> rows;
  };

  [[nodiscard]] static DraftRows rows_of(const Sequence& sequence);
  void add_decode_rows(StepDraft& draft);
  void add_prompt_chunks(StepDraft& draft);
  SequenceEvent account(Sequence& sequence, const PlannedRows& planned, const model::SequenceResult* result);
  void end(SequenceId id);
  void park(SequenceId id);
  void insert_in_order(std::vector<SequenceId>& list, SequenceId id);

  SchedulerConfig config_;
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::deque<SequenceId> waiting_;   // in the order of arrival; the front may be asked for
  std::vector<SequenceId> running_;  // in the order of admission
  std::vector<SequenceId> parked_;   // in the order of admission; the front may be asked for
  std::uint64_t admitted_ = 0;
  std::optional<SequenceId> asked_;
  bool postponed_ = false;
  bool moved_ = false;  // since it was asked for, a step ended or pages went back: the answer may be outdated
  bool broken_ = false;
  std::uint64_t last_step_ = 0;
  std::deque<PlannedStep> under_way_;
  std::vector<SequenceId> released_;
};

}  // namespace hotset::actors
