#include "actors/scheduler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::actors {

KvDemand demand_of(const SequenceRequest& request) {
  KvDemand demand{.id = request.id,
                  .prompt_tokens = static_cast<std::int64_t>(request.prompt.size()),
                  .max_new_tokens = request.max_new_tokens,
                  .hot_shape = {}};
  const SequencePolicy* const policy = request.policy.get();
  if (policy != nullptr && policy->selection.algorithm != nullptr) {
    demand.sparse = true;
    demand.keeps_metadata = policy->keeps_metadata;
    demand.threshold = policy->selection.threshold;
    demand.hot_shape = policy->hot_shape;
  }
  return demand;
}

Scheduler::Scheduler(const SchedulerConfig& config) : config_(config) {
  HS_CHECK(config.max_batch > 0 && config.prefill_chunk > 0 && config.max_queue > 0,
           "sizes of the scheduler are positive");
}

Result<void> Scheduler::submit(std::vector<SequenceRequest> requests, std::int64_t now_ns) {
  if (broken_) return Error{ErrorCode::kUnavailable, "the engine has failed and must be restarted", {}};
  const auto count = static_cast<std::int64_t>(requests.size());
  if (count > config_.max_queue) {
    return invalid_argument(
        concat("the request asks for ", count, " answers at once, the server queues at most ", config_.max_queue), "n");
  }
  if (queued() + count > config_.max_queue) {
    return Error{ErrorCode::kOverloaded, "the queue is full, try again later", {}};
  }
  for (SequenceRequest& request : requests) {
    HS_CHECK(!request.prompt.empty() && request.max_new_tokens >= 0, "the coordinator checks what it submits");
    const SequenceId id = request.id;
    const auto [place, fresh] = sequences_.try_emplace(id);
    HS_CHECK(fresh, "sequence ids are never used again");
    place->second.request = std::move(request);
    place->second.submitted_ns = now_ns;
    waiting_.push_back(id);
  }
  return {};
}

void Scheduler::cancel(SequenceId id) {
  if (!sequences_.contains(id)) return;
  if (const auto place = std::find(waiting_.begin(), waiting_.end(), id); place != waiting_.end()) {
    if (place == waiting_.begin()) postponed_ = false;  // the next one may need less
    if (asked_ == id) {
      asked_.reset();
      released_.push_back(id);
    }
    waiting_.erase(place);
    sequences_.erase(id);
    return;
  }
  end(id);
}

std::optional<KvDemand> Scheduler::next_admission() {
  if (asked_ || postponed_ || broken_ || running() >= config_.max_batch) return std::nullopt;
  if (parked_.empty() && waiting_.empty()) return std::nullopt;
  const bool resume = !parked_.empty();
  asked_ = resume ? parked_.front() : waiting_.front();
  KvDemand demand = demand_of(sequences_.at(*asked_).request);
  demand.resume = resume;
  moved_ = false;
  return demand;
}

std::optional<std::int64_t> Scheduler::admitted(SequenceId id, std::int64_t now_ns) {
  if (asked_ != id) return std::nullopt;
  asked_.reset();
  Sequence& sequence = sequences_.at(id);
  if (std::erase(parked_, id) > 0) {
    ++sequence.turn;
    insert_in_order(running_, id);
    return std::nullopt;
  }
  waiting_.pop_front();
  sequence.order = admitted_++;
  sequence.state = std::make_shared<model::SequenceState>();
  sequence.state->kv.id = id;
  sequence.state->kv.keeps_metadata = demand_of(sequence.request).keeps_metadata;
  sequence.state->sampler = model::Sampler(sequence.request.sampling, sequence.request.prompt);
  running_.push_back(id);
  return now_ns - sequence.submitted_ns;
}

void Scheduler::postponed(SequenceId id) {
  if (asked_ != id) return;
  asked_.reset();
  postponed_ = !moved_ && released_.empty();
}

