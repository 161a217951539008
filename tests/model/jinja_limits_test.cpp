// Hostile templates end with an error within their budget: no crash, no endless loop, no memory without bound.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "model/chat_template.h"

namespace hotset::model {
namespace {

using Json = nlohmann::ordered_json;

std::string repeated(std::string_view text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

Result<std::string> render(const std::string& source, const Json& messages = Json::array(),
                           const jinja::RenderLimits& limits = {}) {
  static const ManualClock clock;
  auto compiled = ChatTemplate::compile(source, clock, "", "", limits);
  if (!compiled.ok()) return compiled.error();
  return compiled.value().render(messages, false, nullptr, nullptr);
}

void expect_refused(const std::string& source) {
  jinja::RenderLimits limits;
  limits.steps = 3'000'000;
  const auto result = render(source, Json::array({{{"content", "abc"}}}), limits);
  EXPECT_FALSE(result.ok()) << source.substr(0, 200);
  if (!result.ok()) {
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(result.error().message.empty());
  }
}

TEST(JinjaLimits, DeepSources) {
  constexpr int kDeep = 100'000;
  expect_refused("{{ " + repeated("(", kDeep));
  expect_refused("{{ " + repeated("(", kDeep) + "1" + repeated(")", kDeep) + " }}");
  expect_refused("{{ " + repeated("[", kDeep) + repeated("]", kDeep) + " }}");
  expect_refused("{{ " + repeated("{1:", kDeep) + "1" + repeated("}", kDeep) + " }}");
  expect_refused("{{ " + repeated("not ", kDeep) + "1 }}");
  expect_refused("{{ " + repeated("-", kDeep) + "1 }}");
  expect_refused("{{ " + repeated("1 + ", kDeep) + "1 }}");
  expect_refused("{{ x" + repeated(".a", kDeep) + " }}");
  expect_refused("{{ x" + repeated("[0]", kDeep) + " }}");
  expect_refused("{{ x" + repeated(" | upper", kDeep) + " }}");
  expect_refused("{{ x" + repeated("()", kDeep) + " }}");
  expect_refused("{{ " + repeated("1 if 1 else ", kDeep) + "1 }}");
  expect_refused("{{ " + repeated("f(", kDeep) + repeated(")", kDeep) + " }}");
  expect_refused(repeated("{% if 1 %}", kDeep));
  expect_refused(repeated("{% for i in x %}", kDeep) + repeated("{% endfor %}", kDeep));
  expect_refused(repeated("{% macro f() %}", kDeep));
  expect_refused("{% set " + repeated("(", kDeep));
  expect_refused("{% if 1 is in " + repeated("[", kDeep));
}

TEST(JinjaLimits, ModerateNestingWorks) {
  EXPECT_EQ(render("{{ " + repeated("(", 40) + "1" + repeated(")", 40) + " }}").value(), "1");
  EXPECT_EQ(render("{{ " + repeated("'a' + ", 200) + "'b' }}").value(), repeated("a", 200) + "b");
  EXPECT_EQ(render(repeated("{% if 1 %}", 40) + "x" + repeated("{% endif %}", 40)).value(), "x");
  EXPECT_EQ(render("{% macro f(n) %}{% if n %}{% for i in [1] %}{{ f(n - 1) }}{% endfor %}{% endif %}x{% endmacro %}"
                   "{{ f(40) }}")
                .value(),
            repeated("x", 41));
  EXPECT_EQ(render("{{ " + repeated("'a' ~ ", 5000) + "'b' }}").value().size(), 5001U);
}

TEST(JinjaLimits, Recursion) {
  expect_refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  expect_refused("{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}");
  expect_refused("{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}");
  expect_refused("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  expect_refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  expect_refused("{% macro f(a=f()) %}{{ f() }}{% endmacro %}{{ f() }}");
}

TEST(JinjaLimits, Growth) {
  expect_refused("{{ range(100000000) | list }}");
  expect_refused("{{ range(-9223372036854775807, 9223372036854775807) | list }}");
  expect_refused("{{ 'x' * 1000000000 }}");
  expect_refused("{{ 'x' * 9223372036854775807 }}");
  expect_refused("{{ [0] * 4611686018427387904 }}");
  expect_refused("{{ ([1] * 1000000) * 1000000 }}");
  expect_refused("{{ '%1000000000d' % 1 }}");
  expect_refused("{{ '%.1000000000f' % 1.5 }}");
  expect_refused("{{ '{:>4000000000}'.format('x') }}");
  expect_refused("{{ 'x'.ljust(4000000000) }}");
  expect_refused("{{ 'x'.center(9223372036854775807) }}");
  expect_refused("{{ '1'.zfill(4000000000) }}");
  expect_refused("{{ 'a\nb' | indent(4000000000) }}");
  expect_refused("{{ [1] | tojson(indent=4000000000) }}");
  expect_refused("{{ [1] | batch(4000000000, 0) | list }}");
  expect_refused("{{ [1] | slice(4000000000) | list }}");
  expect_refused("{{ '\t'.expandtabs(4000000000) }}");
  expect_refused("{{ '\u00e9'.zfill(9223372036854775807) }}");
  expect_refused("{{ '\t'.expandtabs(9223372036854775807) }}");
  expect_refused("{{ '%*d' % (-9223372036854775807 - 1, 1) }}");
  expect_refused("{{ 2 ** 100 }}");
  expect_refused("{{ 9223372036854775807 + 1 }}");
  expect_refused("{{ -9223372036854775807 - 2 }}");
  expect_refused("{{ (-9223372036854775807 - 1) // -1 }}");
  expect_refused("{{ -(-9223372036854775807 - 1) }}");
  const std::string many = "{% for i in range(100000) %}";
  expect_refused("{% set ns = namespace(x=[1]) %}" + many + "{% set ns.x = ns.x + ns.x %}{% endfor %}");
  expect_refused("{% set ns = namespace(x='ab') %}" + many + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}");
  expect_refused("{% set ns = namespace(x='ab') %}" + many + "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}");
  expect_refused("{% set ns = namespace(x=1) %}" + many + "{% set ns.x = [ns.x] %}{% endfor %}");
  expect_refused("{% set ns = namespace(x=[]) %}" + many + "{% set ns.x = [ns.x.index] %}{% endfor %}");
  expect_refused("{% set ns = namespace(x={}) %}" + many +
                 "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x }}");
}

// The least whole number has no positive twin.
TEST(JinjaLimits, TheLeastWholeNumberIsAnArgumentLikeOthers) {
  const std::string least = "(-9223372036854775807 - 1)";
  EXPECT_EQ(render("{{ 'x'.zfill(" + least + ") }}").value(), "x");
  EXPECT_EQ(render("{{ 'x'.ljust(" + least + ") }}").value(), "x");
  EXPECT_EQ(render("{{ [1] | batch(" + least + ", 0) | list }}").value(), "[[1]]");
  EXPECT_EQ(render("{{ 1.5 | round(" + least + ") }}").value(), "0.0");
  EXPECT_EQ(render("{{ 'abc'[" + least + ":] }}").value(), "abc");
}

// A value that holds one other value twice, 60 times over: small to build, endless to walk.
TEST(JinjaLimits, SharedValuesAreNotWalkedForEver) {
  const std::string build =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.y }}", "{{ ns.x < ns.y }}",
                          "{{ ns.x | string | length }}", "{{ [ns.x] | join }}"}) {
    expect_refused(build + use);
  }
  expect_refused(
      "{% set ns = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
      "{{ {ns.x: 1} }}");
}

