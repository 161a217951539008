// Makes K and V of every head out of cached latents, for prompts that are attended to densely (DeepSeek-V2, arXiv
// 2405.04434, section 2.1): a chunk of many queries is cheaper over expanded rows, a single query over latent ones.
// Owner: the TieredTransformer. Thread: the stream that owns the backend.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "model/tiered_attention.h"
#include "model/weights.h"

namespace hotset::model {

class LatentExpander final : public TileExpander {
 public:
  LatentExpander(const ModelWeights& weights, kernels::Backend& backend, const KvGeometry& cache);

  [[nodiscard]] KvGeometry geometry() const override { return geometry_; }
  void expand(LayerId layer, const std::byte* tile, std::int64_t rows, std::byte* out) override;

 private:
  const ModelWeights& weights_;
  kernels::Backend& backend_;
  KvGeometry cache_;
  KvGeometry geometry_;
  std::vector<float> keys_;  // [64, kv_rank + rope]
  std::vector<float> nope_;  // [64, heads * nope]
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace hotset::model
