// The default model's tokenizer, from tokenizer.json and from the arrays that its GGUF file holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/model/tokenizer_fixtures.h"

namespace hotset::model {
namespace {

using nlohmann::json;

std::shared_ptr<const Tokenizer> from_json() {
  static const auto tokenizer =
      load_or_fail(read_text(HOTSET_SMOLLM2_TOKENIZER), {.bos_token = "<|im_start|>", .eos_token = "<|im_end|>"});
  return tokenizer;
}

// The GGUF file of the model holds the same tokens by id, its 17 added tokens as control tokens, and merges as strings.
GgufTokenizerData gguf_data() {
  const json file = json::parse(read_text(HOTSET_SMOLLM2_TOKENIZER));
  GgufTokenizerData data;
  data.model = "gpt2";
  data.pre = "smollm";
  data.tokens.resize(file["model"]["vocab"].size());
  for (const auto& [text, id] : file["model"]["vocab"].items()) data.tokens.at(id.get<std::size_t>()) = text;
  data.token_types.assign(data.tokens.size(), 1);
  for (const auto& token : file["added_tokens"]) data.token_types.at(token["id"].get<std::size_t>()) = 3;
  for (const auto& merge : file["model"]["merges"]) {
    data.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  data.bos_id = 1;
  data.eos_id = 2;
  data.add_bos = false;
  return data;
}

std::shared_ptr<const Tokenizer> from_gguf() {
  static const auto tokenizer = [] {
    auto loaded = load_gguf_tokenizer(gguf_data());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return loaded ? loaded.value() : nullptr;
  }();
  return tokenizer;
}

class SmolLm2 : public testing::TestWithParam<std::shared_ptr<const Tokenizer> (*)()> {
 protected:
  void SetUp() override {
    tokenizer_ = GetParam()();
    ASSERT_NE(tokenizer_, nullptr);
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(SmolLm2, DifficultStringsAreTheReferences) {
  const json expected = fixture_json("smollm2/expected.json");
  ASSERT_EQ(expected["tokenize"].size(), 79U);
  for (const auto& one : expected["tokenize"]) {
    const auto text = one["text"].get<std::string>();
    const auto ids = ids_or_fail(*tokenizer_, text);
    EXPECT_EQ(ids, one["ids"].get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(tokenizer_->decode(ids, false), one["decoded"].get<std::string>());
  }
}

TEST_P(SmolLm2, ChatPromptsAreTheReferences) {
  const json expected = fixture_json("smollm2/expected.json");
  ASSERT_EQ(expected["chat_prompts"].size(), 12U);
  for (const auto& one : expected["chat_prompts"]) {
    EXPECT_EQ(ids_or_fail(*tokenizer_, one["prompt"].get<std::string>()), one["ids"].get<std::vector<std::int32_t>>());
  }
}

TEST_P(SmolLm2, ControlTokensInPlainTextAreText) {
  const std::string text = "hi<|im_end|>\n<|im_start|>system";
  const auto parsed = ids_or_fail(*tokenizer_, text);
  const auto plain = ids_or_fail(*tokenizer_, text, {.parse_special = false});
  EXPECT_EQ(std::count_if(parsed.begin(), parsed.end(), [&](auto id) { return tokenizer_->is_special(id); }), 2);
  EXPECT_TRUE(std::none_of(plain.begin(), plain.end(), [&](auto id) { return tokenizer_->is_special(id); }));
  EXPECT_EQ(tokenizer_->decode(plain, true), text);
  EXPECT_EQ(tokenizer_->decode(parsed, true), "hi\nsystem");
}

TEST_P(SmolLm2, NamesItsTokens) {
  EXPECT_EQ(tokenizer_->vocabulary_size(), 49152);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
  EXPECT_FALSE(tokenizer_->adds_bos());
  EXPECT_EQ(tokenizer_->token_id("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer_->token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer_->token_bytes(33662), " hello");
  EXPECT_EQ(tokenizer_->token_bytes(2), "<|im_end|>");
  EXPECT_EQ(tokenizer_->token_bytes(-1), "");
  EXPECT_EQ(tokenizer_->token_bytes(49152), "");
}

TEST_P(SmolLm2, AMillionEqualLettersTakeLessThanASecond) {
  const std::string text(1'000'000, 'a');
  const auto start = std::chrono::steady_clock::now();
  const auto ids = ids_or_fail(*tokenizer_, text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(tokenizer_->decode(ids, false), text);
  // A quadratic merge would take minutes; the limit leaves room for instrumented builds and busy machines.
  EXPECT_LT(seconds.count(), 20.0);
}

TEST_P(SmolLm2, ManyThreadsAgree) {
  const std::string text = fixture_text("smollm2/expected.json");
  const auto expected = ids_or_fail(*tokenizer_, text);
  std::atomic<int> equal{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { equal += ids_or_fail(*tokenizer_, text) == expected ? 1 : 0; });
  threads.clear();
  EXPECT_EQ(equal, 4);
}

TEST_P(SmolLm2, InvalidUtf8IsRefused) {
  for (const std::string_view text : {"\xe6\xad", "a\xff", "\xed\xa0\x80", "\xc0\x80"}) {
    const auto ids = tokenizer_->encode(text);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SmolLm2, testing::Values(&from_json, &from_gguf));

}  // namespace
}  // namespace hotset::model
