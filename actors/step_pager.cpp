#include "actors/step_pager.h"

#include <utility>

namespace hotset::actors {

Result<Admission> StepPager::acquire(const KvDemand& demand) {
  Result<Admission> answer = planner_.acquire(demand);
  if (answer && answer.value() == Admission::kGranted) granted_.try_emplace(demand.id);
  return answer;
}

std::vector<PageIdentity> StepPager::release(SequenceId id) {
  planner_.release(id);
  std::vector<PageIdentity> out;
  const auto found = granted_.find(id);
  if (found == granted_.end()) return out;
  for (std::int64_t page = 0; page < found->second.complete; ++page) out.push_back(private_page(id, page));
  granted_.erase(found);
  return out;
}

PagedStep StepPager::plan(const StepDraft& draft) {
  std::vector<KvRows> wanted;
  wanted.reserve(draft.rows.size());
  for (const DraftRows& rows : draft.rows) {
    wanted.push_back({.id = rows.id,
                      .turn = rows.turn,
                      .first_position = rows.first_position,
                      .rows = rows.rows,
                      .prefill = rows.prefill});
    if (const auto found = granted_.find(rows.id); found != granted_.end()) found->second.state = rows.state;
  }
  KvStepPlan plan = planner_.plan_step(wanted);
  PagedStep out;
  for (KvTransition& transition : plan.transitions) {
    out.pages.transitions.push_back({.state = granted_.at(transition.id).state, .ops = std::move(transition.ops)});
  }
  for (std::size_t i = 0; i < draft.rows.size(); ++i) {
    if (plan.ops[i]) note_complete_pages(draft.rows[i], *plan.ops[i], out.completed);
  }
  out.pages.ops = std::move(plan.ops);
  out.pages.deferred = std::move(plan.deferred);
  return out;
}

void StepPager::note_complete_pages(const DraftRows& rows, const std::vector<sparse::KvOp>& ops,
                                    std::vector<TierPage>& completed) {
  Granted& granted = granted_.at(rows.id);
  for (const sparse::KvOp& op : ops) {
    granted.host_pages.insert(granted.host_pages.end(), op.host_pages.begin(), op.host_pages.end());
  }
  const std::int64_t length = rows.first_position + rows.rows;
  for (; (granted.complete + 1) * kPageTokens <= length; ++granted.complete) {
    const HostPage page = granted.host_pages.at(static_cast<std::size_t>(granted.complete));
    completed.push_back({.identity = private_page(rows.id, granted.complete), .page = page});
  }
}

}  // namespace hotset::actors
