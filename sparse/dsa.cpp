#include "sparse/dsa.h"

#include "core/check.h"
#include "core/concat.h"
#include "sparse/scored_selection.h"

namespace hotset::sparse {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;
constexpr std::int32_t kMostChannels = 1 << 16;

class DsaSelection final : public ScoredSelection {
 public:
  explicit DsaSelection(const DsaOptions& options)
      : top_k_(options.top_k),
        metadata_{.kind = MetadataGeometry::Kind::kIndexKeys,
                  .kv_heads = 1,
                  .dim = options.dim,
                  .rank = 0,
                  .block_tokens = 1,
                  .dtype = options.dtype} {}

  [[nodiscard]] std::string_view name() const override { return "dsa"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return 1; }
  [[nodiscard]] std::int64_t max_blocks() const override { return top_k_; }
  [[nodiscard]] std::int64_t forced_blocks() const override { return 0; }
  // The ring holds at least the query's own row, which was just written.
  [[nodiscard]] std::int64_t window_tokens() const override { return 1; }
  [[nodiscard]] bool selects_prompt() const override { return true; }
  [[nodiscard]] MetadataGeometry metadata() const override { return metadata_; }

 private:
  [[nodiscard]] Candidates candidates(std::int64_t length) const override { return {0, length}; }

  void score(LayerId /*layer*/, const kernels::ScoredRows& rows, const SelectionQueries& queries,
             const SelectionScratch& /*scratch*/, kernels::Backend& backend) const override {
    HS_CHECK(queries.index_q != nullptr && queries.index_weights != nullptr && queries.index_heads > 0,
             "DSA needs the indexer's queries");
    kernels::IndexScoresParams params;
    params.rows = rows;
    params.q = queries.index_q;
    params.q_stride = std::int64_t{queries.index_heads} * metadata_.dim;
    params.weights = queries.index_weights;
    params.heads = queries.index_heads;
    backend.index_scores(params);
  }

  std::int64_t top_k_;
  MetadataGeometry metadata_;
};

}  // namespace

Result<std::shared_ptr<const SelectionAlgorithm>> make_dsa(const DsaOptions& options) {
  if (options.top_k < 1 || options.top_k > kMostTokens)
    return invalid_argument(concat("index_topk is ", options.top_k, ": use 1 to ", kMostTokens), "index_topk");
  if (options.dim < 1 || options.dim > kMostChannels)
    return invalid_argument(concat("index_head_dim is ", options.dim, ": use 1 to ", kMostChannels), "index_head_dim");
  return std::shared_ptr<const SelectionAlgorithm>(std::make_shared<DsaSelection>(options));
}

}  // namespace hotset::sparse
