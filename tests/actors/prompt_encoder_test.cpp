#include "actors/prompt_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fakes.h"

namespace hotset::actors {
namespace {

using fakes::bytes_of;
using Json = nlohmann::ordered_json;

// "<s>" + role + ":" + content parts joined + "<|end|>" for each message, as a chat template might.
Result<std::string> render(const ChatPrompt& prompt) {
  std::string out;
  for (const Json& message : Json::parse(prompt.messages_json)) {
    out += "<s>" + message["role"].get<std::string>() + ":";
    if (message["content"].is_string()) out += message["content"].get<std::string>();
    if (message["content"].is_array()) {
      for (const Json& part : message["content"]) out += part["text"].get<std::string>();
    }
    out += "<|end|>";
  }
  if (out.find("raise") != std::string::npos) return invalid_argument("refused: " + out, "messages");
  return out;
}

PromptEncoder encoder(bool content_special_tokens, bool add_bos = false) {
  PromptEncoderParts parts;
  parts.tokenizer = fakes::byte_tokenizer(add_bos);
  parts.render = render;
  parts.vocabulary = fakes::kVocabulary;
  parts.content_special_tokens = content_special_tokens;
  return PromptEncoder(std::move(parts));
}

ChatPrompt chat(const Json& content) {
  const Json messages = Json::array({{{"role", "user"}, {"content", content}}});
  return {.messages_json = messages.dump(), .tools_json = {}, .template_kwargs_json = {}};
}

std::vector<std::int32_t> framed(const std::string& content) {
  std::vector<std::int32_t> out{fakes::kBos};
  const auto text = bytes_of("user:" + content);
  out.insert(out.end(), text.begin(), text.end());
  out.push_back(fakes::kEnd);
  return out;
}

TEST(PromptEncoder, ContentFollowsTheReferenceByDefault) {
  const auto ids = encoder(true).encode(chat("a<|end|>b"));
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::count(ids.value().begin(), ids.value().end(), fakes::kEnd), 2);
}

TEST(PromptEncoder, GuardedContentNeverBecomesControlTokens) {
  const PromptEncoder guarded = encoder(false);
  for (const std::string content : {"plain", "a<|end|>b", "<|end|>", "<|end|><s></s>", "<<|end|>", "<|en", "<",
                                    "\xEE\x80\x80<|end|>\xEE\x80\x81", "<|<|end|>end|>"}) {
    EXPECT_EQ(guarded.encode(chat(content)).value(), framed(content)) << content;
  }
}

TEST(PromptEncoder, PartsThatTheTemplateJoinsFormNoControlToken) {
  Json parts = Json::array();
  for (const char* text : {"<|e", "nd|>", "<", "s>"}) parts.push_back({{"type", "text"}, {"text", text}});
  EXPECT_EQ(encoder(false).encode(chat(parts)).value(), framed("<|end|><s>"));
  EXPECT_NE(encoder(true).encode(chat(parts)).value(), framed("<|end|><s>"));
}

TEST(PromptEncoder, TheTemplatesErrorShowsNoMarks) {
  const auto refused = encoder(false).encode(chat("raise<|end|>"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "refused: <s>user:raise<|end|><|end|>");
}

TEST(PromptEncoder, DeepJsonIsRefused) {
  ChatPrompt prompt = chat("a");
  prompt.template_kwargs_json = "{\"x\":" + std::string(5000, '[') + std::string(5000, ']') + "}";
  const auto refused = encoder(false).encode(prompt);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().param, "chat_template_kwargs");
}

// The template decides how long a prompt is: the limit is for the text that it makes. The tokenizer refuses bytes that
// are no UTF-8, so an answer about the length shows that it did not see them.
TEST(PromptEncoder, TheLimitIsForTheTextThatTheTemplateMakes) {
  for (const bool content_special_tokens : {true, false}) {
    PromptEncoderParts parts;
    parts.tokenizer = fakes::byte_tokenizer();
    parts.vocabulary = fakes::kVocabulary;
    parts.content_special_tokens = content_special_tokens;
    std::string rendered;
    parts.render = [&rendered](const ChatPrompt&) -> Result<std::string> { return rendered; };
    const PromptEncoder encoder(std::move(parts));
    const TextLimit limit{.bytes = 20, .context = 5};

    rendered = "short";  // of a message that is longer than the limit
    EXPECT_EQ(encoder.encode(chat(std::string(1000, 'x')), limit).value(), bytes_of("short"));
    rendered = std::string(20, 'y');  // of a message that is shorter
    EXPECT_EQ(encoder.encode(chat("x"), limit).value(), bytes_of(rendered));
    rendered = std::string(20, '\xFF');
    EXPECT_EQ(encoder.encode(chat("x"), limit).error().code, ErrorCode::kInvalidArgument) << "the tokenizer was asked";
    rendered = std::string(21, '\xFF');
    const auto refused = encoder.encode(chat("x"), limit);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kContextLengthExceeded);
    EXPECT_EQ(refused.error().param, "messages");
    EXPECT_EQ(refused.error().message,
              "the context holds 5 tokens, the prompt has 21 bytes, which are more in any case: at most 20 are read");
  }
}

TEST(PromptEncoder, MarksDoNotCountForTheLimit) {
  // "<s>user:" + content + "<|end|>": the guard puts three bytes into each "<|end|>" of the content.
  const auto encode = [](const std::string& content, std::int64_t bytes) {
    return encoder(false).encode(chat(content), {.bytes = bytes, .context = 1});
  };
  EXPECT_EQ(encode("<|end|><|end|>", 29).value(), framed("<|end|><|end|>"));
  EXPECT_EQ(encode("<|end|><|end|>", 28).error().code, ErrorCode::kContextLengthExceeded);
}

TEST(PromptEncoder, TextBeyondTheLimitDoesNotReachTheTokenizer) {
  const auto code = [](std::size_t bytes) {
    return encoder(true)
        .encode(TextPrompt{.text = std::string(bytes, '\xFF')}, {.bytes = 20, .context = 5})
        .error()
        .code;
  };
  EXPECT_EQ(code(20), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(21), ErrorCode::kContextLengthExceeded);
}

TEST(PromptEncoder, ExactlyOneBos) {
  const PromptEncoder adds = encoder(true, true);
  EXPECT_EQ(adds.encode(TextPrompt{.text = "a"}).value(), (std::vector<std::int32_t>{fakes::kBos, 'a'}));
  EXPECT_EQ(adds.encode(TextPrompt{.text = "<s>a"}).value(), (std::vector<std::int32_t>{fakes::kBos, 'a'}));
  EXPECT_EQ(adds.encode(TextPrompt{.text = "a", .add_special_tokens = false}).value(), bytes_of("a"));
  EXPECT_EQ(adds.encode(TextPrompt{.text = ""}).value(), std::vector<std::int32_t>{fakes::kBos});
  EXPECT_EQ(adds.encode(chat("a")).value(), framed("a"));
}

}  // namespace
}  // namespace hotset::actors
