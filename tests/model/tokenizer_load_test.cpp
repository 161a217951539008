// Files that break their format: each is refused with a sentence that names the entry, none crashes.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/model/tokenizer_fixtures.h"

namespace hotset::model {
namespace {

using nlohmann::json;

// a, b, c, ab, abc, the byte tokens that are given, and one added token.
json small_file() {
  return json::parse(R"({
    "added_tokens": [{"id": 8, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": true,
      "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "<0x0A>": 5, "<0x-1>": 6, "<0xZZ>": 7},
      "merges": ["a b", "ab c"]}})");
}

struct Broken {
  const char* name;
  std::function<void(json&)> change;
  ErrorCode code;
  const char* message;  // part of it
};

const Broken kBroken[] = {
    {"DuplicateId", [](json& f) { f["model"]["vocab"]["b"] = 0; }, ErrorCode::kCorrupt, "id 0 is given to two tokens"},
    {"Gap",
     [](json& f) {
       f["model"]["vocab"].erase("c");
       f["model"]["merges"] = {"a b"};
     },
     ErrorCode::kCorrupt, "no token for id 2"},
    {"IdBeyondVocabulary", [](json& f) { f["model"]["vocab"]["c"] = 200; }, ErrorCode::kCorrupt, "no token for id 2"},
    {"HugeId", [](json& f) { f["model"]["vocab"]["c"] = 1LL << 40; }, ErrorCode::kCorrupt, "out of range"},
    {"NegativeId", [](json& f) { f["model"]["vocab"]["c"] = -1; }, ErrorCode::kCorrupt, "out of range"},
    {"IdIsText", [](json& f) { f["model"]["vocab"]["c"] = "2"; }, ErrorCode::kCorrupt, "model.vocab"},
    {"IdIsFloat", [](json& f) { f["model"]["vocab"]["c"] = 2.5; }, ErrorCode::kCorrupt, "model.vocab"},
    {"VocabularyIsList", [](json& f) { f["model"]["vocab"] = json::array(); }, ErrorCode::kCorrupt, "model.vocab"},
    {"MergeOfUnknownToken", [](json& f) { f["model"]["merges"][1] = "ab x"; }, ErrorCode::kCorrupt, "merge 1 names"},
    {"MergeMakesUnknownToken", [](json& f) { f["model"]["merges"][1] = "b c"; }, ErrorCode::kCorrupt, "merge 1 makes"},
    {"MergeOfThree", [](json& f) { f["model"]["merges"][0] = "a b c"; }, ErrorCode::kCorrupt, "model.merges[0]"},
    {"MergeIsNumber", [](json& f) { f["model"]["merges"][0] = 7; }, ErrorCode::kCorrupt, "model.merges[0]"},
    {"MergePairOfNumbers", [](json& f) { f["model"]["merges"][0] = {1, 2}; }, ErrorCode::kCorrupt, "model.merges[0]"},
    {"AddedIdTaken", [](json& f) { f["added_tokens"][0]["id"] = 3; }, ErrorCode::kCorrupt, "of another token"},
    {"AddedIdContradicts", [](json& f) { f["added_tokens"][0]["content"] = "a"; }, ErrorCode::kCorrupt, "gives it 0"},
    {"AddedIdIsText", [](json& f) { f["added_tokens"][0]["id"] = "8"; }, ErrorCode::kCorrupt, "added_tokens[0].id"},
    {"AddedIdHuge", [](json& f) { f["added_tokens"][0]["id"] = 1U << 31; }, ErrorCode::kCorrupt, "added_tokens[0].id"},
    {"AddedTwice", [](json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, ErrorCode::kCorrupt, "repeats"},
    {"AddedFlagIsText", [](json& f) { f["added_tokens"][0]["special"] = "yes"; }, ErrorCode::kCorrupt, "special"},
    {"TemplateIdOutside", [](json& f) { f["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 99; },
     ErrorCode::kCorrupt, "99"},
    {"NoDecoder", [](json& f) { f.erase("decoder"); }, ErrorCode::kCorrupt, "decoder is missing"},
    {"Unigram", [](json& f) { f["model"]["type"] = "Unigram"; }, ErrorCode::kInvalidArgument, "'Unigram'"},
    {"WordPiece", [](json& f) { f["model"]["type"] = "WordPiece"; }, ErrorCode::kInvalidArgument, "'WordPiece'"},
    {"UnknownPreTokenizer", [](json& f) { f["pre_tokenizer"] = {{"type", "UnicodeScripts"}}; },
     ErrorCode::kInvalidArgument, "'UnicodeScripts'"},
    {"UnknownNormalizer", [](json& f) { f["normalizer"] = {{"type", "Precompiled"}}; }, ErrorCode::kInvalidArgument,
     "'Precompiled'"},
    {"BadRegex",
     [](json& f) {
       f["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(("}}}, {"behavior", "Isolated"}};
     },
     ErrorCode::kInvalidArgument, "pre_tokenizer"},
    {"EmptyPattern",
     [](json& f) { f["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", ""}}}, {"behavior", "Isolated"}}; },
     ErrorCode::kInvalidArgument, "empty pattern"},
    {"ModelIsMissing", [](json& f) { f.erase("model"); }, ErrorCode::kCorrupt, "model must be an object"},
};