TEST(JinjaLimits, LoopsEnd) {
  const std::string many = "{% for i in range(100000) %}";
  expect_refused(many + many + many + "{% endfor %}{% endfor %}{% endfor %}");
  expect_refused(many + "{{ messages | tojson(indent=2) | length }}" + many + "{% endfor %}{% endfor %}");
  expect_refused("{% set s = 'ab' * 500000 %}" + many + "{% if 'ba' * 3 ~ 'x' in s %}{% endif %}{% endfor %}");
  expect_refused("{% set l = range(50000) | list %}" + many + "{% if -1 in l %}{% endif %}{% endfor %}");
}

TEST(JinjaLimits, TimeEnds) {
  class JumpingClock final : public Clock {
   public:
    [[nodiscard]] std::int64_t steady_ns() const override { return now_ += 1'000'000'000; }
    [[nodiscard]] std::int64_t unix_seconds() const override { return 0; }

   private:
    mutable std::int64_t now_ = 0;
  } clock;
  // A search compares all of the wanted text at every place here, a strip all characters with each one.
  const std::string texts = "{% set s = 'a' * 1000000 %}{% set w = 'a' * 500000 %}";
  for (const std::string& source :
       {std::string("{% for i in range(100000) %}{{ i }}{% endfor %}"), texts + "{{ (w ~ 'b') in s }}",
        texts + "{{ s.find(w ~ 'b') }}", texts + "{{ s.rfind('b' ~ w) }}", texts + "{{ s.count(w ~ 'b') }}",
        texts + "{{ s.split(w ~ 'b') }}", texts + "{{ s.rsplit('b' ~ w) }}", texts + "{{ s.replace(w ~ 'b', '') }}",
        texts + "{{ s.partition(w ~ 'b') }}", texts + "{{ s.strip('b' * 1000000 ~ 'a') }}",
        texts + "{{ s | trim('b' * 1000000 ~ 'a') }}"}) {
    auto compiled = ChatTemplate::compile(source, clock, "", "");
    ASSERT_TRUE(compiled.ok());
    const auto result = compiled.value().render(Json::array(), false, nullptr, nullptr);
    ASSERT_FALSE(result.ok()) << source;
    EXPECT_NE(result.error().message.find("too long"), std::string::npos) << source << ": " << result.error().message;
  }
}

TEST(JinjaLimits, ManyPiecesOfALongTextArePaidForOnce) {
  const std::string text = "{% set s = 'a,' * 200000 %}";
  EXPECT_EQ(render(text + "{{ s.count(',') }} {{ s.split(',') | length }} {{ s.rsplit(',') | length }}").value(),
            "200000 200001 200001");
  EXPECT_EQ(render(text + "{{ s.replace(',', ';').rfind(';') }} {{ s.find('b') }} {{ s.rfind('a') }}").value(),
            "399999 -1 399998");
}

TEST(JinjaLimits, CyclesAreFreed) {
  // The leak checker of the ASan build proves it; here they only must not crash.
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}").ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% macro f() %}{% endmacro %}{% set ns.f = f %}").ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% for i in [1] %}{% set ns.l = loop %}"
                     "{% set x = loop.changed(loop) %}{% endfor %}{{ ns.l.index }}")
                  .ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.c = cycler(ns, 1) %}").ok());
  expect_refused("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}");
  // A long chain through loops: must not be destroyed recursively.
  EXPECT_TRUE(render("{% set ns = namespace(l=0) %}{% for i in range(50000) %}{% for j in [ns.l] %}"
                     "{% set ns.l = loop %}{% endfor %}{% endfor %}")
                  .ok());
  EXPECT_TRUE(render("{% set ns = namespace(l=0) %}{% for i in range(50000) %}{% set ns.l = namespace(p=ns.l) %}"
                     "{% endfor %}")
                  .ok());
}

