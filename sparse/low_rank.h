// Low-rank index keys: tokens are scored by the products of the queries with their keys, both projected on the basis's
// few directions, the keys in 4 bits; heads are joined by the mean of their softmaxes over all tokens. Idea of low-rank
// keys: Singhania et al., Loki (NeurIPS 2024). The first `sink` tokens and the last `window` tokens are forced.
#pragma once

#include <cstdint>
#include <memory>

#include "core/result.h"
#include "sparse/index_basis.h"
#include "sparse/selection.h"

namespace hotset::sparse {

struct LowRankOptions {
  std::int64_t sink = 4;       // --sparse-sink
  std::int64_t window = 64;    // --sparse-window
  std::int64_t budget = 2048;  // --sparse-budget, tokens, the forced ones included
  std::shared_ptr<const IndexBasis> basis;
};

// kInvalidArgument names the option. The basis is a checked one (index_basis.h), not null.
Result<std::shared_ptr<const SelectionAlgorithm>> make_low_rank(const LowRankOptions& options);

}  // namespace hotset::sparse
