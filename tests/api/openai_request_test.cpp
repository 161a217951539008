#include "api/openai_request.h"

#include <gtest/gtest.h>

namespace hotset::api {
namespace {

constexpr RequestLimits kLimits{.vocabulary = 1000, .max_choices = 64};

Json base(bool chat) {
  return chat ? Json{{"messages", {{{"role", "user"}, {"content", "hi"}}}}} : Json{{"prompt", "hi"}};
}
Result<OpenAiRequest> parse(const Json& body, bool chat) {
  return chat ? parse_chat_request(body, kLimits) : parse_completion_request(body, kLimits);
}
OpenAiRequest good(const char* text, bool chat) {
  auto parsed = parse(parse_json(text).value(), chat);
  EXPECT_TRUE(parsed.ok()) << text << ": " << parsed.error().message;
  return parsed ? std::move(parsed).value() : OpenAiRequest{};
}
std::string bad_param(const char* text, bool chat) {
  const auto parsed = parse(parse_json(text).value(), chat);
  return parsed.ok() ? "accepted" : parsed.error().param;
}

struct FieldCase {
  const char* field;
  int endpoints;  // 1: completions, 2: chat, 3: both
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

const std::vector<FieldCase>& field_cases() {
  static const std::vector<FieldCase> cases = {
      {"max_tokens",
       3,
       {"1", "5", "2147483647", "null"},
       {"0", "-1", "1.5", "5.0", "\"10\"", "true", "[]", "{}", "9223372036854775808", "1180591620717411303424"}},
      {"max_completion_tokens", 3, {"1", "null"}, {"0", "-1", "\"5\"", "9223372036854775808"}},
      {"n", 3, {"1", "64", "null"}, {"0", "-1", "65", "129", "5000000", "1.5", "\"2\"", "true", "[1]"}},
      {"temperature", 3, {"0", "0.7", "2", "null"}, {"-0.1", "2.1", "999999", "\"NaN\"", "true", "[]"}},
      {"top_p", 3, {"1", "0.1", "null"}, {"0", "-1", "2", "\"1\"", "false"}},
      {"top_k", 3, {"-1", "0", "40", "null"}, {"-2", "1.5", "\"4\"", "4294967296"}},
      {"min_p", 3, {"0", "1", "null"}, {"-0.1", "1.1", "\"0\""}},
      {"presence_penalty", 3, {"-2", "2", "null"}, {"-2.1", "2.1", "\"x\""}},
      {"frequency_penalty", 3, {"-2", "2", "null"}, {"-2.1", "2.1", "{}"}},
      {"repetition_penalty", 3, {"0.5", "10", "null"}, {"0", "-1", "10.1", "\"1\""}},
      {"seed",
       3,
       {"0", "-1", "9223372036854775807", "-9223372036854775808", "null"},
       {"9223372036854775808", "1180591620717411303424", "1.5", "\"1\""}},
      {"stop", 3, {"\"x\"", "[\"x\",\"yy\"]", "[]", "null"}, {"\"\"", "[\"\"]", "1", "[1]", "{}", "true"}},
      {"stop_token_ids", 3, {"[0,999]", "[]", "null"}, {"[1000]", "[-1]", "[1.5]", "[4294967295]", "5", "\"5\""}},
      {"logit_bias",
       3,
       {"{\"999\":100,\"0\":-100}", "{}", "null"},
       {"{\"1000\":5}", "{\"-1\":5}", "{\"9999999\":5}", "{\"x\":1}", "{\"1 \":1}", "{\"1\":101}", "{\"1\":\"2\"}",
        "[]"}},
      {"stream", 3, {"true", "false", "null"}, {"1", "\"true\"", "[]"}},
      {"stream_options", 3, {"null"}, {"{\"include_usage\":true}", "[]", "true"}},
      {"ignore_eos", 3, {"true", "null"}, {"1", "\"x\""}},
      {"return_token_ids", 3, {"true", "null"}, {"1", "\"x\""}},
      {"include_stop_str_in_output", 3, {"true", "null"}, {"1"}},
      {"skip_special_tokens", 3, {"false", "null"}, {"1"}},
      {"user", 3, {"\"me\"", "null"}, {"1", "{}"}},
      {"hotset",
       3,
       {"{}", "{\"algorithm\":\"streaming\",\"budget\":512,\"usage\":true}", "{\"budget\":null}", "null"},
       {"1", "[]", "{\"algorithm\":1}", "{\"algorithm\":\"\"}", "{\"budget\":0}", "{\"budget\":1.5}",
        "{\"budget\":9223372036854775808}", "{\"usage\":1}", "{\"bugdet\":5}"}},
      {"foo", 3, {"1", "{\"a\":[]}", "null"}, {}},
      {"logprobs", 1, {"0", "5", "20", "null"}, {"-1", "21", "1000000000", "true", "\"1\"", "1.5"}},
      {"logprobs", 2, {"true", "false", "null"}, {"1", "\"true\""}},
      {"top_logprobs", 2, {"0", "null"}, {"-1", "21", "1000000000", "true", "5"}},
      {"echo", 1, {"true", "null"}, {"1"}},
      {"best_of", 1, {"1", "null"}, {"0", "2", "1000000000"}},
      {"suffix", 1, {"\"\"", "null"}, {"\"x\"", "1"}},
      {"prompt",
       1,
       {"\"\"", "[\"a\",\"b\"]", "[1,2,999]", "[[1],[2,3]]"},
       {"null", "[]", "5", "{}", "true", "[[]]", "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]", "[[1],[\"a\"]]", "[null]"}},
      {"tools", 2, {"[]", "[{\"type\":\"function\"}]", "null"}, {"[1]", "{}", "\"x\""}},
      {"tool_choice", 2, {"\"auto\"", "\"none\"", "null"}, {"\"required\"", "{\"type\":\"function\"}", "1"}},
      {"response_format",
       2,
       {"{\"type\":\"text\"}", "null"},
       {"{\"type\":\"json_object\"}", "{\"type\":\"json_schema\"}", "{}", "\"text\""}},
      {"chat_template_kwargs", 2, {"{\"a\":1}", "null"}, {"[]", "1"}},
      {"add_generation_prompt", 2, {"false", "null"}, {"1"}},
      {"continue_final_message", 2, {"false", "null"}, {"true", "1"}},
  };
  return cases;
}

TEST(OpenAiRequest, SelectionOfOneRequest) {
  for (const bool chat : {false, true}) {
    Json body = base(chat);
    EXPECT_FALSE(parse(body, chat).value().kv_usage);
    EXPECT_FALSE(parse(body, chat).value().generation.algorithm.has_value());
    body["hotset"] = {{"algorithm", "quest"}, {"budget", 77}, {"usage", true}};
    const auto parsed = parse(body, chat);
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed.value().generation.algorithm, "quest");
    EXPECT_EQ(parsed.value().generation.budget, 77);
    EXPECT_TRUE(parsed.value().kv_usage);
    body["hotset"] = {{"budget", -1}};
    EXPECT_EQ(parse(body, chat).error().param, "hotset.budget");
  }
}

TEST(OpenAiRequest, EveryFieldHasARangeAndNamesItself) {
  for (const auto& field : field_cases()) {
    for (const bool chat : {false, true}) {
      if ((field.endpoints & (chat ? 2 : 1)) == 0) continue;
      for (const char* value : field.good) {
        Json body = base(chat);
        body[field.field] = parse_json(value).value();
        const auto parsed = parse(body, chat);
        EXPECT_TRUE(parsed.ok()) << field.field << " = " << value << ": " << parsed.error().message;
      }
      for (const char* value : field.bad) {
        Json body = base(chat);
        body[field.field] = parse_json(value).value();
        const auto parsed = parse(body, chat);
        ASSERT_FALSE(parsed.ok()) << field.field << " = " << value;
        EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
        EXPECT_TRUE(parsed.error().param.starts_with(field.field))
            << field.field << " = " << value << ": " << parsed.error().param;
        EXPECT_NE(parsed.error().message.find(field.field), std::string::npos);
        EXPECT_LT(parsed.error().message.size(), 300U);
      }
    }
  }
}

TEST(OpenAiRequest, PromptForms) {
  auto request = good(R"({"prompt":["a","b"],"n":2,"add_special_tokens":false})", false);
  ASSERT_EQ(request.generation.prompts.size(), 2U);
  EXPECT_EQ(std::get<actors::TextPrompt>(request.generation.prompts[1]).text, "b");
  EXPECT_FALSE(std::get<actors::TextPrompt>(request.generation.prompts[1]).add_special_tokens);
  request = good(R"({"prompt":[[1,2],[3]]})", false);
  EXPECT_EQ(std::get<actors::TokenPrompt>(request.generation.prompts[0]).tokens, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(std::get<actors::TokenPrompt>(request.generation.prompts[1]).tokens, (std::vector<std::int32_t>{3}));
  EXPECT_EQ(bad_param(R"({"prompt":[1,2,4294967295]})", false), "prompt[2]");
  EXPECT_EQ(bad_param(R"({"prompt":[-1]})", false), "prompt[0]");
  EXPECT_EQ(bad_param(R"({"prompt":[[1],[2,1000]]})", false), "prompt[1][1]");
  EXPECT_EQ(bad_param("{}", false), "prompt");
  EXPECT_EQ(bad_param(R"({"prompt":["a","b"],"n":33})", false), "n");
}

TEST(OpenAiRequest, TokenLimits) {
  EXPECT_EQ(good(R"({"prompt":"a"})", false).generation.max_tokens, 16);
  EXPECT_EQ(good(R"({"prompt":"a","echo":true,"max_tokens":0})", false).generation.max_tokens, 0);
  EXPECT_EQ(good(R"({"messages":[{"role":"user","content":"a"}]})", true).generation.max_tokens, std::nullopt);
  EXPECT_EQ(
      good(R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":5})", true).generation.max_tokens, 5);
  EXPECT_EQ(good(R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":5,"max_tokens":9})", true)
                .generation.max_tokens,
            5);
}

TEST(OpenAiRequest, LogprobsForms) {
  EXPECT_EQ(good(R"({"prompt":"a"})", false).generation.sampling.logprobs, -1);
  const auto zero = good(R"({"prompt":"a","logprobs":0})", false);
  EXPECT_TRUE(zero.logprobs);
  EXPECT_EQ(zero.generation.sampling.logprobs, 0);
  const auto chat = good(R"({"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":5})", true);
  EXPECT_TRUE(chat.logprobs);
  EXPECT_EQ(chat.generation.sampling.logprobs, 5);
}

TEST(OpenAiRequest, SeedsAreGivenOrRandom) {
  EXPECT_EQ(good(R"({"prompt":"a","seed":42})", false).generation.sampling.seed, 42U);
  EXPECT_NE(good(R"({"prompt":"a"})", false).generation.sampling.seed,
            good(R"({"prompt":"a"})", false).generation.sampling.seed);
}

TEST(OpenAiRequest, UsageOnlyWhenAskedFor) {
  EXPECT_FALSE(good(R"({"prompt":"a","stream":true})", false).include_usage);
  EXPECT_FALSE(good(R"({"prompt":"a","stream":true,"stream_options":{}})", false).include_usage);
  EXPECT_TRUE(good(R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true}})", false).include_usage);
  EXPECT_EQ(bad_param(R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})", false),
            "stream_options.include_usage");
}

std::string messages_of(const char* body) {
  auto request = good(body, true);
  return std::get<actors::ChatPrompt>(request.generation.prompts.at(0)).messages_json;
}

TEST(OpenAiRequest, LegalMessageShapes) {
  EXPECT_EQ(messages_of(
                R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})"),
            R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(messages_of(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})"),
            messages_of(R"({"messages":[{"role":"user","content":"a"}]})"));
  EXPECT_EQ(messages_of(R"({"messages":[{"role":"user","content":[]}]})"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(messages_of(R"({"messages":[{"role":"user","content":""}]})"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(
      messages_of(
          R"({"messages":[{"role":"user","content":"q"},
                    {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]},
                    {"role":"tool","tool_call_id":"1","content":"42"},{"role":"assistant","tool_calls":null},{"role":"user","content":"go"}]})"),
      R"([{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"z":1,"a":2}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"42"},{"role":"assistant","content":""},{"role":"user","content":"go"}])");
}

TEST(OpenAiRequest, IllegalMessageShapes) {
  EXPECT_EQ(bad_param("{}", true), "messages");
  EXPECT_EQ(bad_param(R"({"messages":[]})", true), "messages");
  EXPECT_EQ(bad_param(R"({"messages":"hi"})", true), "messages");
  EXPECT_EQ(bad_param(R"({"messages":["hi"]})", true), "messages[0]");
  EXPECT_EQ(bad_param(R"({"messages":[{"content":"a"}]})", true), "messages[0].role");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"boss","content":"a"}]})", true), "messages[0].role");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"user","content":"a"},{"role":"user"}]})", true), "messages[1].content");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"user","content":null}]})", true), "messages[0].content");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"user","content":5}]})", true), "messages[0].content");
  EXPECT_EQ(
      bad_param(R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})", true),
      "messages[0].content[0].type");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", true),
            "messages[0].content[0].text");
  EXPECT_EQ(bad_param(R"({"messages":[{"role":"user","content":"a","tool_calls":[]}]})", true),
            "messages[0].tool_calls");
}

