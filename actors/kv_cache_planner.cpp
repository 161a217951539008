#include "actors/kv_cache_planner.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/concat.h"

namespace hotset::actors {
namespace {

using sparse::KvMode;
using sparse::KvOp;
using storage::PageState;

// More tokens than any pool has (2^31 pages of 64): larger demands are cut to it, so that sums cannot overflow.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

// A stop is known one step late, hence the row behind the output.
std::int64_t tokens_of(const KvDemand& demand) {
  const std::int64_t output = std::min(demand.max_new_tokens, kMostTokens);
  return std::min(demand.prompt_tokens, kMostTokens) + (output > 0 ? output + 1 : 0);
}

Error never_fits(std::int64_t needed_tokens, std::string_view pool, std::int64_t pool_tokens, std::string_view option) {
  return Error{ErrorCode::kCapacityNever,
               concat("the request needs room for ", needed_tokens, " tokens in the ", pool, " KV cache, which holds ",
                      pool_tokens, ": shorten it or use a larger ", option),
               std::string(option)};
}

}  // namespace

KvCachePlanner::KvCachePlanner(const KvPlannerConfig& config)
    : config_(config), device_(config.device_pages), host_(config.host_pages) {
  HS_CHECK(config.geometry.layers > 0, "a cache has layers");
  HS_CHECK(!config.sparse || config.hot_shape.ring_tokens > 0, "a selecting server has a hot buffer's shape");
}

std::int64_t KvCachePlanner::hot_pages() const {
  return config_.geometry.layers * sparse::hot_pages_of(config_.hot_shape).total();
}

// In the order of preference.
std::vector<KvCachePlanner::Option> KvCachePlanner::options(const KvDemand& demand) const {
  const std::int64_t layers = config_.geometry.layers;
  const std::int64_t tokens = tokens_of(demand);
  const bool past_threshold = config_.sparse && tokens > config_.threshold;
  std::vector<Option> options;
  if (config_.mode != KvModeChoice::kHot || !past_threshold)
    options.push_back({Course::kResident, layers * pages_for_tokens(tokens)});
  if (config_.mode == KvModeChoice::kResident) return options;
  if (demand.max_new_tokens == 0) {
    options.push_back({Course::kPromptOnly, 0});
  } else if (past_threshold) {
    const bool resident_first = demand.prompt_tokens < config_.threshold;
    options.push_back(
        {Course::kHot, hot_pages() + (resident_first ? layers * pages_for_tokens(config_.threshold) : 0)});
  }
  return options;
}

Result<void> KvCachePlanner::can_ever_run(const KvDemand& demand) const {
  if (demand.prompt_tokens <= 0) return invalid_argument("the prompt has no tokens", "prompt");
  if (demand.max_new_tokens < 0) return invalid_argument("max_tokens is negative", "max_tokens");
  const std::int64_t tokens = tokens_of(demand);
  if (pages_for_tokens(tokens) > host_.total())
    return never_fits(tokens, "host", host_.total() * kPageTokens, "--host-kv");
  std::int64_t least = options(demand).front().device_pages;
  for (const Option& option : options(demand)) least = std::min(least, option.device_pages);
  const std::int64_t layers = config_.geometry.layers;
  if (least > device_.total())
    return never_fits(least / layers * kPageTokens, "device", device_.total() / layers * kPageTokens,
                      "--device-kv-tokens");
  return {};
}

Result<Admission> KvCachePlanner::acquire(const KvDemand& demand) {
  HS_CHECK(!sequences_.contains(demand.id), "a sequence is granted once");
  if (Result<void> possible = can_ever_run(demand); !possible) return possible.error();
  const std::int64_t host_pages = pages_for_tokens(tokens_of(demand));
  if (host_pages > host_.available()) return Admission::kLater;
  for (const Option& option : options(demand)) {
    if (option.device_pages > device_.available()) continue;
    Sequence sequence;
    sequence.demand = demand;
    sequence.course = option.course;
    sequence.host_reserved = static_cast<std::int32_t>(host_pages);
    sequence.device_reserved = static_cast<std::int32_t>(option.device_pages);
    HS_CHECK(host_.try_reserve(sequence.host_reserved) && device_.try_reserve(sequence.device_reserved),
             "available pages can be reserved");
    sequences_.emplace(demand.id, std::move(sequence));
    return Admission::kGranted;
  }
  return Admission::kLater;
}

std::int64_t KvCachePlanner::largest_output(std::int64_t prompt_tokens) const {
  // What runs with more output also runs with less.
  std::int64_t fits = 0;
  std::int64_t too_many = host_.total() * kPageTokens + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    const KvDemand demand{.id = {}, .prompt_tokens = prompt_tokens, .max_new_tokens = middle};
    (can_ever_run(demand).ok() ? fits : too_many) = middle;
  }
  return fits;
}

