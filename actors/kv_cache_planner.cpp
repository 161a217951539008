#include "actors/kv_cache_planner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace hotset::actors {
namespace {

using sparse::KvMode;

constexpr std::int64_t kPromotionMargin = 8;  // this part of the pool stays free beside a promoted sequence

}  // namespace

KvCachePlanner::KvCachePlanner(const KvPlannerConfig& config)
    : config_(config),
      needs_(config),
      device_(config.device_pages, storage::extent_pages_of(config.layout.rows.page_bytes())),
      metadata_(config.metadata_pages, storage::extent_pages_of(config.layout.metadata.page_bytes())),
      host_(config.host_pages, storage::extent_pages_of(config.layout.rows.page_bytes())) {}

// Admission and resuming.

Result<Admission> KvCachePlanner::acquire(const KvDemand& demand) {
  Result<Admission> answer = demand.resume ? Result<Admission>(resume(demand.id)) : admit(demand);
  if (answer && answer.value() == Admission::kLater) pressed_ = step_;
  return answer;
}

Result<Admission> KvCachePlanner::admit(const KvDemand& demand) {
  HS_CHECK(!sequences_.contains(demand.id), "a sequence is granted once");
  if (Result<void> possible = needs_.can_ever_run(demand); !possible) return possible.error();
  const auto waits = [](const auto& entry) { return entry.second.waits; };
  if (std::ranges::any_of(sequences_, waits)) return Admission::kLater;
  const std::int64_t host_pages = pages_for_tokens(KvNeeds::tokens(demand));
  if (host_pages > host_.available()) return Admission::kLater;
  Sequence sequence;
  sequence.demand = demand;
  if (!place(sequence)) return Admission::kLater;
  sequence.order = admitted_++;
  sequence.host_reserved = static_cast<std::int32_t>(host_pages);
  HS_CHECK(host_.try_reserve(sequence.host_reserved), "available pages can be reserved");
  if (sequence.streamed) ++counted_.streamed_prefills;
  sequences_.emplace(demand.id, std::move(sequence));
  return Admission::kGranted;
}

Admission KvCachePlanner::resume(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second.waits) return Admission::kLater;
  Sequence& sequence = found->second;
  const auto older = [&](const auto& entry) { return entry.second.waits && entry.second.order < sequence.order; };
  if (std::ranges::any_of(sequences_, older) || !place(sequence)) return Admission::kLater;
  ++sequence.turn;
  ++counted_.resumed;
  return Admission::kGranted;
}

// In the order of preference.
std::vector<KvCachePlanner::Course> KvCachePlanner::courses(const Sequence& sequence) const {
  const KvDemand& demand = sequence.demand;
  std::vector<Course> courses;
  if (sequence.in_prompt()) {
    courses.push_back({.may_demote = true, .need = needs_.resident_prompt(demand)});
    if (needs_.may_stream(demand)) {
      courses.push_back(
          {.streamed = true, .enters_hot = true, .may_demote = true, .need = needs_.streamed_prompt(demand)});
    }
    return courses;
  }
  const bool selects = KvNeeds::selects_at(demand, sequence.rows + 1);
  if (!selects || config_.mode != KvModeChoice::kHot) {
    courses.push_back({.may_demote = !selects, .need = needs_.resident(demand, sequence.rows + 1)});
  }
  if (selects && config_.mode != KvModeChoice::kResident) {
    courses.push_back({.enters_hot = true, .may_demote = true, .need = needs_.hot(demand, sequence.rows + 1)});
  }
  return courses;
}

bool KvCachePlanner::place(Sequence& sequence) {
  for (const Course& course : courses(sequence)) {
    if (!fits_beside_others(course.need) && !(course.may_demote && demote_until_it_fits(course.need))) continue;
    keep_back(sequence, course.need);
    sequence.streamed = course.streamed;
    sequence.enters_hot = course.enters_hot;
    sequence.waits = false;
    return true;
  }
  return false;
}

DevicePages KvCachePlanner::available() const {
  return {.rows = device_.available(), .metadata = metadata_.available()};
}

// A page more for every sequence that grows: a new one does not start only to be parked at once.
DevicePages KvCachePlanner::watermark() const {
  DevicePages out;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.waits) continue;
    const bool hot = sequence.mode == KvMode::kHot || (sequence.mode == KvMode::kParked && sequence.enters_hot);
    if (!hot) out.rows += config_.layout.rows.layers;
    if (sequence.demand.keeps_metadata) out.metadata += config_.layout.metadata_layers;
  }
  return out;
}

