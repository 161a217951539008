// The numbers of `hotset replay`, as tables for people or as JSON for programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparse/replay.h"
#include "sparse/selection_trace.h"

namespace hotset::api {

struct ReplayReport {
  sparse::TraceHeader trace;
  std::size_t sequences = 0;
  std::int64_t rows = 0;           // of the trace, over all layers
  std::int64_t budget_tokens = 0;  // K: the largest selection
  std::vector<std::string> sizes;  // as the user wrote them; result.runs has one run for each, per policy
  sparse::ReplayOptions options;
  sparse::ReplayResult result;
};

[[nodiscard]] std::string replay_tables(const ReplayReport& report);
// One object and a line break. Shares of nothing are null.
[[nodiscard]] std::string replay_json(const ReplayReport& report);

}  // namespace hotset::api
