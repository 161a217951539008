// Quest (Tang et al., ICML 2024, section 3.3): blocks are scored by an upper bound of their keys' products with the
// query, from the smallest and largest value of every channel. The first block and every block that overlaps the last
// `window` tokens are forced. The known baseline beside low-rank index keys.
#pragma once

#include <cstdint>
#include <memory>

#include "core/kv_geometry.h"
#include "core/result.h"
#include "kernels/backend.h"
#include "sparse/selection.h"

namespace hotset::sparse {

struct QuestOptions {
  std::int64_t block_tokens = 16;  // --sparse-block
  std::int64_t window = 64;        // --sparse-window
  std::int64_t budget = 2048;      // --sparse-budget, tokens, the forced blocks included; whole blocks count
  kernels::HeadCombine combine = kernels::HeadCombine::kMax;  // --quest-combine
  std::int32_t kv_heads = 0;                                  // of the rows; latent: 1
  std::int32_t key_dim = 0;                                   // of the rows; latent: the latent and the rope part
  KvDType rows_dtype = KvDType::kF32;                         // f32 rows have f32 bounds, others bf16
};

// kInvalidArgument names the option.
Result<std::shared_ptr<const SelectionAlgorithm>> make_quest(const QuestOptions& options);

}  // namespace hotset::sparse
