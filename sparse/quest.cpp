#include "sparse/quest.h"

#include <algorithm>

#include "core/check.h"
#include "core/concat.h"
#include "sparse/forced_blocks.h"
#include "sparse/scored_selection.h"

namespace hotset::sparse {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;

class QuestSelection final : public ScoredSelection {
 public:
  explicit QuestSelection(const QuestOptions& options) : options_(options) {
    metadata_.kind = MetadataGeometry::Kind::kBlockBounds;
    metadata_.kv_heads = options.kv_heads;
    metadata_.dim = options.key_dim;
    metadata_.block_tokens = static_cast<std::int32_t>(options.block_tokens);
    metadata_.dtype = options.rows_dtype == KvDType::kF32 ? KvDType::kF32 : KvDType::kBF16;
  }

  [[nodiscard]] std::string_view name() const override { return "quest"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return metadata_.block_tokens; }
  [[nodiscard]] std::int64_t max_blocks() const override { return options_.budget / options_.block_tokens; }
  [[nodiscard]] std::int64_t forced_blocks() const override {
    return most_forced_blocks(options_.block_tokens, options_.window);
  }
  [[nodiscard]] std::int64_t window_tokens() const override { return options_.window; }
  [[nodiscard]] MetadataGeometry metadata() const override { return metadata_; }
  [[nodiscard]] kernels::HeadCombine combine() const override { return options_.combine; }

 private:
  [[nodiscard]] Candidates candidates(std::int64_t length) const override {
    const std::int64_t first = std::min<std::int64_t>(length, 1);
    return {first, std::max(first_recent_block(length, options_.block_tokens, options_.window), first)};
  }

  void score(LayerId /*layer*/, const kernels::ScoredRows& rows, const SelectionQueries& queries,
             const SelectionScratch& scratch, kernels::Backend& backend) const override {
    kernels::BlockScoresParams params;
    params.rows = rows;
    params.q = queries.q;
    params.q_stride = queries.q_stride;
    params.first = scratch.first.data();
    params.last = scratch.last.data();
    params.heads = queries.heads;
    params.combine = options_.combine;
    params.scale = queries.scale;
    backend.block_scores(params);
  }

  QuestOptions options_;
  MetadataGeometry metadata_;
};

}  // namespace

Result<std::shared_ptr<const SelectionAlgorithm>> make_quest(const QuestOptions& options) {
  HS_CHECK(options.kv_heads > 0 && options.key_dim > 0, "Quest needs the shape of the keys");
  if (Result<void> checked = check_forced_blocks(options.block_tokens, options.window); !checked.ok())
    return checked.error();
  const std::int64_t least = most_forced_blocks(options.block_tokens, options.window) * options.block_tokens;
  if (options.budget < least || options.budget > kMostTokens)
    return invalid_argument(concat("--sparse-budget is ", options.budget, ": use at least ", least,
                                   ", the first and newest blocks that are always attended, and at most ", kMostTokens),
                            "--sparse-budget");
  return std::shared_ptr<const SelectionAlgorithm>(std::make_shared<QuestSelection>(options));
}

}  // namespace hotset::sparse
