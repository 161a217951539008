// Regular expressions as tokenizer files write them (Oniguruma's Ruby syntax), run by PCRE2's JIT.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::model {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Span&) const = default;
};

// Immutable; find_all may be called by any number of threads.
class Pattern {
 public:
  // Fails with kInvalidArgument for syntax that has no exact equal here.
  [[nodiscard]] static Result<std::shared_ptr<const Pattern>> regex(std::string_view oniguruma);
  // Matches the text itself, which must not be empty.
  [[nodiscard]] static Result<std::shared_ptr<const Pattern>> literal(std::string_view text);

  // Appends the leftmost non-overlapping matches in `subject`, which must be valid UTF-8, as offsets plus `base`. An
  // empty match directly behind another match is left out. Fails with kInvalidArgument when a match takes too many
  // steps.
  [[nodiscard]] Result<void> find_all(std::string_view subject, std::size_t base, std::vector<Span>& out) const;

  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

 private:
  Pattern() = default;
  static Result<std::shared_ptr<const Pattern>> compile(std::string_view source, unsigned options);

  void* code_ = nullptr;  // pcre2_code
};

// The same expression for PCRE2 with UTF and UCP. What differs: \s, \w, \b and [:punct:] (other sets of characters),
// \h,
// \v, `{n,m}+` (repetition, not possessive), `{n}?`, `{,n}`, ^ and $ (always of a line), nested classes and `&&`.
[[nodiscard]] Result<std::string> translate_regex(std::string_view oniguruma);

}  // namespace hotset::model