std::optional<SequenceEvent> Scheduler::refused(SequenceId id, Error error) {
  if (asked_ != id) return std::nullopt;
  asked_.reset();
  if (std::erase(parked_, id) == 0) waiting_.pop_front();
  sequences_.erase(id);
  // A question that timed out may still be answered with pages.
  released_.push_back(id);
  return SequenceEvent{.id = id,
                       .prompt_logprobs = {},
                       .tokens = {},
                       .end = SequenceEnd::kFailed,
                       .error = std::move(error),
                       .usage = {}};
}

std::optional<StepDraft> Scheduler::plan_step() {
  if (broken_ || under_way_.size() >= kStepsAhead) return std::nullopt;
  StepDraft draft;
  add_decode_rows(draft);
  add_prompt_chunks(draft);
  if (draft.rows.empty()) return std::nullopt;
  draft.step = ++last_step_;
  PlannedStep planned{.step = draft.step, .rows = {}};
  for (const DraftRows& rows : draft.rows)
    planned.rows.push_back({.id = rows.id, .rows = rows.rows, .sample = rows.sample});
  under_way_.push_back(std::move(planned));
  return draft;
}

DraftRows Scheduler::rows_of(const Sequence& sequence) {
  DraftRows rows;
  rows.id = sequence.request.id;
  rows.state = sequence.state;
  rows.first_position = sequence.planned_rows;
  rows.policy = sequence.request.policy;
  rows.turn = sequence.turn;
  return rows;
}

void Scheduler::add_decode_rows(StepDraft& draft) {
  for (const SequenceId id : running_) {
    Sequence& sequence = sequences_.at(id);
    const bool decoding = sequence.planned_samples > 0;
    if (!decoding || sequence.planned_samples >= sequence.request.max_new_tokens) continue;
    DraftRows rows = rows_of(sequence);
    rows.rows = 1;
    rows.sample = true;
    draft.rows.push_back(std::move(rows));
    ++sequence.planned_rows;
    ++sequence.planned_samples;
  }
}

void Scheduler::add_prompt_chunks(StepDraft& draft) {
  std::int64_t room = config_.prefill_chunk;
  for (const SequenceId id : running_) {
    Sequence& sequence = sequences_.at(id);
    const std::vector<std::int32_t>& prompt = sequence.request.prompt;
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t first = sequence.planned_rows;
    if (first >= length) continue;
    const std::int64_t count = std::min(config_.prefill_chunk, length - first);
    if (count > room) return;  // no later prompt overtakes
    room -= count;
    const bool last = first + count == length;
    DraftRows rows = rows_of(sequence);
    rows.rows = static_cast<std::int32_t>(count);
    rows.tokens.assign(prompt.begin() + first, prompt.begin() + first + count);
    rows.prefill = true;
    rows.sample = last && sequence.request.max_new_tokens > 0;
    rows.prompt_logprobs = sequence.request.prompt_logprobs;
    rows.next_token = last ? -1 : prompt[static_cast<std::size_t>(first + count)];
    sequence.planned_rows += count;
    if (rows.sample) ++sequence.planned_samples;
    draft.rows.push_back(std::move(rows));
  }
}

std::vector<SequenceEvent> Scheduler::step_done(const model::StepResult& result) {
  if (broken_) return {};
  HS_CHECK(!under_way_.empty() && under_way_.front().step == result.step, "steps are done in their order");
  PlannedStep planned = std::move(under_way_.front());
  under_way_.pop_front();
  postponed_ = false;
  moved_ = true;
  for (const SequenceId id : result.deferred) {
    std::erase_if(planned.rows, [id](const PlannedRows& rows) { return rows.id == id; });
    park(id);
  }
  std::unordered_map<SequenceId, const model::SequenceResult*> results;
  for (const model::SequenceResult& one : result.sequences) results.emplace(one.id, &one);
  std::vector<SequenceEvent> events;
  for (const PlannedRows& rows : planned.rows) {
    const auto known = sequences_.find(rows.id);
    if (known == sequences_.end()) continue;  // cancelled, or an overshoot row
    const auto found = results.find(rows.id);
    SequenceEvent event = account(known->second, rows, found == results.end() ? nullptr : found->second);
    if (event.end != SequenceEnd::kNone) end(rows.id);
    if (event.end != SequenceEnd::kNone || !event.tokens.empty() || !event.prompt_logprobs.empty()) {
      events.push_back(std::move(event));
    }
  }
  return events;
}

