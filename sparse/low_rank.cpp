#include "sparse/low_rank.h"

#include <algorithm>

#include "core/check.h"
#include "core/concat.h"
#include "sparse/scored_selection.h"

namespace hotset::sparse {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;

class LowRankSelection final : public ScoredSelection {
 public:
  explicit LowRankSelection(const LowRankOptions& options) : options_(options) {
    metadata_.kind = MetadataGeometry::Kind::kLowRankKeys;
    metadata_.kv_heads = options.basis->kv_heads;
    metadata_.dim = options.basis->key_dim;
    metadata_.rank = options.basis->rank;
  }

  [[nodiscard]] std::string_view name() const override { return "lowrank"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return 1; }
  [[nodiscard]] std::int64_t max_blocks() const override { return options_.budget; }
  [[nodiscard]] std::int64_t forced_blocks() const override { return options_.sink + options_.window; }
  [[nodiscard]] std::int64_t window_tokens() const override { return options_.window; }
  [[nodiscard]] MetadataGeometry metadata() const override { return metadata_; }

  [[nodiscard]] const IndexBasis* basis() const override { return options_.basis.get(); }

  void append(LayerId layer, const MetadataRows& rows, kernels::Backend& backend) const override {
    kernels::StoreMetadataParams params;
    params.geometry = metadata_;
    params.keys = rows.keys;
    params.stride = rows.stride;
    params.basis = basis_of(layer);
    params.pages = rows.pages.data();
    params.offsets = rows.offsets.data();
    params.rows = static_cast<std::int64_t>(rows.pages.size());
    backend.store_metadata(params);
  }

 private:
  [[nodiscard]] const float* basis_of(LayerId layer) const {
    HS_CHECK(layer.value() >= 0 && layer.value() < options_.basis->layers, "no index basis for this layer");
    return options_.basis->of(layer.value()).data();
  }

  [[nodiscard]] Candidates candidates(std::int64_t length) const override {
    const std::int64_t first = std::min(options_.sink, length);
    return {first, std::max(length - options_.window, first)};
  }

  void score(LayerId layer, const kernels::ScoredRows& rows, const SelectionQueries& queries,
             const SelectionScratch& /*scratch*/, kernels::Backend& backend) const override {
    kernels::LowRankScoresParams params;
    params.rows = rows;
    params.q = queries.q;
    params.q_stride = queries.q_stride;
    params.basis = basis_of(layer);
    params.heads = queries.heads;
    params.scale = queries.scale;
    backend.low_rank_scores(params);
  }

  LowRankOptions options_;
  MetadataGeometry metadata_;
};

}  // namespace

Result<std::shared_ptr<const SelectionAlgorithm>> make_low_rank(const LowRankOptions& options) {
  HS_CHECK(options.basis != nullptr, "low-rank index keys need a basis");
  if (options.sink < 0 || options.sink > kMostTokens)
    return invalid_argument(concat("--sparse-sink is ", options.sink, ": use 0 to ", kMostTokens), "--sparse-sink");
  // A window of 0 could leave the query's own token out.
  if (options.window < 1 || options.window > kMostTokens)
    return invalid_argument(concat("--sparse-window is ", options.window, ": use 1 to ", kMostTokens),
                            "--sparse-window");
  const std::int64_t least = options.sink + options.window;
  if (options.budget < least || options.budget > kMostTokens)
    return invalid_argument(concat("--sparse-budget is ", options.budget, ": use at least ", least,
                                   ", the first and newest tokens that are always attended, and at most ", kMostTokens),
                            "--sparse-budget");
  return std::shared_ptr<const SelectionAlgorithm>(std::make_shared<LowRankSelection>(options));
}

}  // namespace hotset::sparse
