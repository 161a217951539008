// A step on its way from the coordinator to the stream. Each stage adds its part beside the parts of the stages before,
// which nobody changes any more: draft (coordinator), selection (algorithm), pages (cache manager); the backend adaptor
// joins them into a model::StepPlan. Where nothing else is said, the vectors of all parts run parallel to
// StepDraft::rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/sequence_policy.h"
#include "core/ids.h"
#include "model/step_plan.h"
#include "sparse/selection.h"
#include "sparse/sequence_kv.h"

namespace hotset::actors {

// The rows of one sequence in a step; fields as in model::SequenceStep.
struct DraftRows {
  SequenceId id;
  std::shared_ptr<model::SequenceState> state;  // the stream's; the control plane never looks inside
  std::int64_t first_position = 0;
  std::int32_t rows = 0;
  std::vector<std::int32_t> tokens;  // empty: the token that the previous step sampled
  bool prefill = false;
  bool sample = false;
  std::int32_t prompt_logprobs = -1;
  std::int32_t next_token = -1;
  SharedPolicy policy;     // null: dense
  std::uint32_t turn = 0;  // how often the sequence had been resumed (KvRows)
};

struct StepDraft {
  std::uint64_t step = 0;  // 1, 2, 3, ... without gaps
  std::vector<DraftRows> rows;
};

// Fields as in model::SequenceStep.
struct RowSelection {
  std::shared_ptr<const sparse::SelectionAlgorithm> algorithm;  // null: the rows attend to everything
  std::int64_t budget = 0;
  std::int64_t dense_until = 0;
};
struct StepSelection {
  std::vector<RowSelection> rows;
};

struct StepPages {
  // nullopt: the sequence gave its pages back after the draft was made, or is parked, so its rows are dropped.
  std::vector<std::optional<std::vector<sparse::KvOp>>> ops;
  std::vector<model::SequenceTransition> transitions;  // not parallel to the rows
  std::vector<SequenceId> deferred;                    // parked by this step; not parallel either
};

}  // namespace hotset::actors