SequenceEvent Scheduler::account(Sequence& sequence, const PlannedRows& planned, const model::SequenceResult* result) {
  const SequenceRequest& request = sequence.request;
  SequenceEvent event{.id = request.id,
                      .prompt_logprobs = {},
                      .tokens = {},
                      .end = SequenceEnd::kNone,
                      .error = {},
                      .usage = result != nullptr ? result->usage : sparse::KvUsage{}};
  const bool missing = result == nullptr || (planned.sample && !result->sampled);
  if (missing || !result->error.empty()) {
    const bool explained = result != nullptr && !result->error.empty();
    event.end = SequenceEnd::kFailed;
    event.error = {ErrorCode::kInternal, explained ? result->error : "the engine gave no result for the sequence", {}};
    return event;
  }
  sequence.done_rows += planned.rows;
  event.prompt_logprobs = result->prompt_logprobs;
  if (planned.sample) {
    ++sequence.tokens;
    event.tokens.push_back(result->token);
    const std::vector<std::int32_t>& stops = request.stop_token_ids;
    if (std::find(stops.begin(), stops.end(), result->token.token) != stops.end()) event.end = SequenceEnd::kStopToken;
  }
  const bool whole_prompt = sequence.done_rows >= static_cast<std::int64_t>(request.prompt.size());
  if (event.end == SequenceEnd::kNone && whole_prompt && sequence.tokens >= request.max_new_tokens) {
    event.end = SequenceEnd::kMaxTokens;
  }
  return event;
}

void Scheduler::end(SequenceId id) {
  if (asked_ == id) asked_.reset();
  sequences_.erase(id);
  std::erase(running_, id);
  std::erase(parked_, id);
  released_.push_back(id);
}

// Steps are done in their order, so all rows that were run before it was parked are accounted for by now.
void Scheduler::park(SequenceId id) {
  if (std::erase(running_, id) == 0) return;  // ended meanwhile
  Sequence& sequence = sequences_.at(id);
  for (PlannedStep& later : under_way_) {
    std::erase_if(later.rows, [id](const PlannedRows& rows) { return rows.id == id; });
  }
  sequence.planned_rows = sequence.done_rows;
  sequence.planned_samples = sequence.tokens;
  insert_in_order(parked_, id);
}

void Scheduler::insert_in_order(std::vector<SequenceId>& list, SequenceId id) {
  const std::uint64_t order = sequences_.at(id).order;
  const auto younger = [&](SequenceId other) { return sequences_.at(other).order > order; };
  list.insert(std::ranges::find_if(list, younger), id);
}

std::vector<SequenceEvent> Scheduler::fail_all(const Error& error) {
  broken_ = true;
  std::vector<SequenceId> all = running_;
  all.insert(all.end(), parked_.begin(), parked_.end());
  released_.insert(released_.end(), all.begin(), all.end());
  all.insert(all.end(), waiting_.begin(), waiting_.end());
  if (asked_ && !waiting_.empty() && waiting_.front() == *asked_) released_.push_back(*asked_);
  std::vector<SequenceEvent> events;
  events.reserve(all.size());
  for (const SequenceId id : all) {
    events.push_back(
        {.id = id, .prompt_logprobs = {}, .tokens = {}, .end = SequenceEnd::kFailed, .error = error, .usage = {}});
  }
  sequences_.clear();
  waiting_.clear();
  running_.clear();
  parked_.clear();
  asked_.reset();
  under_way_.clear();
  return events;
}

std::vector<SequenceId> Scheduler::take_released() {
  if (!released_.empty()) {
    postponed_ = false;
    moved_ = true;
  }
  return std::exchange(released_, {});
}

}  // namespace hotset::actors