std::vector<KvOp> KvCachePlanner::plan_rows(SequenceId id, std::int64_t first_position, std::int64_t rows,
                                            bool prefill) {
  Sequence& sequence = find(id);
  const std::int64_t end = first_position + rows;
  HS_CHECK(rows > 0 && first_position == sequence.rows, "the rows of a sequence are planned in order");
  HS_CHECK(end <= tokens_of(sequence.demand), "a sequence stays inside its reservation");
  HS_CHECK(
      prefill ? end <= sequence.demand.prompt_tokens : rows == 1 && first_position >= sequence.demand.prompt_tokens,
      "prefill rows lie in the prompt, a decode row behind it");
  settle(sequence);
  std::vector<KvOp> ops;
  add_host_pages(sequence, end, ops);
  const KvMode target = mode_for(sequence, prefill);
  if (target == KvMode::kParked && first_position == 0) ++streamed_prefills_;
  if (target == KvMode::kResident) add_device_pages(sequence, end, ops);
  if (target == KvMode::kHot && sequence.mode != KvMode::kHot) enter_hot(sequence, ops);
  HS_CHECK(sequence.mode == target, "a sequence cannot go back to that mode");
  finish_pages(sequence, end);
  sequence.rows = end;
  return ops;
}

KvMode KvCachePlanner::mode_for(const Sequence& sequence, bool prefill) const {
  switch (sequence.course) {
    case Course::kResident: return KvMode::kResident;
    case Course::kPromptOnly: return KvMode::kParked;
    case Course::kHot: break;
  }
  if (prefill) return sequence.demand.prompt_tokens < config_.threshold ? KvMode::kResident : KvMode::kParked;
  // The row at position p sees p + 1 tokens.
  return sequence.rows + 1 > config_.threshold ? KvMode::kHot : KvMode::kResident;
}

KvCachePlanner::Sequence& KvCachePlanner::find(SequenceId id) {
  const auto found = sequences_.find(id);
  HS_CHECK(found != sequences_.end(), "only a granted sequence has pages");
  return found->second;
}

// The plan before this one is with the stream by now, ahead of whatever is planned next: pages that it freed may be
// handed out, and its write-through ends before anything else touches those pages.
void KvCachePlanner::settle(Sequence& sequence) {
  for (const PageId page : sequence.leaving) device_.give_back(page);
  sequence.leaving.clear();
  for (; sequence.settled < static_cast<std::size_t>(sequence.rows / kPageTokens); ++sequence.settled) {
    PageState& state = sequence.states[sequence.settled];
    if (state == PageState::kCopying) storage::advance(state, PageState::kDeviceAndHost);
    if (sequence.mode == KvMode::kHot && state == PageState::kDeviceAndHost) storage::advance(state, PageState::kHost);
  }
}

void KvCachePlanner::add_host_pages(Sequence& sequence, std::int64_t end, std::vector<KvOp>& ops) {
  KvOp op{.kind = KvOp::Kind::kAddHostPages, .host_pages = {}, .device_pages = {}, .shape = {}};
  while (static_cast<std::int64_t>(sequence.host_pages.size()) < pages_for_tokens(end)) {
    HS_CHECK(sequence.host_reserved > 0, "host pages were reserved for the whole sequence");
    --sequence.host_reserved;
    op.host_pages.push_back(host_.take());
    sequence.host_pages.push_back(op.host_pages.back());
    sequence.states.push_back(PageState::kFilling);
  }
  if (!op.host_pages.empty()) ops.push_back(std::move(op));
}

