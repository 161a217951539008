// The public face: fixtures of the reference library, limits, threads, speed.
#include "model/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

namespace hotset::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kFixtureNow = 1783155907;  // 2026-07-04T09:05:07Z

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(HOTSET_FIXTURES) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const ManualClock& fixture_clock() {
  static const ManualClock clock = [] {
    setenv("TZ", "UTC", 1);
    tzset();
    ManualClock fixed;
    fixed.set_unix_seconds(kFixtureNow);
    return fixed;
  }();
  return clock;
}

Result<std::string> render(const std::string& source, const Json& messages, bool add_generation_prompt = false,
                           const Json& tools = nullptr, const Json& kwargs = nullptr,
                           const jinja::RenderLimits& limits = {}) {
  auto compiled = ChatTemplate::compile(source, fixture_clock(), "<s>", "</s>", limits);
  if (!compiled.ok()) return compiled.error();
  return compiled.value().render(messages, add_generation_prompt, tools, kwargs);
}

Json without(Json object, std::initializer_list<const char*> names) {
  for (const char* name : names) object.erase(name);
  return object;
}

// `expected`: "prompt", or "error" with the message of raise_exception or null.
void expect_case(const Json& expected, const Result<std::string>& result, const std::string& what) {
  if (expected.contains("prompt")) {
    ASSERT_TRUE(result.ok()) << what << "\n" << result.error().message;
    EXPECT_EQ(result.value(), expected["prompt"].get<std::string>()) << what;
    return;
  }
  ASSERT_FALSE(result.ok()) << what << "\nrenders as: " << result.value();
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  if (expected["error"] == "TemplateError") {
    EXPECT_EQ(result.error().message, expected["message"].get<std::string>()) << what;
    EXPECT_EQ(result.error().param, "messages");
  }
}

TEST(ChatTemplate, ConstructFixtures) {
  const Json fixture = Json::parse(read_file("templates/cases.json"));
  int count = 0;
  for (const Json& expected : fixture["cases"]) {
    const std::string name = expected["template"];
    const Json& input = fixture["inputs"][expected["input"].get<std::string>()];
    const auto result =
        render(read_file("templates/" + name + ".jinja"), input["messages"], expected["add_generation_prompt"],
               input.value("tools", Json()), without(input, {"messages", "tools"}));
    expect_case(expected, result, name + " " + expected["input"].get<std::string>());
    ++count;
  }
  EXPECT_EQ(count, 72);
}

TEST(ChatTemplate, SnippetsRenderAsJinja2Does) {
  const Json fixture = Json::parse(read_file("jinja/snippets.json"));
  for (const Json& expected : fixture["cases"]) {
    const std::string source = expected["source"];
    expect_case(expected, render(source, fixture["messages"], false, nullptr, fixture["kwargs"]), source);
  }
  EXPECT_GT(fixture["cases"].size(), 200U);
}

TEST(ChatTemplate, ModelLikeTemplates) {
  const Json conversations = Json::parse(read_file("jinja/models/conversations.json"));
  const Json fixture = Json::parse(read_file("jinja/models.json"));
  for (const Json& expected : fixture["cases"]) {
    const std::string name = expected["template"];
    const Json& conversation = conversations[expected["conversation"].get<std::string>()];
    const auto result =
        render(read_file("jinja/models/" + name), conversation["messages"], expected["add_generation_prompt"],
               conversation.value("tools", Json()), conversation.value("kwargs", Json()));
    expect_case(expected, result, name + " " + expected["conversation"].get<std::string>());
  }
  EXPECT_GT(fixture["cases"].size(), 100U);
}

TEST(ChatTemplate, DefaultModel) {
  const std::string source = read_file("jinja/default_model.jinja");
  const Json prompts = Json::parse(read_file("smollm2/expected.json"))["chat_prompts"];
  for (const Json& expected : prompts) {
    const auto result = render(source, expected["messages"], expected["add_generation_prompt"]);
    ASSERT_TRUE(result.ok()) << result.error().message;
    EXPECT_EQ(result.value(), expected["prompt"].get<std::string>());
  }
  EXPECT_GE(prompts.size(), 10U);
}

TEST(ChatTemplate, CompileErrorsNameTheLine) {
  const auto compiled = ChatTemplate::compile("a\nb\n{% if x %}\n{{ 1 + }}\n", fixture_clock(), "", "");
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(compiled.error().message.find("line 4"), std::string::npos) << compiled.error().message;
}

TEST(ChatTemplate, RenderErrorsNameTheLine) {
  const auto result = render("a\n\n{{ messages[0].role + 1 }}", {{{"role", "user"}}});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("line 3"), std::string::npos) << result.error().message;
}

TEST(ChatTemplate, KwargsMayNotReplaceMessages) {
  const auto result = render("x", Json::array(), false, nullptr, {{"messages", 1}});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().param, "chat_template_kwargs");
  EXPECT_FALSE(render("x", Json::array(), false, nullptr, Json::array({1})).ok());
}

TEST(ChatTemplate, KwargsReplaceTheGenerationPrompt) {
  const auto result =
      render("{{ add_generation_prompt }}", Json::array(), true, nullptr, {{"add_generation_prompt", 7}});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value(), "7");
}

TEST(ChatTemplate, ManyThreadsShareOneTemplate) {
  const auto compiled = ChatTemplate::compile(read_file("jinja/models/thinking_tools.jinja"), fixture_clock(), "", "");
  ASSERT_TRUE(compiled.ok());
  const Json messages = {{{"role", "user"}, {"content", "Hi"}}};
  const std::string expected = compiled.value().render(messages, true, nullptr, nullptr).value();
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) result = compiled.value().render(messages, true, nullptr, nullptr).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, expected);
}

// A long message must not cost steps or memory per byte beyond its own size.
TEST(ChatTemplate, LongMessageFitsSmallLimits) {
  jinja::RenderLimits limits;
  limits.steps = 200'000;
  limits.bytes = 1 << 20;
  limits.bytes_per_input_byte = 8;
  const std::string text = std::string(1 << 20, 'x') + "é";
  const auto result = render(read_file("jinja/models/thinking_tools.jinja"), {{{"role", "user"}, {"content", text}}},
                             true, nullptr, nullptr, limits);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_GT(result.value().size(), text.size());
}

}  // namespace
}  // namespace hotset::model
