#include <gtest/gtest.h>

#include <random>

#include "model/tokenizer/stream_decoder.h"
#include "tests/model/tokenizer_fixtures.h"

namespace hotset::model {
namespace {

TEST(ReplaceInvalidUtf8, OneMarkPerMaximalBrokenPart) {
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(replace_invalid_utf8(""), "");
  EXPECT_EQ(replace_invalid_utf8("a\xc3\xa9z"), "a\xc3\xa9z");
  EXPECT_EQ(replace_invalid_utf8("\xff\xff"), mark + mark);
  EXPECT_EQ(replace_invalid_utf8("\xe6\xad"), mark);  // cut off
  EXPECT_EQ(replace_invalid_utf8("\xe6\xadz"), mark + "z");
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x98 \xf0\x9f"), mark + " " + mark);
  EXPECT_EQ(replace_invalid_utf8("\xc0\x80"), mark + mark);                        // overlong
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), mark + mark + mark);             // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80"), mark + mark + mark + mark);  // beyond U+10FFFF
}

TEST(Utf8Assembler, AnyCutsGiveTheSameText) {
  const unsigned seed = 4711;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"a",        "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xff",
                                          "\xe6\xad", "\xf0\x9f", "\x80",         "\xed\xa0\x80"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (unsigned i = 0; i < random() % 12; ++i) bytes += parts[random() % parts.size()];
    Utf8Assembler assembler;
    std::string out;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = 1 + random() % 3;
      const std::size_t before = out.size();
      assembler.append(std::string_view(bytes).substr(at, count), out);
      EXPECT_TRUE(is_valid_utf8(std::string_view(out).substr(before)));
      at += count;
    }
    assembler.finish(out);
    EXPECT_EQ(out, replace_invalid_utf8(bytes));
  }
}

class Stream : public testing::TestWithParam<std::string> {};

TEST_P(Stream, DeltasJoinToTheWhole) {
  const auto tokenizer = load_or_fail(fixture_text("tokenizers/" + GetParam() + ".json"));
  ASSERT_NE(tokenizer, nullptr);
  const unsigned seed = 99;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int32_t> ids;
    for (unsigned i = 0; i < random() % 40; ++i) {
      ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(tokenizer->vocabulary_size() + 3)));
    }
    const bool skip = round % 2 == 0;
    const TextPosition position = round % 3 == 0 ? TextPosition::kStart : TextPosition::kContinuation;
    StreamDecoder decoder(tokenizer, skip, position);
    std::string text;
    for (const std::int32_t id : ids) {
      const std::string delta = decoder.push(id);
      EXPECT_TRUE(is_valid_utf8(delta));
      text += delta;
    }
    text += decoder.flush();
    EXPECT_EQ(text, replace_invalid_utf8(tokenizer->decode(ids, skip, position)));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Stream, testing::Values("llama3", "fallback", "metaspace"));

TEST(StreamDecoder, HoldsBackAnUnfinishedCharacter) {
  const auto tokenizer = load_or_fail(fixture_text("tokenizers/fallback.json"));
  StreamDecoder decoder(tokenizer, true);
  EXPECT_EQ(decoder.push(*tokenizer->token_id("<0xF0>")), "");
  EXPECT_EQ(decoder.push(*tokenizer->token_id("<0x9F>")), "");
  EXPECT_EQ(decoder.push(*tokenizer->token_id("</s>")), "");  // skipped: the character goes on behind it
  EXPECT_EQ(decoder.push(*tokenizer->token_id("<0x98>")), "");
  EXPECT_EQ(decoder.push(*tokenizer->token_id("<0x80>")), "\xf0\x9f\x98\x80");
  EXPECT_EQ(decoder.push(*tokenizer->token_id("<0xE4>")), "");
  EXPECT_EQ(decoder.flush(), "\xef\xbf\xbd");
}

}  // namespace
}  // namespace hotset::model
