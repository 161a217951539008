// `hotset calibrate`: makes the basis of low-rank index keys of a model and writes it where `hotset serve` finds it.
#pragma once

#include <iosfwd>

#include "api/options.h"
#include "core/result.h"

namespace hotset::api {

// Writes the file and prints rank, captured share and place to `out`; progress goes to `progress`, rewritten in place
// if it is a terminal. Without --out the file lies beside the model (index_basis_path_beside()); where that can't be
// written it goes to the cache folder, which `out` is told. Blocks for the whole run. Errors name the option.
Result<void> calibrate(const CalibrateOptions& options, std::ostream& out, std::ostream& progress, bool terminal);

}  // namespace hotset::api
