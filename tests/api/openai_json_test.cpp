#include "api/openai_json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hotset::api {
namespace {

std::string failure(std::string_view text) {
  const auto parsed = parse_json_object(text);
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(OpenAiJson, BrokenTextNamesItsField) {
  EXPECT_EQ(failure("{\"prompt\":\"a\xff\"}"), "The field 'prompt' holds bytes that are not UTF-8.");
  EXPECT_EQ(failure("{\"messages\":[{\"role\":\"user\",\"content\":\"\xc4\xe3\"}]}"),
            "The field 'messages[0].content' holds bytes that are not UTF-8.");
  EXPECT_EQ(failure(R"({"messages":[{"content":"a"},{"content":"x \ud83d"}]})"),
            "The field 'messages[1].content' holds half of a surrogate pair.");
  EXPECT_EQ(failure(R"({"prompt":"\udc00"})"), "The field 'prompt' holds half of a surrogate pair.");
  EXPECT_EQ(failure("{\"prompt\":\"\xed\xa0\x80\"}"), "The field 'prompt' holds bytes that are not UTF-8.");
  EXPECT_EQ(failure(R"({"temperature":1e999})"), "The field 'temperature' holds a number that is out of range.");
  EXPECT_EQ(failure(R"({"temperature":NaN})"), "The field 'temperature' is not valid JSON.");
  EXPECT_EQ(failure(""), "The request body is empty.");
  EXPECT_EQ(failure("[]"), "The request body must be a JSON object.");
  EXPECT_EQ(failure("nonsense"), "The request body is not valid JSON.");
  EXPECT_EQ(failure("{\"a\":1"), "The field 'a' is not valid JSON.");
}

TEST(OpenAiJson, ErrorsDoNotRepeatTheInput) {
  const std::string long_name(100'000, 'k');
  const auto parsed = parse_json_object("{\"" + long_name + "\":\"" + std::string(100'000, 'v') + "\xff\"}");
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.error().message.size(), 300U);
  EXPECT_EQ(parsed.error().message.find("vvvv"), std::string::npos);
  EXPECT_EQ(failure("{\"a\xc3\xa9\\n<b>\":\"\xff\"}").find('<'), std::string::npos);
}

TEST(OpenAiJson, LimitsHold) {
  EXPECT_NE(failure("{\"a\":" + std::string(500'000, '[')).find("is nested too deeply"), std::string::npos);
  std::string wide = "{\"a\":[0";
  for (int i = 0; i < 20; ++i) wide += ",0";
  EXPECT_FALSE(parse_json(wide + "]}", {.values = 10}).ok());
  EXPECT_TRUE(parse_json(wide + "]}", {.values = 100}).ok());
  EXPECT_FALSE(parse_json("[[],[],[],[]]", {.containers = 4}).ok());
  EXPECT_FALSE(parse_json(R"({"a":1,"b":2,"c":3})", {.members_per_object = 2}).ok());
  EXPECT_FALSE(parse_json(R"([{"a":1},{"b":2},{"c":3}])", {.members = 2}).ok());
}

TEST(OpenAiJson, KeepsOrderAndTakesTheLastOfRepeatedMembers) {
  const auto parsed = parse_json(R"({"z":1,"a":[true,null,-2.5,"\u00e9"],"z":{"q":18446744073709551615}})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(to_text(parsed.value()), "{\"z\":{\"q\":18446744073709551615},\"a\":[true,null,-2.5,\"\xc3\xa9\"]}");
}

TEST(OpenAiJson, NumbersAreShortAndFinite) {
  EXPECT_EQ(to_text(number(-0.1F)), "-0.1");
  EXPECT_EQ(to_text(number(-INFINITY)), "-9999.0");
  EXPECT_EQ(to_text(number(NAN)), "-9999.0");
  for (const float value : {-1.2345678F, -87.33654F, -1e-7F}) {
    EXPECT_EQ(std::stof(to_text(number(value))), value);
  }
}

TEST(OpenAiJson, OutputIsAlwaysUtf8) {
  EXPECT_EQ(to_text("a\xff"), "\"a\xef\xbf\xbd\"");
  EXPECT_TRUE(is_valid_utf8("a\xc3\xa9\xf0\x9f\x98\x80"));
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5", "\xf0\x9f\x98"}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace hotset::api
