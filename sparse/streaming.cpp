#include <algorithm>

#include "core/check.h"
#include "core/concat.h"
#include "core/kv_geometry.h"
#include "sparse/selection.h"

namespace hotset::sparse {
namespace {

constexpr std::int64_t kMostWindowTokens = std::int64_t{1} << 28;

class StreamingSelection final : public SelectionAlgorithm {
 public:
  StreamingSelection(std::int32_t block_tokens, std::int64_t window_tokens)
      : block_tokens_(block_tokens), window_tokens_(window_tokens) {}

  [[nodiscard]] std::string_view name() const override { return "streaming"; }
  [[nodiscard]] std::int32_t block_tokens() const override { return block_tokens_; }
  // The first block, and those of a window whose oldest token is the last of its block.
  [[nodiscard]] std::int64_t max_blocks() const override { return 2 + ceil_div(window_tokens_ - 1, block_tokens_); }
  [[nodiscard]] std::int64_t forced_blocks() const override { return max_blocks(); }
  [[nodiscard]] std::int64_t window_tokens() const override { return window_tokens_; }

  void select(LayerId, std::span<const SelectionRow> rows, const SelectionQueries&, kernels::Backend&,
              SelectionScratch&, SelectionList& out) const override {
    for (const SelectionRow& row : rows) {
      const std::int64_t last = (row.length - 1) / block_tokens_;
      const std::int64_t first_recent = std::max<std::int64_t>(0, row.length - window_tokens_) / block_tokens_;
      if (first_recent > 0) out.blocks.push_back(0);
      for (std::int64_t block = first_recent; block <= last; ++block)
        out.blocks.push_back(static_cast<std::int32_t>(block));
      out.offsets.push_back(static_cast<std::int64_t>(out.blocks.size()));
    }
  }

 private:
  std::int32_t block_tokens_;
  std::int64_t window_tokens_;
};

}  // namespace

void SelectionAlgorithm::append(LayerId, const MetadataRows&, kernels::Backend&) const {
  HS_CHECK(false, "an algorithm without metadata appends none");
}

Result<std::shared_ptr<const SelectionAlgorithm>> make_streaming(std::int64_t block_tokens,
                                                                 std::int64_t window_tokens) {
  if (block_tokens < 1 || kPageTokens % block_tokens != 0)
    return invalid_argument(concat("--sparse-block is ", block_tokens, ": use 1, 2, 4, 8, 16, 32 or 64"),
                            "--sparse-block");
  // A window of 0 would leave the query's own token out whenever its block is full.
  if (window_tokens < 1 || window_tokens > kMostWindowTokens)
    return invalid_argument(concat("--sparse-window is ", window_tokens, ": use 1 to ", kMostWindowTokens),
                            "--sparse-window");
  return std::shared_ptr<const SelectionAlgorithm>(
      std::make_shared<StreamingSelection>(static_cast<std::int32_t>(block_tokens), window_tokens));
}

}  // namespace hotset::sparse