class BrokenFile : public testing::TestWithParam<Broken> {};

TEST_P(BrokenFile, IsRefusedByName) {
  json file = small_file();
  GetParam().change(file);
  const auto loaded = load_tokenizer_json(file.dump());
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, GetParam().code) << loaded.error().message;
  EXPECT_NE(loaded.error().message.find(GetParam().message), std::string::npos) << loaded.error().message;
  EXPECT_TRUE(loaded.error().message.starts_with("tokenizer.json: ")) << loaded.error().message;
}

INSTANTIATE_TEST_SUITE_P(TokenizerJson, BrokenFile, testing::ValuesIn(kBroken),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(SmallFile, MergesFallsBackAndAddsTokens) {
  const auto tokenizer = load_or_fail(small_file().dump());
  EXPECT_EQ(ids_or_fail(*tokenizer, "abcab\na", {.add_special_tokens = true}),
            (std::vector<std::int32_t>{8, 4, 3, 5, 0}));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{4, 5, 8}, false), "abc\n<s>");
}

TEST(SmallFile, MalformedByteTokensAreText) {
  const auto tokenizer = load_or_fail(small_file().dump());
  EXPECT_EQ(tokenizer->token_bytes(5), "\n");
  EXPECT_EQ(tokenizer->token_bytes(6), "<0x-1>");
  EXPECT_EQ(tokenizer->token_bytes(7), "<0xZZ>");
}