TEST(JinjaLimits, DeepMessages) {
  Json deep = 1;
  for (int i = 0; i < 10'000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_FALSE(render("{{ messages }}", deep).ok());
  EXPECT_FALSE(render("{{ 1 }}", Json::parse("[18446744073709551615]")).ok());
}

std::vector<std::string> fixture_templates() {
  std::vector<std::string> sources;
  for (const char* folder : {"templates", "jinja/models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(HOTSET_FIXTURES) + "/" + folder)) {
      if (entry.path().extension() != ".jinja") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::stringstream text;
      text << file.rdbuf();
      sources.push_back(text.str());
    }
  }
  return sources;
}

jinja::RenderLimits small_limits() {
  jinja::RenderLimits limits;
  limits.steps = 50'000;
  limits.bytes = 4 << 20;
  return limits;
}

const Json& fuzz_messages() {
  static const Json messages = Json::parse(
      R"([{"role": "user", "content": "hé🙂"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "x"}]}])");
  return messages;
}

TEST(JinjaLimits, MutatedTemplates) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  const auto sources = fixture_templates();
  ASSERT_GT(sources.size(), 20U);
  int rendered = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string source = sources[random() % sources.size()];
    for (unsigned edits = 1 + random() % 4; edits > 0 && !source.empty(); --edits) {
      const std::size_t at = random() % source.size();
      const std::size_t length = random() % 20;
      switch (random() % 4) {
        case 0: source.erase(at, length); break;
        case 1: source.insert(at, source.substr(random() % source.size(), length)); break;
        case 2: source[at] = static_cast<char>(random()); break;
        default: std::swap(source[at], source[random() % source.size()]); break;
      }
    }
    rendered += render(source, fuzz_messages(), small_limits()).ok() ? 1 : 0;
  }
  EXPECT_GT(rendered, 100);
}

