// Cuts text into the pieces that BPE works on one by one, in the steps of the tokenizer file.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"
#include "model/tokenizer/pattern.h"

namespace hotset::model {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
enum class PrependScheme { kAlways, kFirst, kNever };  // kFirst: only where the whole text starts

struct SplitStep {
  std::shared_ptr<const Pattern> pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between the matches counts as the match
};
// Puts `prefix` before each piece that doesn't begin with it.
struct PrefixStep {
  std::string prefix;
  PrependScheme scheme = PrependScheme::kAlways;
};
struct ReplaceSpacesStep {
  std::string replacement;
};
// Writes the bytes in their printable spelling (byte_level.h).
struct ByteLevelStep {};

using PreTokenizerStep = std::variant<SplitStep, PrefixStep, ReplaceSpacesStep, ByteLevelStep>;

// Pieces in order, all of them inside one text, none empty. `text` may be the input itself: it must outlive this.
struct PieceList {
  std::string_view text;
  std::vector<Span> pieces;
  std::string storage;  // backs `text` once a step has rewritten it

  PieceList() = default;
  PieceList(const PieceList&) = delete;
  PieceList& operator=(const PieceList&) = delete;
};

class PreTokenizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  // A final ByteLevelStep is better left out and done by BPE, which maps single bytes without a copy of the text.
  bool drop_final_byte_level();

  // Fills `out` (used before or not). `at_text_start`: whether `text` starts the whole input.
  [[nodiscard]] Result<void> run(std::string_view text, bool at_text_start, PieceList& out) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace hotset::model