TEST(SmallFile, BothSpellingsOfMergesAreEqual) {
  json pairs = small_file();
  pairs["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  const auto tokenizer = load_or_fail(pairs.dump());
  EXPECT_EQ(ids_or_fail(*tokenizer, "abc"), std::vector<std::int32_t>{4});
}

TEST(SmallFile, NotJsonIsRefused) {
  for (const std::string text : {"", "{", "null", "[]", "\xff"}) EXPECT_FALSE(load_tokenizer_json(text).ok()) << text;
  EXPECT_FALSE(load_tokenizer_json(std::string(200'000, '[')).ok());
}

TEST(SmallFile, StepsNestedWithoutEndAreRefused) {
  constexpr int kDeep = 50'000;
  std::string steps;
  for (int i = 0; i < kDeep; ++i) steps += R"({"type":"Sequence","normalizers":[)";
  for (int i = 0; i < kDeep; ++i) steps += "]}";
  json file = small_file();
  file["normalizer"] = "STEPS";
  std::string text = file.dump();
  text.replace(text.find("\"STEPS\""), 7, steps);
  const auto loaded = load_tokenizer_json(text);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(loaded.error().message.find("nested"), std::string::npos);
  // Brackets inside texts are no nesting.
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1000, '[') + "\"" + std::string(1000, '{')}};
  EXPECT_TRUE(load_tokenizer_json(file.dump()).ok());
}

TEST(SmallFile, UnknownBosIsRefused) {
  const auto loaded = load_tokenizer_json(small_file().dump(), {.bos_token = "<none>"});
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("bos_token"), std::string::npos);
}

// Damaged bytes: a load either fails with a message, or gives a tokenizer that works.
TEST(SmallFile, RandomDamageNeverCrashes) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> files = {small_file().dump(), fixture_text("tokenizers/metaspace.json"),
                                    fixture_text("tokenizers/deepseek.json")};
  // The large files' heads hold all steps; damage there, and only a few rounds, keeps the test short.
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t which = round % 100 == 0 ? 1 + static_cast<std::size_t>(round / 100 % 2) : 0;
    std::string text = files[which];
    for (unsigned i = 0; i <= random() % 3; ++i) {
      const std::size_t range = std::min<std::size_t>(text.size(), 2000);
      const std::size_t at = random() % range;
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text[at] = "0123456789\"{}[],:-e"[random() % 19]; break;
        case 2: text.erase(at, 1 + random() % 8); break;
        default: text.insert(at, text.substr(random() % range, random() % 12)); break;
      }
    }
    const auto loaded = load_tokenizer_json(text);
    if (!loaded) {
      EXPECT_FALSE(loaded.error().message.empty());
      ++refused;
      continue;
    }
    const auto ids = loaded.value()->encode("abc\nab <s> \xc3\xa9\xe4\xb8\xad 123", {.add_special_tokens = true});
    if (ids) {
      EXPECT_LT(loaded.value()->decode(ids.value(), false).size(), 10'000U);
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

GgufTokenizerData small_gguf() {
  GgufTokenizerData data;
  data.model = "gpt2";
  data.pre = "llama-bpe";
  data.tokens = {"a", "b", "ab", "<s>", "<tool>"};
  data.token_types = {1, 1, 1, 3, 4};
  data.merges = {"a b"};
  data.bos_id = 3;
  return data;
}

TEST(Gguf, AddsBosWhereTheFamilyDoes) {
  GgufTokenizerData data = small_gguf();
  auto loaded = load_gguf_tokenizer(data);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_TRUE(loaded.value()->adds_bos());
  EXPECT_EQ(ids_or_fail(*loaded.value(), "ab<tool><s>", {.add_special_tokens = true}),
            (std::vector<std::int32_t>{3, 2, 4, 3}));
  data.add_bos = false;
  EXPECT_FALSE(load_gguf_tokenizer(data).value()->adds_bos());
}

TEST(Gguf, EveryPreTokenizerLoads) {
  for (const char* name : {"", "default", "smollm", "gpt-2", "llama-bpe", "glm4", "qwen2", "qwen35", "gpt-4o", "tekken",
                           "deepseek-v3", "deepseek-coder", "falcon", "kimi-k2", "bailingmoe", "seed-coder"}) {
    GgufTokenizerData data = small_gguf();
    data.pre = name;
    const auto loaded = load_gguf_tokenizer(data);
    ASSERT_TRUE(loaded.ok()) << name << ": " << loaded.error().message;
    EXPECT_EQ(ids_or_fail(*loaded.value(), "abab"), (std::vector<std::int32_t>{2, 2})) << name;
  }
}

TEST(Gguf, BrokenArraysAreRefusedByName) {
  const auto message = [](const std::function<void(GgufTokenizerData&)>& change) {
    GgufTokenizerData data = small_gguf();
    change(data);
    const auto loaded = load_gguf_tokenizer(data);
    return loaded ? std::string("loaded") : loaded.error().message;
  };
  const auto has = [&](const std::function<void(GgufTokenizerData&)>& change, std::string_view part) {
    const std::string text = message(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has([](auto& d) { d.model = "llama"; }, "'llama'");
  has([](auto& d) { d.model = "bert"; }, "'bert'");
  has([](auto& d) { d.pre = "no-such-thing"; }, "'no-such-thing'");
  has([](auto& d) { d.tokens.clear(); }, "tokens is empty");
  has([](auto& d) { d.token_types.pop_back(); }, "token_type has 4 entries for 5");
  has([](auto& d) { d.token_types[1] = 9; }, "token_type[1]");
  has([](auto& d) { d.tokens[1] = "a"; }, "same text as token 0");
  has([](auto& d) { d.tokens[1] = "\xff"; }, "tokens[1]");
  has([](auto& d) { d.merges[0] = "ab"; }, "merges[0]");
  has([](auto& d) { d.merges[0] = "b x"; }, "merge 0");
  has([](auto& d) { d.bos_id = 5; }, "bos_token_id");
  has([](auto& d) { d.eos_id = -1; }, "eos_token_id");
}

}  // namespace
}  // namespace hotset::model
