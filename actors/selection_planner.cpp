#include "actors/selection_planner.h"

namespace hotset::actors {

StepSelection SelectionPlanner::plan(const StepDraft& draft) const {
  StepSelection out;
  out.algorithms.reserve(draft.rows.size());
  for (const DraftRows& rows : draft.rows) {
    const bool sparse = !rows.prefill && policy_.sparse_at(rows.first_position + 1);
    out.algorithms.push_back(sparse ? policy_.algorithm : nullptr);
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
