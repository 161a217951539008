// DeepSeek Sparse Attention (DeepSeek-V3.2, GLM-MoE-DSA): the model's own lightning indexer scores every token, and
// every query, the prompt's too, attends to the index_topk best ones. Nothing is forced: the newest token competes like
// the others, as the model was trained.
#pragma once

#include <cstdint>
#include <memory>

#include "core/kv_geometry.h"
#include "core/result.h"
#include "sparse/selection.h"

namespace hotset::sparse {

struct DsaOptions {
  std::int64_t top_k = 0;  // index_topk, tokens
  std::int32_t dim = 0;    // index_head_dim
  KvDType dtype = KvDType::kF32;
};

// kInvalidArgument names the config's field.
Result<std::shared_ptr<const SelectionAlgorithm>> make_dsa(const DsaOptions& options);

}  // namespace hotset::sparse
