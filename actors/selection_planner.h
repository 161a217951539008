// The plain class behind Algorithm: which selection the rows of a step use, and what the steps measured.
// Thread: one owner.
#pragma once

#include <cstdint>

#include "actors/step_draft.h"
#include "model/step_plan.h"
#include "sparse/selection.h"

namespace hotset::actors {

struct SelectionTotals {
  std::int64_t steps = 0;
  std::int64_t hits = 0;
  std::int64_t ring_hits = 0;
  std::int64_t misses = 0;

  // Of the blocks that hot sequences selected, the part that was on the device; 1 when nothing was selected.
  [[nodiscard]] double hit_rate() const {
    const auto found = static_cast<double>(hits + ring_hits);
    return hits + ring_hits + misses == 0 ? 1.0 : found / (found + static_cast<double>(misses));
  }
};

class SelectionPlanner {
 public:
  // By each sequence's own policy: a token at position p attends to its selection if its length p + 1 is past the
  // threshold and it was generated, or the algorithm selects in prompts too; else to everything. Neither the neighbours
  // nor the memory that is free have a say.
  [[nodiscard]] StepSelection plan(const StepDraft& draft) const;

  void learn(const model::StepStats& stats);
  [[nodiscard]] const SelectionTotals& totals() const { return totals_; }

 private:
  SelectionTotals totals_;
};

}  // namespace hotset::actors
