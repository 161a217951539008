#include "actors/selection_planner.h"

namespace hotset::actors {

StepSelection SelectionPlanner::plan(const StepDraft& draft) const {
  StepSelection out;
  out.rows.reserve(draft.rows.size());
  for (const DraftRows& rows : draft.rows) {
    out.rows.emplace_back();
    if (rows.policy == nullptr) continue;
    const sparse::SelectionPolicy& policy = rows.policy->selection;
    if (policy.algorithm == nullptr) continue;
    // Of a prompt the stream knows which rows are past the threshold.
    if (rows.prefill ? !policy.algorithm->selects_prompt() : !policy.sparse_at(rows.first_position + 1)) continue;
    out.rows.back() = {
        .algorithm = policy.algorithm, .budget = policy.budget_blocks(), .dense_until = policy.threshold};
  }
  return out;
}

void SelectionPlanner::learn(const model::StepStats& stats) {
  ++totals_.steps;
  totals_.hits += stats.hits;
  totals_.ring_hits += stats.ring_hits;
  totals_.misses += stats.misses;
}

}  // namespace hotset::actors
