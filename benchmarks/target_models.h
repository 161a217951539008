// The models that targets are measured with, as shapes (benchmarks/models, which serve_load.py serves too): dummy
// weights make the rest. HS_CHECK where the source folder is gone.
#pragma once

#include <memory>

#include "core/kv_geometry.h"
#include "model/model_config.h"
#include "sparse/selection.h"

namespace hotset {

[[nodiscard]] model::ModelConfig llama_8b();  // Llama-3.1-8B
// DeepSeek-V3.2 with 8 experts in place of 256, so that it fits one GPU: a token reads as many as the real one. Weights
// are FP8 as the real one's.
[[nodiscard]] model::ModelConfig deepseek_v32();

// What a server's --algorithm auto makes of them: DSA as the model says, else low-rank keys of a random basis with a
// budget of so many tokens; `index_rank` of these, 0: the server's choice.
[[nodiscard]] std::shared_ptr<const sparse::SelectionAlgorithm> target_algorithm(const model::ModelConfig& config,
                                                                                 KvDType dtype, std::int64_t budget,
                                                                                 std::int32_t index_rank = 0);

}  // namespace hotset
