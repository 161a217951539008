// `hotset replay FILE`: the selections of a trace through hot buffers of several sizes.
#pragma once

#include <ostream>

#include "api/options.h"

namespace hotset::api {

// Prints how often selected blocks would have come over the bus, per layer, size and policy (sparse/replay.h says what
// is counted), as tables or as one JSON object. A damaged file is replayed up to the damage, which `err` then tells.
// Returns the exit status; a reader of `out` that goes away is 0.
[[nodiscard]] int replay_trace(const ReplayArguments& arguments, std::ostream& out, std::ostream& err);

}  // namespace hotset::api
