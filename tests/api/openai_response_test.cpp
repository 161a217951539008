#include "api/openai_response.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace hotset::api {
namespace {

actors::TokenLogprob logprob(std::int32_t token, std::string text, std::optional<float> value,
                             std::vector<actors::TokenLogprob::Alternative> top = {}) {
  actors::TokenLogprob out;
  out.token = token;
  out.text = std::move(text);
  out.logprob = value;
  out.top = std::move(top);
  return out;
}

actors::ChoiceDelta delta(std::int32_t index, std::string text, std::vector<std::int32_t> ids,
                          std::optional<actors::FinishReason> finish = {}) {
  actors::ChoiceDelta out;
  out.index = index;
  out.text = std::move(text);
  out.token_ids = std::move(ids);
  out.finish = finish;
  return out;
}

ResponseShape shape(bool chat, std::int32_t choices = 1) {
  ResponseShape out;
  out.model = "m";
  out.created = 1700000000;
  out.chat = chat;
  out.choices = choices;
  return out;
}

Json parsed(const std::string& text) { return parse_json(text).value(); }

// Everything that a client gathers from a stream.
struct Gathered {
  std::map<int, std::string> text;
  std::map<int, int> roles;
  std::map<int, std::vector<std::string>> finish;
  std::map<int, std::vector<std::int32_t>> ids;
  std::map<int, int> prompt_ids;
  std::map<int, Json> logprobs;
  int usages = 0;
};

Gathered gather(const std::vector<std::string>& chunks) {
  Gathered out;
  std::string id;
  for (const auto& text : chunks) {
    const Json chunk = parsed(text);
    if (id.empty()) id = chunk["id"];
    EXPECT_EQ(chunk["id"], id);
    EXPECT_EQ(chunk["created"], 1700000000);
    EXPECT_EQ(chunk["model"], "m");
    if (chunk.contains("usage") && !chunk["usage"].is_null()) {
      ++out.usages;
      EXPECT_TRUE(chunk["choices"].empty());
      continue;
    }
    EXPECT_EQ(chunk["choices"].size(), 1U);
    const Json& choice = chunk["choices"][0];
    const int index = choice["index"];
    EXPECT_TRUE(choice.contains("finish_reason"));
    if (choice["finish_reason"].is_string()) out.finish[index].push_back(choice["finish_reason"]);
    const Json& content = choice.contains("delta") ? choice["delta"] : choice;
    const char* key = choice.contains("delta") ? "content" : "text";
    if (content.contains(key)) out.text[index] += content[key].get<std::string>();
    if (content.contains("role")) {
      EXPECT_EQ(content["role"], "assistant");
      EXPECT_TRUE(out.text[index].empty()) << "the role comes first";
      ++out.roles[index];
    }
    if (choice.contains("token_ids")) {
      for (const auto& token : choice["token_ids"]) out.ids[index].push_back(token);
    }
    if (choice.contains("prompt_token_ids")) ++out.prompt_ids[index];
    if (!choice["logprobs"].is_null()) {
      for (const auto& [name, list] : choice["logprobs"].items()) {
        for (const auto& item : list) out.logprobs[index][name].push_back(item);
      }
    }
  }
  return out;
}

std::vector<std::string> stream(ResponseWriter& writer, const std::vector<actors::ChoiceDelta>& deltas,
                                const actors::GenerationUsage& usage) {
  auto chunks = writer.first_chunks();
  for (const auto& d : deltas) {
    if (auto chunk = writer.chunk(d)) chunks.push_back(*chunk);
  }
  if (auto chunk = writer.usage_chunk(usage)) chunks.push_back(*chunk);
  return chunks;
}

TEST(OpenAiResponse, StreamAndWholeSayTheSame) {
  for (const bool chat : {false, true}) {
    auto form = shape(chat, 4);
    form.choices_per_prompt = 2;
    form.return_token_ids = form.logprobs = true;
    form.top_logprobs = 1;
    std::vector<actors::ChoiceDelta> deltas;
    for (int i = 0; i < 4; ++i) {
      deltas.push_back(delta(i, "a" + std::to_string(i), {i}));
      deltas.back().logprobs = {logprob(i, "a" + std::to_string(i), -0.25F, {{i, "a" + std::to_string(i), -0.25F}})};
    }
    for (int i = 3; i >= 0; --i) {
      deltas.push_back(delta(i, "b", {9}, i == 2 ? actors::FinishReason::kLength : actors::FinishReason::kStop));
      deltas.back().logprobs = {logprob(9, "b", -1.5F, {{8, "c", -0.5F}})};
    }
    ResponseWriter streamed(form), whole(form);
    streamed.started({{{1, 2}, {3}}});
    whole.started({{{1, 2}, {3}}});
    const auto got = gather(stream(streamed, deltas, {3, 8}));
    for (const auto& d : deltas) EXPECT_TRUE(whole.collect(d));
    const Json json = parsed(whole.whole({3, 8}));
    EXPECT_EQ(json["object"], chat ? "chat.completion" : "text_completion");
    EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
    EXPECT_EQ(json["usage"]["completion_tokens"], 8);
    EXPECT_EQ(json["usage"]["total_tokens"], 11);
    ASSERT_EQ(json["choices"].size(), 4U);
    EXPECT_EQ(got.usages, 0);
    for (int i = 0; i < 4; ++i) {
      const Json& choice = json["choices"][i];
      EXPECT_EQ(choice["index"], i);
      EXPECT_EQ(chat ? choice["message"]["content"] : choice["text"], got.text.at(i));
      EXPECT_EQ(got.text.at(i), "a" + std::to_string(i) + "b");
      ASSERT_EQ(got.finish.at(i).size(), 1U);
      EXPECT_EQ(choice["finish_reason"], got.finish.at(i)[0]);
      EXPECT_EQ(choice["finish_reason"], i == 2 ? "length" : "stop");
      EXPECT_EQ(choice["token_ids"].get<std::vector<std::int32_t>>(), got.ids.at(i));
      EXPECT_EQ(choice["prompt_token_ids"].size(), i < 2 ? 2U : 1U);
      EXPECT_EQ(got.prompt_ids.at(i), 1);
      for (const auto& [name, list] : got.logprobs.at(i).items()) EXPECT_EQ(choice["logprobs"][name], list) << name;
      EXPECT_EQ(got.roles.count(i), chat ? 1U : 0U);
      EXPECT_TRUE(!chat || got.roles.at(i) == 1);
    }
  }
}

TEST(OpenAiResponse, UsageChunkOnlyOnRequest) {
  auto form = shape(true);
  form.include_usage = true;
  ResponseWriter writer(form);
  writer.started({{{1}}});
  const auto chunks = stream(writer, {delta(0, "x", {1}, actors::FinishReason::kStop)}, {1, 1});
  EXPECT_EQ(gather(chunks).usages, 1);
  EXPECT_TRUE(parsed(chunks.front()).contains("usage"));
  EXPECT_EQ(parsed(chunks.back())["usage"]["total_tokens"], 2);
  ResponseWriter plain(shape(true));
  plain.started({{{1}}});
  for (const auto& chunk : stream(plain, {delta(0, "x", {1}, actors::FinishReason::kStop)}, {1, 1})) {
    EXPECT_FALSE(parsed(chunk).contains("usage"));
  }
}

TEST(OpenAiResponse, CacheUsageOnlyOnRequest) {
  auto form = shape(false);
  const actors::GenerationUsage usage{.prompt_tokens = 1,
                                      .completion_tokens = 2,
                                      .kv = {.device_row_bytes = 1,
                                             .device_metadata_bytes = 2,
                                             .device_table_bytes = 3,
                                             .host_bytes = 4,
                                             .hits = 5,
                                             .ring_hits = 6,
                                             .misses = 7,
                                             .bytes_loaded = 8,
                                             .bytes_offloaded = 9}};
  ResponseWriter plain(form);
  EXPECT_FALSE(parsed(plain.whole(usage))["usage"].contains("hotset"));
  form.kv_usage = form.include_usage = true;
  ResponseWriter asked(form);
  const Json expected = {{"device_bytes", {{"rows", 1}, {"metadata", 2}, {"tables", 3}}},
                         {"host_bytes", 4},
                         {"hits", 5},
                         {"ring_hits", 6},
                         {"misses", 7},
                         {"bytes_loaded", 8},
                         {"bytes_offloaded", 9}};
  EXPECT_EQ(parsed(*asked.usage_chunk(usage))["usage"]["hotset"], expected);
  EXPECT_EQ(parsed(asked.whole(usage))["usage"]["hotset"], expected);
}

TEST(OpenAiResponse, CompletionLogprobsAreParallelLists) {
  auto form = shape(false);
  form.logprobs = true;
  form.top_logprobs = 2;
  ResponseWriter writer(form);
  writer.started({{{1}}});
  // "é" in two tokens, then an emoji in one, then "z"; the first token is an echoed prompt's.
  auto d = delta(0, "A\xc3\xa9\xf0\x9f\x98\x80z", {2, 3, 4}, actors::FinishReason::kLength);
  d.logprobs = {logprob(1, "A", std::nullopt), logprob(2, "\xc3", -1.0F, {{2, "\xc3", -1.0F}, {7, "\xff", -2.0F}}),
                logprob(3, "\xa9", -INFINITY, {{3, "\xa9", -0.0F}, {5, "same", -1.0F}}),
                logprob(4, "\xf0\x9f\x98\x80", NAN, {{5, "same", -1.0F}, {6, "same", -2.0F}}), logprob(5, "z", -0.5F)};
  const std::vector<std::int64_t> offsets = {0, 1, 1, 2, 3};
  for (std::size_t i = 0; i < offsets.size(); ++i) d.logprobs[i].text_offset = offsets[i];
  writer.collect(d);
  const Json choice = parsed(writer.whole({1, 4}))["choices"][0];
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["text_offset"], Json({0, 1, 1, 2, 3}));
  EXPECT_EQ(logprobs["tokens"], Json({"A", "bytes:\\xc3", "bytes:\\xa9", "\xf0\x9f\x98\x80", "z"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({nullptr, -1.0, -9999.0, -9999.0, -0.5}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][1].size(), 2U);
  EXPECT_EQ(logprobs["top_logprobs"][3], Json({{"same", -1.0}, {"\xf0\x9f\x98\x80", -9999.0}}));
  EXPECT_EQ(logprobs["top_logprobs"][4], Json({{"z", -0.5}})) << "the chosen token is always there";
}

TEST(OpenAiResponse, ChatLogprobsHaveBytes) {
  auto form = shape(true);
  form.logprobs = true;
  form.top_logprobs = 1;
  ResponseWriter writer(form);
  writer.started({{{1}}});
  auto d = delta(0, "\xc3\xa9", {1});
  d.logprobs = {logprob(1, "\xc3", -0.1F, {{2, "x", -3.0F}})};
  writer.collect(d);
  const Json logprobs = parsed(writer.whole({1, 1}))["choices"][0]["logprobs"];
  const Json& entry = logprobs["content"][0];
  EXPECT_EQ(entry["bytes"], Json({0xC3}));
  EXPECT_EQ(entry["token"], "bytes:\\xc3");
  EXPECT_EQ(entry["logprob"], -0.1);
  EXPECT_EQ(entry["top_logprobs"], Json::array({Json{{"token", "x"}, {"logprob", -3.0}, {"bytes", {120}}}}));
}

TEST(OpenAiResponse, DeltasWithoutNewsAreNotSent) {
  ResponseWriter writer(shape(true));
  writer.started({{{1}}});
  EXPECT_EQ(writer.chunk(delta(0, "", {5})), std::nullopt);
  EXPECT_EQ(writer.chunk(delta(7, "x", {5})), std::nullopt) << "an index that does not exist";
  EXPECT_FALSE(writer.collect(delta(-1, "x", {5})));
  EXPECT_NE(writer.chunk(delta(0, "", {}, actors::FinishReason::kStop)), std::nullopt);
}

TEST(OpenAiResponse, BrokenTextStaysValidJson) {
  ResponseWriter writer(shape(false));
  writer.started({{{1}}});
  writer.collect(delta(0, "a\xff", {1}));
  EXPECT_EQ(parsed(writer.whole({1, 1}))["choices"][0]["text"], "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace hotset::api
