// `hotset inspect trace FILE`: the records of a trace of selections as JSON lines.
#pragma once

#include <ostream>

#include "api/options.h"

namespace hotset::api {

// One line for each record that the options ask for:
//   {"request":3,"step":41,"layer":0,"position":5120,"prefill":false,"block_tokens":1,"selected":[0,1,88]}
// `request` is the number of a sequence within its server, `selected` the blocks, or "all". A damaged file gives the
// lines before the damage, then an error on `err`. Returns the exit status; a reader of `out` that goes away is 0.
[[nodiscard]] int inspect_trace(const InspectOptions& options, std::ostream& out, std::ostream& err);

}  // namespace hotset::api