bool KvCachePlanner::fits_beside_others(const DevicePages& need) const {
  if (need == DevicePages{}) return true;
  const DevicePages free = available();
  const DevicePages spare = watermark();
  return need.rows + spare.rows <= free.rows && need.metadata + spare.metadata <= free.metadata;
}

bool KvCachePlanner::demote_until_it_fits(const DevicePages& need) {
  const DevicePages spare = watermark();
  if (need.metadata + spare.metadata > metadata_.available()) return false;
  std::int64_t free = device_.available();
  for (const auto& [id, sequence] : sequences_) {
    // A hot sequence needs no watermark of rows either.
    if (const std::int64_t gain = demotion_gain(sequence); gain > 0) free += gain + config_.layout.rows.layers;
  }
  if (need.rows + spare.rows > free) return false;
  while (!fits_beside_others(need)) demote(*best_demotion());
  return true;
}

// Steps.

KvStepPlan KvCachePlanner::plan_step(std::span<const KvRows> rows) {
  ++step_;
  KvStepPlan plan;
  std::vector<Sequence*> sequences;
  for (const KvRows& one : rows) {
    sequences.push_back(runnable(one));
    if (sequences.back() != nullptr) sequences.back()->step_end = one.first_position + one.rows;
  }
  make_room(plan);
  promote_one();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Sequence* const sequence = sequences[i];
    if (sequence == nullptr || sequence->waits) {
      plan.ops.emplace_back(std::nullopt);
    } else {
      plan.ops.emplace_back(row_ops(*sequence, rows[i].prefill));
    }
  }
  for (Sequence* const sequence : sequences)
    if (sequence != nullptr) sequence->step_end = sequence->rows;
  plan.transitions = std::exchange(pending_, {});
  return plan;
}

KvCachePlanner::Sequence* KvCachePlanner::runnable(const KvRows& rows) {
  const auto found = sequences_.find(rows.id);
  if (found == sequences_.end()) return nullptr;
  Sequence& sequence = found->second;
  if (sequence.waits || sequence.turn != rows.turn || sequence.rows != rows.first_position) return nullptr;
  const std::int64_t end = rows.first_position + rows.rows;
  HS_CHECK(sequence.step_end == sequence.rows, "a sequence has one piece of rows in a step");
  HS_CHECK(rows.rows > 0 && end <= KvNeeds::tokens(sequence.demand), "a sequence stays inside its reservation");
  HS_CHECK(rows.prefill ? end <= sequence.demand.prompt_tokens : rows.rows == 1 && !sequence.in_prompt(),
           "prefill rows lie in the prompt, a decode row behind it");
  return &sequence;
}

// Pages that the sequence lacks for its rows in this step.
DevicePages KvCachePlanner::missing(const Sequence& sequence) const {
  if (sequence.step_end == sequence.rows || sequence.waits) return {};
  if (sequence.in_prompt() && sequence.streamed) return {};
  const bool hot = sequence.mode == KvMode::kHot || (!sequence.in_prompt() && sequence.enters_hot);
  const DevicePages need =
      hot ? needs_.hot(sequence.demand, sequence.step_end) : needs_.resident(sequence.demand, sequence.step_end);
  const DevicePages held = sequence.held();
  return {.rows = std::max<std::int64_t>(0, need.rows - held.rows),
          .metadata = std::max<std::int64_t>(0, need.metadata - held.metadata)};
}

void KvCachePlanner::make_room(KvStepPlan& plan) {
  if (config_.mode == KvModeChoice::kHot) {
    for (auto& [id, sequence] : sequences_) {
      const bool decodes = sequence.step_end > sequence.rows && !sequence.in_prompt();
      if (decodes && KvNeeds::selects_at(sequence.demand, sequence.rows + 1)) sequence.enters_hot = true;
    }
  }
  enter_due_hot_modes();  // those that give pages back
  while (true) {
    DevicePages lack;
    for (const auto& [id, sequence] : sequences_) {
      const DevicePages more = missing(sequence);
      lack.rows += more.rows;
      lack.metadata += more.metadata;
    }
    const DevicePages free = available();
    if (lack.rows <= free.rows && lack.metadata <= free.metadata) break;
    Sequence* const largest = lack.rows > free.rows ? best_demotion() : nullptr;
    if (largest != nullptr) {
      demote(*largest);
    } else {
      park(youngest(), plan);
    }
  }
  enter_due_hot_modes();  // those that need some, which are free now
}

