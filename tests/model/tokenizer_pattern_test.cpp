// Oniguruma's reading of patterns, each expectation taken from the `tokenizers` library.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "model/tokenizer/pattern.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace hotset::model {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(std::shared_ptr<const Pattern> pattern, std::string_view text, SplitBehavior behavior,
             bool invert = false) {
  PreTokenizer splitter;
  splitter.add(SplitStep{std::move(pattern), behavior, invert});
  PieceList list;
  const auto done = splitter.run(text, true, list);
  EXPECT_TRUE(done.ok());
  Pieces out;
  for (const Span piece : list.pieces) out.emplace_back(list.text.substr(piece.begin, piece.end - piece.begin));
  return out;
}

Pieces isolated(std::string_view regex, std::string_view text) {
  auto pattern = Pattern::regex(regex);
  EXPECT_TRUE(pattern.ok()) << regex;
  return pattern ? split(pattern.value(), text, SplitBehavior::kIsolated) : Pieces{};
}

TEST(Pattern, AnchorsBelongToLines) {
  EXPECT_EQ(isolated("a$", "a\nba\na"), (Pieces{"a", "\nb", "a", "\n", "a"}));
  EXPECT_EQ(isolated("^a", "a\na\nb"), (Pieces{"a", "\n", "a", "\nb"}));
}

TEST(Pattern, IntervalsAreRubys) {
  EXPECT_EQ(isolated("x{1,3}+", "xxxxxxx"), (Pieces{"xxxxxxx"}));
  EXPECT_EQ(isolated("x{2}?", "xxx"), (Pieces{"xx", "x"}));
  EXPECT_EQ(isolated("x{,2}", "xxxxx"), (Pieces{"xx", "xx", "x"}));
  EXPECT_EQ(isolated("x{a", "x{a"), (Pieces{"x{a"}));
}

TEST(Pattern, SetsAreUnicodes) {
  EXPECT_EQ(isolated(R"(\s+)", "a\u180e\u00a0\u3000b"), (Pieces{"a\u180e", "\u00a0\u3000", "b"}));
  EXPECT_EQ(isolated(R"([^\s]+)", "a\u180e b"), (Pieces{"a\u180e", " ", "b"}));
  EXPECT_EQ(isolated(R"(\h+)", "xabz"), (Pieces{"x", "ab", "z"}));
  EXPECT_EQ(isolated(R"([[:punct:]]+)", "a+€!b"), (Pieces{"a", "+€!", "b"}));
  EXPECT_EQ(isolated(R"(\w+)", "e\u0301 x"), (Pieces{"e\u0301", " ", "x"}));
  EXPECT_EQ(isolated("(?i:'s|'re)", "a'\u017f b'RE"), (Pieces{"a", "'\u017f", " b", "'RE"}));
}

TEST(Pattern, NestedSetsAndIntersections) {
  EXPECT_EQ(isolated(R"([\p{L}&&[^\p{Han}]]+)", "ab漢字cd"), (Pieces{"ab", "漢字", "cd"}));
  EXPECT_EQ(isolated("[a[bc]]+", "abcd"), (Pieces{"abc", "d"}));
  // The ideographic full stop is used with Han script but doesn't belong to it.
  EXPECT_EQ(isolated(R"(\p{Han}+)", "漢。字"), (Pieces{"漢", "。", "字"}));
}

TEST(Pattern, EmptyMatchesCut) { EXPECT_EQ(isolated("(?=[A-Z])", "aBcDE"), (Pieces{"a", "Bc", "D", "E"})); }

TEST(Pattern, UnsupportedSyntaxIsAnError) {
  for (const char* regex :
       {"(", "[a", "[a&&b&&c]", R"(\Qa\E)", R"([\W])", "(?x:a)", "[[:what:]]", "\\", R"(\p{L)", "a)"}) {
    const auto pattern = Pattern::regex(regex);
    ASSERT_FALSE(pattern.ok()) << regex;
    EXPECT_EQ(pattern.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Pattern, LongRunsStayLinear) {
  const auto pattern = Pattern::regex(R"(\s+(?!\S)|\s+|\p{L}+|[^\s\p{L}]+)");
  ASSERT_TRUE(pattern.ok());
  for (const char c : {' ', 'a', '!'}) {
    std::vector<Span> matches;
    const std::string text(1'000'000, c);
    ASSERT_TRUE(pattern.value()->find_all(text, 5, matches).ok());
    EXPECT_EQ(matches, (std::vector<Span>{{5, 1'000'005}}));
  }
}

TEST(SplitStep, BehavesAsNamed) {
  const auto dash = [] { return Pattern::literal("-").value(); };
  const std::string_view text = "the-final--countdown";
  EXPECT_EQ(split(dash(), text, SplitBehavior::kRemoved), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split(dash(), text, SplitBehavior::kIsolated), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(dash(), text, SplitBehavior::kMergedWithPrevious), (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(dash(), text, SplitBehavior::kMergedWithNext), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split(dash(), text, SplitBehavior::kContiguous), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split(dash(), text, SplitBehavior::kRemoved, true), (Pieces{"-", "-", "-"}));
}

}  // namespace
}  // namespace hotset::model
