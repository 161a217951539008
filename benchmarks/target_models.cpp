#include "benchmarks/target_models.h"

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "core/check.h"
#include "model/hf_config.h"
#include "model/kv_layout.h"
#include "sparse/dsa.h"
#include "sparse/low_rank.h"

namespace hotset {
namespace {

template <class T>
T require(Result<T> result) {
  HS_CHECK(result.ok(), result.ok() ? "" : result.error().message.c_str());
  return std::move(result).value();
}

model::ModelConfig read_model(const char* folder, const char* name) {
  const std::ifstream file(std::string(HOTSET_TARGET_MODELS "/") + folder + "/config.json");
  std::stringstream text;
  text << file.rdbuf();
  model::ModelConfig config = require(model::parse_hf_config(text.str()));
  config.name = name;
  return config;
}

}  // namespace

model::ModelConfig llama_8b() { return read_model("llama-3.1-8b", "Llama-3.1-8B"); }

model::ModelConfig deepseek_v32() { return read_model("deepseek-v3.2-8-experts", "DeepSeek-V3.2, 8 experts"); }

std::shared_ptr<const sparse::SelectionAlgorithm> target_algorithm(const model::ModelConfig& config, KvDType dtype,
                                                                   std::int64_t budget, std::int32_t index_rank) {
  if (config.indexer)
    return require(sparse::make_dsa({.top_k = config.indexer->top_k, .dim = config.indexer->dim, .dtype = dtype}));
  const KvGeometry rows = model::kv_geometry_of(config, dtype);
  const sparse::IndexBasis shape{.layers = rows.layers,
                                 .kv_heads = rows.kv_heads,
                                 .key_dim = rows.key_dim,
                                 .rank = index_rank > 0 ? index_rank : sparse::default_index_rank(rows.key_dim, false),
                                 .u = {}};
  return require(sparse::make_low_rank(
      {.budget = budget, .basis = std::make_shared<const sparse::IndexBasis>(sparse::random_index_basis(shape, 2))}));
}

}  // namespace hotset
