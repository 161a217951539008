#include "actors/step_assembler.h"

#include "core/check.h"

namespace hotset::actors {

model::StepPlan assemble_step(const StepDraft& draft, const StepSelection& selection, const StepPages& pages) {
  HS_CHECK(selection.rows.size() == draft.rows.size() && pages.ops.size() == draft.rows.size(),
           "the parts of a step run parallel");
  model::StepPlan plan;
  plan.step = draft.step;
  plan.transitions = pages.transitions;
  plan.deferred = pages.deferred;
  plan.sequences.reserve(draft.rows.size());
  for (const bool prefill : {false, true}) {
    for (std::size_t i = 0; i < draft.rows.size(); ++i) {
      const DraftRows& rows = draft.rows[i];
      if (rows.prefill != prefill || !pages.ops[i]) continue;
      model::SequenceStep step;
      step.state = rows.state;
      step.first_position = rows.first_position;
      step.rows = rows.rows;
      step.tokens = rows.tokens;
      step.prefill = rows.prefill;
      step.sample = rows.sample;
      step.prompt_logprobs = rows.prompt_logprobs;
      step.next_token = rows.next_token;
      step.selection = selection.rows[i].algorithm;
      step.budget = selection.rows[i].budget;
      step.dense_until = selection.rows[i].dense_until;
      step.ops = *pages.ops[i];
      plan.sequences.push_back(std::move(step));
    }
  }
  return plan;
}

}  // namespace hotset::actors
