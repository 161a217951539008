// The next rows of a sequence as the scheduler cuts them: prompt chunks end at multiples of the chunk, then one row
// each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "model/step_plan.h"

namespace hotset::testing {

// Without selection and operations.
inline model::SequenceStep next_rows(std::shared_ptr<model::SequenceState> state,
                                     const std::vector<std::int32_t>& prompt, std::int64_t position,
                                     std::int64_t chunk) {
  const auto prompt_tokens = static_cast<std::int64_t>(prompt.size());
  model::SequenceStep step{.state = std::move(state), .first_position = position, .rows = 1};
  step.prefill = position < prompt_tokens;
  if (step.prefill) {
    const std::int64_t end = std::min((position / chunk + 1) * chunk, prompt_tokens);
    step.rows = static_cast<std::int32_t>(end - position);
    step.tokens.assign(prompt.begin() + position, prompt.begin() + end);
    step.next_token = end < prompt_tokens ? prompt[static_cast<std::size_t>(end)] : -1;
  }
  step.sample = position + step.rows >= prompt_tokens;
  return step;
}

}  // namespace hotset::testing
