#include <memory>

#include "core/concat.h"
#include "sparse/forced_blocks.h"
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
  [[nodiscard]] std::int64_t max_blocks() const override { return forced_blocks(); }
  [[nodiscard]] std::int64_t forced_blocks() const override {
    return most_forced_blocks(block_tokens_, window_tokens_);
  }
  [[nodiscard]] std::int64_t window_tokens() const override { return window_tokens_; }

  [[nodiscard]] Candidates candidates(std::int64_t length) const override {
    const std::int64_t first = std::min<std::int64_t>(length, 1);
    return {first, std::max(first_recent_block(length, block_tokens_, window_tokens_), first)};
  }

  void select(LayerId /*layer*/, std::span<const SelectionRow> rows, const SelectionQueries& /*queries*/,
              kernels::Backend& /*backend*/, SelectionScratch& /*scratch*/, SelectionList& out) const override {
    for (const SelectionRow& row : rows) {
      const std::int64_t blocks = ceil_div(row.length, block_tokens_);
      const std::int64_t first_recent = first_recent_block(row.length, block_tokens_, window_tokens_);
      if (first_recent > 0) out.blocks.push_back(0);
      for (std::int64_t block = first_recent; block < blocks; ++block)
        out.blocks.push_back(static_cast<std::int32_t>(block));
      out.offsets.push_back(static_cast<std::int64_t>(out.blocks.size()));
    }
  }

 private:
  std::int32_t block_tokens_;
  std::int64_t window_tokens_;
};

}  // namespace

Result<void> check_forced_blocks(std::int64_t block_tokens, std::int64_t window) {
  if (block_tokens < 1 || kPageTokens % block_tokens != 0)
    return invalid_argument(concat("--sparse-block is ", block_tokens, ": use 1, 2, 4, 8, 16, 32 or 64"),
                            "--sparse-block");
  // A window of 0 would leave the query's own token out whenever its block is full.
  if (window < 1 || window > kMostWindowTokens)
    return invalid_argument(concat("--sparse-window is ", window, ": use 1 to ", kMostWindowTokens), "--sparse-window");
  return {};
}

Result<std::shared_ptr<const SelectionAlgorithm>> make_streaming(std::int64_t block_tokens,
                                                                 std::int64_t window_tokens) {
  if (Result<void> checked = check_forced_blocks(block_tokens, window_tokens); !checked.ok()) return checked.error();
  return std::shared_ptr<const SelectionAlgorithm>(
      std::make_shared<StreamingSelection>(static_cast<std::int32_t>(block_tokens), window_tokens));
}

}  // namespace hotset::sparse
