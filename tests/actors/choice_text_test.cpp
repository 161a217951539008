#include "actors/choice_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fakes.h"

namespace hotset::actors {
namespace {

using fakes::bytes_of;

// What a client has after all deltas, and whether every entry came only when its place was sure.
struct Answer {
  std::string text;
  std::vector<std::int64_t> offsets;
  bool entries_came_early = false;
};

std::int64_t characters(const std::string& text) {
  std::int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

// `step`: tokens per engine output.
Answer answer(const GenerationRequest& request, const std::vector<std::int32_t>& prompt,
              const std::vector<std::int32_t>& tokens, OutputEnd end, std::size_t step, bool with_tokenizer = true) {
  ChoiceText choice(0, std::make_shared<const GenerationRequest>(request),
                    std::make_shared<const std::vector<std::int32_t>>(prompt),
                    with_tokenizer ? fakes::byte_tokenizer() : nullptr);
  Answer out;
  const auto take = [&out](const std::optional<ChoiceDelta>& delta) {
    if (!delta) return;
    out.text += delta->text;
    for (const TokenLogprob& entry : delta->logprobs) {
      out.offsets.push_back(entry.text_offset);
      out.entries_came_early |= entry.text_offset > characters(out.text);
    }
  };
  take(choice.start());
  for (std::size_t first = 0; first < tokens.size() && !choice.finished(); first += step) {
    SequenceOutput output;
    for (std::size_t i = 1; request.echo && first == 0 && i < prompt.size(); ++i) {
      output.prompt_logprobs.push_back({.token = prompt[i], .logprob = -1, .top = {}});
    }
    for (std::size_t i = first; i < std::min(first + step, tokens.size()); ++i) {
      output.tokens.push_back({.token = tokens[i], .logprob = -1, .top = {}});
    }
    if (first + step >= tokens.size()) output.end = end;
    take(choice.add(output));
  }
  EXPECT_TRUE(choice.finished());
  return out;
}

GenerationRequest scored(bool echo = false, std::vector<std::string> stop = {}) {
  GenerationRequest request;
  request.sampling.logprobs = 0;
  request.echo = echo;
  request.stop = std::move(stop);
  return request;
}

using Offsets = std::vector<std::int64_t>;

// Streamed token by token and in one piece.
void expect_offsets(const GenerationRequest& request, const std::vector<std::int32_t>& prompt,
                    const std::vector<std::int32_t>& tokens, OutputEnd end, const std::string& text,
                    const Offsets& offsets) {
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}, tokens.size()}) {
    const Answer got = answer(request, prompt, tokens, end, step);
    EXPECT_EQ(got.text, text) << "step " << step;
    EXPECT_EQ(got.offsets, offsets) << "step " << step;
    EXPECT_FALSE(got.entries_came_early) << "step " << step;
  }
}

TEST(ChoiceTextOffsets, SkippedSpecialTokensTakeNoPlace) {
  const std::vector<std::int32_t> prompt = {fakes::kBos, 'h', 'i', fakes::kEnd, '\n'};
  expect_offsets(scored(true), prompt, bytes_of("ab"), OutputEnd::kMaxTokens, "hi\nab", {0, 0, 1, 2, 2, 3, 4});
  GenerationRequest shown = scored(true);
  shown.skip_special_tokens = false;
  expect_offsets(shown, prompt, bytes_of("ab"), OutputEnd::kMaxTokens, "<s>hi<|end|>\nab", {0, 3, 4, 5, 12, 13, 14});
  const std::vector<std::int32_t> tokens = {'a', fakes::kEnd, 'b', fakes::kEos};
  expect_offsets(scored(), {'p'}, tokens, OutputEnd::kStopToken, "ab", {0, 1, 1, 2});
}

TEST(ChoiceTextOffsets, PartsOfACharacterShareItsPlace) {
  expect_offsets(scored(), {'p'}, bytes_of("a\xF0\x9F\x98\x80z"), OutputEnd::kMaxTokens, "a\xF0\x9F\x98\x80z",
                 {0, 1, 1, 1, 1, 2});
  expect_offsets(scored(true), bytes_of("\xC3\xA9"), bytes_of("\xC3\xA9z"), OutputEnd::kMaxTokens, "\xC3\xA9\xC3\xA9z",
                 {0, 0, 1, 1, 2});
  // Broken parts become one character each.
  expect_offsets(scored(), {'p'}, bytes_of("\xC3z\xA9\xE0\x80"), OutputEnd::kMaxTokens,
                 "\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", {0, 1, 2, 3, 4});
}

TEST(ChoiceTextOffsets, NeverBeyondATextThatAStopStringCut) {
  expect_offsets(scored(false, {"END"}), {'p'}, bytes_of("ab END"), OutputEnd::kNone, "ab ", {0, 1, 2, 3, 3, 3});
  expect_offsets(scored(false, {"END"}), {'p'}, bytes_of("ENENx"), OutputEnd::kMaxTokens, "ENENx", {0, 1, 2, 3, 4});
  GenerationRequest kept = scored(false, {"END"});
  kept.include_stop_str_in_output = true;
  expect_offsets(kept, {'p'}, bytes_of("ab END"), OutputEnd::kNone, "ab END", {0, 1, 2, 3, 4, 5});
}

TEST(ChoiceTextOffsets, WithoutTokenizerTheTextIsEmpty) {
  const Answer got = answer(scored(true), {5, 6}, {7, 8}, OutputEnd::kMaxTokens, 1, false);
  EXPECT_EQ(got.text, "");
  EXPECT_EQ(got.offsets, (Offsets{0, 0, 0, 0}));
}

}  // namespace
}  // namespace hotset::actors
