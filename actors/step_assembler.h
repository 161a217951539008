// The plain class behind BackendAdaptor: joins the parts of a step into what the backend's stream runs.
#pragma once

#include "actors/step_draft.h"
#include "model/step_plan.h"

namespace hotset::actors {

// Rows whose pages were given back and deferred rows are left out; the plan may be empty, and is run all the same,
// because every draft ends in one result. Decode rows come first, then prompt chunks, each in the order of the draft.
[[nodiscard]] model::StepPlan assemble_step(const StepDraft& draft, const StepSelection& selection,
                                            const StepPages& pages);

}  // namespace hotset::actors