TEST(JinjaLimits, TokenSoup) {
  static constexpr const char* kTokens[] = {"{{ ",
                                            " }}",
                                            "{% ",
                                            " %}",
                                            "{%- ",
                                            " -%}",
                                            "{# ",
                                            " #}",
                                            "if ",
                                            "else ",
                                            "elif ",
                                            "endif",
                                            "for ",
                                            "in ",
                                            "endfor",
                                            "set ",
                                            "endset",
                                            "macro ",
                                            "endmacro",
                                            "call ",
                                            "endcall",
                                            "filter ",
                                            "with ",
                                            "raw",
                                            "endraw",
                                            "x",
                                            "ns",
                                            "loop",
                                            "messages",
                                            "[",
                                            "]",
                                            "(",
                                            ")",
                                            "{",
                                            "}",
                                            ".",
                                            ",",
                                            ":",
                                            "=",
                                            "==",
                                            "<",
                                            "+",
                                            "-",
                                            "*",
                                            "/",
                                            "//",
                                            "%",
                                            "**",
                                            "~",
                                            "|",
                                            "is ",
                                            "not ",
                                            "and ",
                                            "or ",
                                            "'a'",
                                            "\"b\"",
                                            "1",
                                            "-1",
                                            "2.5",
                                            "range(3)",
                                            "namespace(a=1)",
                                            "tojson",
                                            "join",
                                            "upper",
                                            "list",
                                            "map",
                                            "select",
                                            "sort",
                                            "first",
                                            "slice",
                                            "batch(2)",
                                            "defined",
                                            "string",
                                            "recursive",
                                            "\n",
                                            " ",
                                            "'%s' % ",
                                            ".split()",
                                            ".items()",
                                            "[::-1]",
                                            "[1:]",
                                            "loop(",
                                            "break",
                                            "continue",
                                            "'é🙂'",
                                            "none",
                                            "true"};
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << "\n";
  std::mt19937 random(seed);
  int rendered = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool inside = random() % 2 == 0;
    std::string source = inside ? "{{ " : "";
    for (unsigned n = 1 + random() % 12; n > 0; --n) source += kTokens[random() % std::size(kTokens)];
    if (inside) source += " }}";
    rendered += render(source, fuzz_messages(), small_limits()).ok() ? 1 : 0;
  }
  EXPECT_GT(rendered, 50);
}

}  // namespace
}  // namespace hotset::model