TEST(OpenAiRequest, TemplateInputsArePassedOn) {
  const auto request = good(
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"b":1,"a":2}],"chat_template_kwargs":{"think":false},"add_generation_prompt":false})",
      true);
  const auto& prompt = std::get<actors::ChatPrompt>(request.generation.prompts[0]);
  EXPECT_EQ(prompt.tools_json, R"([{"b":1,"a":2}])");
  EXPECT_EQ(prompt.template_kwargs_json, R"({"think":false})");
  EXPECT_FALSE(prompt.add_generation_prompt);
}

TEST(OpenAiRequest, TokenizeAndDetokenize) {
  const auto text = parse_tokenize_request(Json{{"prompt", "a"}, {"add_special_tokens", false}});
  ASSERT_TRUE(text.ok());
  EXPECT_FALSE(std::get<actors::TextPrompt>(text.value().prompt).add_special_tokens);
  EXPECT_TRUE(parse_tokenize_request(base(true)).ok());
  EXPECT_EQ(parse_tokenize_request(Json::object()).error().param, "prompt");
  EXPECT_EQ(parse_tokenize_request(Json{{"prompt", 5}}).error().param, "prompt");
  EXPECT_EQ(parse_detokenize_request(Json{{"tokens", {1, 999}}}, kLimits).value(), (std::vector<std::int32_t>{1, 999}));
  EXPECT_EQ(parse_detokenize_request(Json{{"tokens", {1, 1000}}}, kLimits).error().param, "tokens[1]");
  EXPECT_EQ(parse_detokenize_request(Json::object(), kLimits).error().param, "tokens");
  EXPECT_FALSE(parse_model(Json{{"model", 5}}).ok());
}

}  // namespace
}  // namespace hotset::api