// --kv-mode hot: resident sequences whose row in this step is the first one past the threshold.
void KvCachePlanner::enter_due_hot_modes() {
  for (auto& [id, sequence] : sequences_) {
    if (sequence.mode != KvMode::kResident || !sequence.enters_hot) continue;
    if (needs_.hot(sequence.demand, 0).rows > sequence.held().rows + device_.available()) continue;
    enter_hot(sequence);
  }
}

std::int64_t KvCachePlanner::demotion_gain(const Sequence& sequence) const {
  if (config_.mode == KvModeChoice::kResident || sequence.mode != KvMode::kResident || sequence.in_prompt()) return 0;
  if (!KvNeeds::selects_at(sequence.demand, sequence.rows + 1)) return 0;
  const std::int64_t resident =
      std::max(sequence.held().rows, needs_.resident(sequence.demand, sequence.step_end).rows);
  return resident - needs_.hot(sequence.demand, 0).rows;
}

KvCachePlanner::Sequence* KvCachePlanner::best_demotion() {
  Sequence* best = nullptr;
  std::int64_t best_gain = 0;
  for (auto& [id, sequence] : sequences_) {
    const std::int64_t gain = demotion_gain(sequence);
    if (gain <= best_gain) continue;
    best = &sequence;
    best_gain = gain;
  }
  return best;
}

KvCachePlanner::Sequence& KvCachePlanner::youngest() {
  Sequence* youngest = nullptr;
  std::int64_t candidates = 0;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.held() == DevicePages{} && missing(sequence) == DevicePages{}) continue;
    ++candidates;
    if (youngest == nullptr || sequence.order > youngest->order) youngest = &sequence;
  }
  HS_CHECK(candidates > 1, "alone in the pools, a sequence has room for every step");
  return *youngest;
}

void KvCachePlanner::demote(Sequence& sequence) {
  enter_hot(sequence);
  ++counted_.demoted;
  pressed_ = step_;
}

void KvCachePlanner::park(Sequence& sequence, KvStepPlan& plan) {
  if (sequence.mode != KvMode::kParked) enter_parked(sequence);
  drop_reservation(sequence);
  sequence.waits = true;
  sequence.streamed = false;
  sequence.enters_hot = false;
  plan.deferred.push_back(sequence.demand.id);
  pressed_ = step_;
}

void KvCachePlanner::promote_one() {
  if (config_.mode != KvModeChoice::kAuto || step_ - pressed_ <= kCalmSteps) return;
  Sequence* oldest = nullptr;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.waits) return;
    if (sequence.mode == KvMode::kHot && (oldest == nullptr || sequence.order < oldest->order)) oldest = &sequence;
  }
  if (oldest == nullptr) return;
  std::int64_t lack = 0;
  for (const auto& [id, sequence] : sequences_) lack += missing(sequence).rows;
  const std::int64_t whole = needs_.resident(oldest->demand, KvNeeds::tokens(oldest->demand)).rows;
  const std::int64_t margin = ceil_div(device_.total(), kPromotionMargin);
  if (whole + lack + watermark().rows + margin > device_.available()) return;
  enter_resident(*oldest);
  oldest->enters_hot = false;
  ++counted_.promoted;
}

KvMode KvCachePlanner::mode(SequenceId id) const {
  const auto found = sequences_.find(id);
  HS_CHECK(found != sequences_.end(), "only a granted sequence has a mode");
  return found->second.mode;
}

KvCounters KvCachePlanner::counters() const {
  KvCounters counters = counted_;
  counters.device_pages_total = device_.total();
  counters.device_pages_free = device_.free();
  counters.metadata_pages_total = metadata_.total();
  counters.metadata_pages_free = metadata_.free();
  counters.host_pages_total = host_.total();
  counters.host_pages_free = host_.free();
  const KvLayout& layout = config_.layout;
  counters.device_row_bytes = (device_.total() - device_.free()) * layout.rows.page_bytes();
  counters.device_metadata_bytes = (metadata_.total() - metadata_.free()) * layout.metadata.page_bytes();
  counters.host_bytes =
      (host_.total() - host_.free()) * (layout.rows.layers * layout.rows.page_bytes() + layout.metadata_page_bytes());
  for (const auto& [id, sequence] : sequences_) {
    counters.resident += sequence.mode == KvMode::kResident;
    counters.hot += sequence.mode == KvMode::kHot;
    counters.parked += sequence.mode == KvMode::kParked;
  }
  return counters;
}

}  // namespace hotset::actors