void KvCachePlanner::add_device_pages(Sequence& sequence, std::int64_t end, std::vector<KvOp>& ops) {
  if (sequence.rows == 0) {
    sequence.mode = KvMode::kResident;
    ++entered_resident_;
    ops.push_back({.kind = KvOp::Kind::kEnterResident, .host_pages = {}, .device_pages = {}, .shape = {}});
  }
  const std::int64_t pages =
      config_.geometry.layers * pages_for_tokens(end) - static_cast<std::int64_t>(sequence.device_pages.size());
  if (pages <= 0) return;
  KvOp op{.kind = KvOp::Kind::kAddDevicePages, .host_pages = {}, .device_pages = {}, .shape = {}};
  take_device_pages(sequence, pages, op.device_pages);
  ops.push_back(std::move(op));
}

void KvCachePlanner::enter_hot(Sequence& sequence, std::vector<KvOp>& ops) {
  sequence.leaving = std::exchange(sequence.device_pages, {});
  KvOp op{.kind = KvOp::Kind::kEnterHot, .host_pages = {}, .device_pages = {}, .shape = config_.hot_shape};
  take_device_pages(sequence, hot_pages(), op.device_pages);
  ops.push_back(std::move(op));
  for (PageState& state : sequence.states)
    if (state == PageState::kDeviceAndHost) storage::advance(state, PageState::kHost);
  sequence.mode = KvMode::kHot;
  ++entered_hot_;
}

void KvCachePlanner::take_device_pages(Sequence& sequence, std::int64_t count, std::vector<PageId>& pages) {
  HS_CHECK(count <= sequence.device_reserved, "device pages were reserved for the whole sequence");
  sequence.device_reserved -= static_cast<std::int32_t>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    pages.push_back(device_.take());
    sequence.device_pages.push_back(pages.back());
  }
}

void KvCachePlanner::finish_pages(Sequence& sequence, std::int64_t end) {
  for (std::int64_t page = sequence.rows / kPageTokens; page < end / kPageTokens; ++page) {
    PageState& state = sequence.states[static_cast<std::size_t>(page)];
    if (sequence.mode == KvMode::kParked) {
      storage::advance(state, PageState::kHost);
    } else {
      storage::advance(state, PageState::kDevice);
      storage::advance(state, PageState::kCopying);  // the step itself writes it through
    }
    ++pages_written_through_;
  }
}

KvMode KvCachePlanner::mode(SequenceId id) const {
  const auto found = sequences_.find(id);
  HS_CHECK(found != sequences_.end(), "only a granted sequence has a mode");
  return found->second.mode;
}

void KvCachePlanner::release(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  settle(sequence);
  for (PageState& state : sequence.states) storage::advance(state, PageState::kFree);
  for (const PageId page : sequence.device_pages) device_.give_back(page);
  for (const HostPage page : sequence.host_pages) host_.give_back(page);
  device_.unreserve(sequence.device_reserved);
  host_.unreserve(sequence.host_reserved);
  sequences_.erase(found);
}

KvCounters KvCachePlanner::counters() const {
  KvCounters counters;
  counters.device_pages_total = device_.total();
  counters.device_pages_free = device_.free();
  counters.host_pages_total = host_.total();
  counters.host_pages_free = host_.free();
  for (const auto& [id, sequence] : sequences_) {
    counters.resident += sequence.mode == KvMode::kResident;
    counters.hot += sequence.mode == KvMode::kHot;
    counters.parked += sequence.mode == KvMode::kParked;
  }
  counters.entered_hot = entered_hot_;
  counters.entered_resident = entered_resident_;
  counters.streamed_prefills = streamed_prefills_;
  counters.pages_written_through = pages_written_through_;
  return counters;
}

}  // namespace hotset::actors
