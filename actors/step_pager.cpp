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
  PagedStep out;
  out.pages.ops.reserve(draft.rows.size());
  for (const DraftRows& rows : draft.rows) {
    const auto found = granted_.find(rows.id);
    if (found == granted_.end()) {
      out.pages.ops.emplace_back(std::nullopt);
      continue;
    }
    Granted& granted = found->second;
    std::vector<sparse::KvOp> ops = planner_.plan_rows(rows.id, rows.first_position, rows.rows, rows.prefill);
    for (const sparse::KvOp& op : ops) {
      if (op.kind != sparse::KvOp::Kind::kAddHostPages) continue;
      granted.host_pages.insert(granted.host_pages.end(), op.host_pages.begin(), op.host_pages.end());
    }
    const std::int64_t length = rows.first_position + rows.rows;
    for (; (granted.complete + 1) * kPageTokens <= length; ++granted.complete) {
      const HostPage page = granted.host_pages.at(static_cast<std::size_t>(granted.complete));
      out.completed.push_back({.identity = private_page(rows.id, granted.complete), .page = page});
    }
    out.pages.ops.emplace_back(std::move(ops));
  }
  return out;
}

}  // namespace hotset::actors
