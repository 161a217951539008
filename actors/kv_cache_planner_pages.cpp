// What a sequence holds: the pages it takes and gives back, and the cache operations that tell the stream of it.
#include <algorithm>
#include <utility>

#include "actors/kv_cache_planner.h"
#include "core/check.h"

namespace hotset::actors {
namespace {

using sparse::KvMode;
using sparse::KvOp;
using storage::PageState;

KvOp make_op(KvOp::Kind kind) {
  return {.kind = kind, .host_pages = {}, .device_pages = {}, .metadata_pages = {}, .shape = {}};
}

template <class Id>
std::vector<Id> joined(const std::vector<std::vector<Id>>& lists) {
  std::vector<Id> out;
  for (const std::vector<Id>& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

// From the last to the first: the pool then gives long runs again.
template <class Id>
void give_back_all(storage::PagePool<Id>& pool, std::vector<Id>& pages) {
  for (; !pages.empty(); pages.pop_back()) pool.give_back(pages.back());
}
template <class Id>
void give_back_all(storage::PagePool<Id>& pool, std::vector<std::vector<Id>>& lists) {
  for (; !lists.empty(); lists.pop_back()) give_back_all(pool, lists.back());
}

// `pages` more for all lists together, out of the pool's reservation. Appended to `taken` as [list][page]. Lists that
// will not grow lie side by side, so that they leave extents free for those that do.
template <class Id>
void take_pages(storage::PagePool<Id>& pool, std::int64_t pages, bool will_grow, std::vector<std::vector<Id>>& lists,
                std::vector<Id>& taken) {
  std::optional<Id> after;
  for (std::vector<Id>& list : lists) {
    if (will_grow) after = list.empty() ? std::nullopt : std::optional(list.back());
    for (std::int64_t i = pages / static_cast<std::int64_t>(lists.size()); i > 0; --i) {
      after = pool.take(after);
      list.push_back(*after);
      taken.push_back(*after);
    }
  }
}

}  // namespace

// Transitions, ahead of the rows of a step.

void KvCachePlanner::enter_hot(Sequence& sequence) {
  KvOp op = make_op(KvOp::Kind::kEnterHot);
  to_hot(sequence, op);
  pending_.push_back({.id = sequence.demand.id, .ops = {std::move(op)}});
}

void KvCachePlanner::enter_parked(Sequence& sequence) {
  pending_.push_back({.id = sequence.demand.id, .ops = {make_op(KvOp::Kind::kPark)}});
  leave_device(sequence);
  sequence.mode = KvMode::kParked;
  ++counted_.entered_parked;
}

void KvCachePlanner::enter_resident(Sequence& sequence) {
  KvOp enter = make_op(KvOp::Kind::kEnterResident);
  to_resident(sequence, enter);
  enter.metadata_pages = joined(sequence.metadata_pages);
  pending_.push_back({.id = sequence.demand.id, .ops = {make_op(KvOp::Kind::kPark), std::move(enter)}});
}

// From resident (its pages go back first, and may be among those that it takes) or parked.
void KvCachePlanner::to_hot(Sequence& sequence, KvOp& op) {
  give_back_rows(sequence);
  device_.unreserve(static_cast<std::int32_t>(std::exchange(sequence.reserved.rows, 0)));
  sequence.mode = KvMode::kHot;
  take_rows(sequence, needs_.hot(sequence.demand, 0).rows, op.device_pages);
  op.shape = sequence.demand.hot_shape;
  for (PageState& state : sequence.states)
    if (state == PageState::kDeviceAndHost) storage::advance(state, PageState::kHost);
  ++counted_.entered_hot;
}

// From hot (its pages go back first likewise) or parked.
void KvCachePlanner::to_resident(Sequence& sequence, KvOp& op) {
  give_back_rows(sequence);
  sequence.mode = KvMode::kResident;
  take_rows(sequence, needs_.resident(sequence.demand, sequence.rows).rows, op.device_pages);
  for (PageState& state : sequence.states)
    if (state == PageState::kHost) storage::advance(state, PageState::kDeviceAndHost);
  ++counted_.entered_resident;
}

// Rows of a step.

std::vector<KvOp> KvCachePlanner::row_ops(Sequence& sequence, bool prefill) {
  std::vector<KvOp> ops;
  add_host_pages(sequence, ops);
  if (sequence.mode == KvMode::kParked && !(prefill && sequence.streamed)) enter_from_host(sequence, ops);
  grow(sequence, ops);
  finish_pages(sequence);
  sequence.rows = sequence.step_end;
  if (!prefill) drop_reservation(sequence);
  return ops;
}

void KvCachePlanner::add_host_pages(Sequence& sequence, std::vector<KvOp>& ops) {
  KvOp op = make_op(KvOp::Kind::kAddHostPages);
  while (static_cast<std::int64_t>(sequence.host_pages.size()) < pages_for_tokens(sequence.step_end)) {
    HS_CHECK(sequence.host_reserved > 0, "host pages were reserved for the whole sequence");
    --sequence.host_reserved;
    const bool first = sequence.host_pages.empty();
    op.host_pages.push_back(host_.take(first ? std::nullopt : std::optional(sequence.host_pages.back())));
    sequence.host_pages.push_back(op.host_pages.back());
    sequence.states.push_back(PageState::kFilling);
  }
  if (!op.host_pages.empty()) ops.push_back(std::move(op));
}

void KvCachePlanner::enter_from_host(Sequence& sequence, std::vector<KvOp>& ops) {
  const bool hot = !sequence.in_prompt() && sequence.enters_hot;
  KvOp op = make_op(hot ? KvOp::Kind::kEnterHot : KvOp::Kind::kEnterResident);
  take_metadata(sequence, needs_.resident(sequence.demand, sequence.rows).metadata, op.metadata_pages);
  if (hot) {
    to_hot(sequence, op);
  } else {
    to_resident(sequence, op);
  }
  ops.push_back(std::move(op));
}

void KvCachePlanner::grow(Sequence& sequence, std::vector<KvOp>& ops) {
  if (sequence.mode == KvMode::kParked) return;
  const DevicePages need = needs_.resident(sequence.demand, sequence.step_end);
  const std::int64_t rows = need.rows - count(sequence.device_pages);
  if (sequence.mode == KvMode::kResident && rows > 0) {
    ops.push_back(make_op(KvOp::Kind::kAddDevicePages));
    take_rows(sequence, rows, ops.back().device_pages);
  }
  const std::int64_t metadata = need.metadata - count(sequence.metadata_pages);
  if (metadata > 0) {
    ops.push_back(make_op(KvOp::Kind::kAddMetadataPages));
    take_metadata(sequence, metadata, ops.back().metadata_pages);
  }
}

// The step itself writes complete pages through, and the stream runs it before whatever is planned next.
void KvCachePlanner::finish_pages(Sequence& sequence) {
  for (std::int64_t page = sequence.rows / kPageTokens; page < sequence.step_end / kPageTokens; ++page) {
    PageState& state = sequence.states[static_cast<std::size_t>(page)];
    if (sequence.mode == KvMode::kParked) {
      storage::advance(state, PageState::kHost);
    } else {
      storage::advance(state, PageState::kDevice);
      storage::advance(state, PageState::kCopying);
      storage::advance(state, PageState::kDeviceAndHost);
      if (sequence.mode == KvMode::kHot) storage::advance(state, PageState::kHost);
    }
    ++counted_.pages_written_through;
  }
}

// Pages.

void KvCachePlanner::leave_device(Sequence& sequence) {
  give_back_rows(sequence);
  give_back_all(metadata_, sequence.metadata_pages);
  for (PageState& state : sequence.states)
    if (state == PageState::kDeviceAndHost) storage::advance(state, PageState::kHost);
}

void KvCachePlanner::keep_back(Sequence& sequence, const DevicePages& pages) {
  HS_CHECK(device_.try_reserve(static_cast<std::int32_t>(pages.rows)) &&
               metadata_.try_reserve(static_cast<std::int32_t>(pages.metadata)),
           "available pages can be reserved");
  sequence.reserved = pages;
}

void KvCachePlanner::drop_reservation(Sequence& sequence) {
  device_.unreserve(static_cast<std::int32_t>(sequence.reserved.rows));
  metadata_.unreserve(static_cast<std::int32_t>(sequence.reserved.metadata));
  sequence.reserved = {};
}

void KvCachePlanner::take_rows(Sequence& sequence, std::int64_t pages, std::vector<PageId>& taken) {
  const std::int64_t more = pages - std::min(pages, sequence.reserved.rows);
  HS_CHECK(device_.try_reserve(static_cast<std::int32_t>(more)), "room for the rows of a step was made");
  sequence.reserved.rows -= pages - more;
  sequence.device_pages.resize(static_cast<std::size_t>(config_.layout.rows.layers));
  take_pages(device_, pages, sequence.mode != KvMode::kHot, sequence.device_pages, taken);
}

void KvCachePlanner::take_metadata(Sequence& sequence, std::int64_t pages, std::vector<MetadataPageId>& taken) {
  const std::int64_t more = pages - std::min(pages, sequence.reserved.metadata);
  HS_CHECK(metadata_.try_reserve(static_cast<std::int32_t>(more)), "room for the metadata of a step was made");
  sequence.reserved.metadata -= pages - more;
  sequence.metadata_pages.resize(static_cast<std::size_t>(config_.layout.metadata_layers));
  take_pages(metadata_, pages, true, sequence.metadata_pages, taken);
}

void KvCachePlanner::give_back_rows(Sequence& sequence) { give_back_all(device_, sequence.device_pages); }

void KvCachePlanner::release(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = found->second;
  // Nothing of it runs any more, so what the stream holds of it does not matter.
  std::erase_if(pending_, [id](const KvTransition& transition) { return transition.id == id; });
  leave_device(sequence);
  drop_reservation(sequence);
  for (PageState& state : sequence.states) storage::advance(state, PageState::kFree);
  give_back_all(host_, sequence.host_pages);
  host_.unreserve(sequence.host_reserved);
  sequences_.erase(found);
}

}  // namespace hotset::actors
