// Selection algorithms for the fixtures, by name.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/check.h"
#include "model/index_basis_file.h"
#include "model/kv_layout.h"
#include "sparse/dsa.h"
#include "sparse/low_rank.h"
#include "sparse/quest.h"
#include "sparse/selection.h"
#include "tests/engine/require.h"

namespace hotset::testing {

struct AlgorithmSizes {
  std::int64_t block_tokens = 16;
  std::int64_t sink = 4;
  std::int64_t window = 16;
  std::int64_t budget = 48;  // tokens
  kernels::HeadCombine combine = kernels::HeadCombine::kMax;
};

using Algorithm = std::shared_ptr<const sparse::SelectionAlgorithm>;

// Directions that are single channels: a basis as good as any where only the bits of two runs are compared.
inline sparse::IndexBasis channel_basis(const KvGeometry& rows, std::int32_t rank) {
  sparse::IndexBasis basis{
      .layers = rows.layers, .kv_heads = rows.kv_heads, .key_dim = rows.key_dim, .rank = rank, .u = {}};
  std::vector<float> layer(static_cast<std::size_t>(rows.kv_heads * rows.key_dim * rank), 0.0F);
  for (std::int32_t head = 0; head < rows.kv_heads; ++head) {
    for (std::int32_t j = 0; j < rank; ++j) {
      layer[static_cast<std::size_t>((head * rows.key_dim + j * (rows.key_dim / rank)) * rank + j)] = 1.0F;
    }
  }
  basis.u.assign(static_cast<std::size_t>(rows.layers), layer);
  sparse::hash_index_basis(basis);
  return basis;
}

// "dense" gives null. lowrank reads `basis_file`, or takes channel_basis() of rank 16 when that is empty.
inline Algorithm make_algorithm(const std::string& name, const model::ModelConfig& config, KvDType dtype,
                                const AlgorithmSizes& sizes, const std::filesystem::path& basis_file) {
  const KvGeometry rows = model::kv_geometry_of(config, dtype);
  if (name == "dsa") {
    return require(sparse::make_dsa({.top_k = config.indexer->top_k, .dim = config.indexer->dim, .dtype = dtype}));
  }
  if (name == "lowrank") {
    auto basis = std::make_shared<const sparse::IndexBasis>(
        basis_file.empty() ? channel_basis(rows, 16) : require(model::read_index_basis(basis_file, rows)));
    return require(sparse::make_low_rank(
        {.sink = sizes.sink, .window = sizes.window, .budget = sizes.budget, .basis = std::move(basis)}));
  }
  if (name == "quest") {
    return require(sparse::make_quest({.block_tokens = sizes.block_tokens,
                                       .window = sizes.window,
                                       .budget = sizes.budget,
                                       .combine = sizes.combine,
                                       .kv_heads = rows.kv_heads,
                                       .key_dim = rows.key_dim,
                                       .rows_dtype = dtype}));
  }
  if (name == "streaming") return require(sparse::make_streaming(sizes.block_tokens, sizes.window));
  HS_CHECK(name == "dense", "a known algorithm");
  return nullptr;
}

}  // namespace hotset::testing
