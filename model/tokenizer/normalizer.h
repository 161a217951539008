// Rewrites text before it is cut into pieces, in the steps of the tokenizer file.
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

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

struct UnicodeStep {
  UnicodeForm form;
};
struct LowercaseStep {};  // each character by itself
struct ReplaceStep {
  std::shared_ptr<const Pattern> pattern;
  std::string content;
};
struct PrependStep {
  std::string text;  // before any text that isn't empty
};
struct StripStep {  // white space
  bool left = true;
  bool right = true;
};
using NormalizerStep = std::variant<UnicodeStep, LowercaseStep, ReplaceStep, PrependStep, StripStep>;

class Normalizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  // `text` is valid UTF-8, and so is the result.
  [[nodiscard]] Result<std::string> run(std::string_view text) const;

 private:
  std::vector<NormalizerStep> steps_;
};

// Every match replaced by `content`.
[[nodiscard]] Result<std::string> replace_matches(const Pattern& pattern, std::string_view text,
                                                  std::string_view content);

}  // namespace hotset::model
