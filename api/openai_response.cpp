#include "api/openai_response.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <random>

#include "core/concat.h"

namespace hotset::api {
namespace {

std::string random_hex() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  char digits[33];
  std::snprintf(digits, sizeof digits, "%016llx%016llx", static_cast<unsigned long long>(generator()),
                static_cast<unsigned long long>(generator()));
  return digits;
}

// A token may be a part of a character, which no JSON string can hold: then its bytes are spelled out.
std::string printable_token(const std::string& text) {
  if (is_valid_utf8(text)) return text;
  std::string spelled = "bytes:";
  for (const unsigned char byte : text) {
    char escape[5];
    std::snprintf(escape, sizeof escape, "\\x%02x", byte);
    spelled += escape;
  }
  return spelled;
}

const char* name_of(actors::FinishReason reason) { return reason == actors::FinishReason::kStop ? "stop" : "length"; }

Json finish_json(const std::optional<actors::FinishReason>& finish) {
  return finish ? Json(name_of(*finish)) : Json(nullptr);
}

Json kv_usage_json(const sparse::KvUsage& usage) {
  return {{"device_bytes",
           {{"rows", usage.device_row_bytes},
            {"metadata", usage.device_metadata_bytes},
            {"tables", usage.device_table_bytes}}},
          {"host_bytes", usage.host_bytes},
          {"hits", usage.hits},
          {"ring_hits", usage.ring_hits},
          {"misses", usage.misses},
          {"bytes_loaded", usage.bytes_loaded},
          {"bytes_offloaded", usage.bytes_offloaded}};
}

Json usage_json(const actors::GenerationUsage& usage, bool with_kv) {
  Json json{{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  if (with_kv) json["hotset"] = kv_usage_json(usage.kv);
  return json;
}

Json chat_token(const std::string& text, float logprob) {
  Json bytes = Json::array();
  for (const unsigned char byte : text) bytes.push_back(byte);
  return {{"token", printable_token(text)}, {"logprob", number(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

ResponseShape response_shape(const OpenAiRequest& request, std::string model, std::int64_t created) {
  ResponseShape shape;
  shape.model = std::move(model);
  shape.created = created;
  shape.choices_per_prompt = request.generation.n;
  shape.choices = static_cast<std::int32_t>(request.generation.prompts.size()) * request.generation.n;
  shape.chat = request.chat;
  shape.include_usage = request.include_usage;
  shape.return_token_ids = request.return_token_ids;
  shape.logprobs = request.logprobs;
  shape.kv_usage = request.kv_usage;
  shape.top_logprobs = std::max(0, request.generation.sampling.logprobs);
  return shape;
}

ResponseWriter::ResponseWriter(ResponseShape shape)
    : shape_(std::move(shape)), id_(concat(shape_.chat ? "chatcmpl-" : "cmpl-", random_hex())) {
  choices_.resize(static_cast<std::size_t>(shape_.choices));
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].sum.index = static_cast<std::int32_t>(i);
}

void ResponseWriter::started(actors::GenerationStarted started) { started_ = std::move(started); }

Json ResponseWriter::envelope(bool is_chunk) const {
  const char* object = !shape_.chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  Json json = {{"id", id_}, {"object", object}, {"created", shape_.created}, {"model", shape_.model}};
  json["choices"] = Json::array();
  return json;
}

void ResponseWriter::add_token_ids(Json& json, Choice& choice, const actors::ChoiceDelta& delta) const {
  if (!shape_.return_token_ids) return;
  const auto prompt = static_cast<std::size_t>(delta.index / shape_.choices_per_prompt);
  if (!choice.prompt_ids_sent && prompt < started_.prompt_token_ids.size()) {
    json["prompt_token_ids"] = started_.prompt_token_ids[prompt];
  }
  choice.prompt_ids_sent = true;
  json["token_ids"] = delta.token_ids;
}

Json ResponseWriter::completion_logprobs(const std::vector<actors::TokenLogprob>& tokens) const {
  Json offsets = Json::array(), texts = Json::array(), values = Json::array(), tops = Json::array();
  for (const auto& token : tokens) {
    offsets.push_back(token.text_offset);
    texts.push_back(printable_token(token.text));
    if (!token.logprob) {
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(number(*token.logprob));
    Json top = Json::object();
    for (const auto& alternative : token.top) {
      // Two ids may have the same text; the better one comes first and stays.
      if (std::string text = printable_token(alternative.text); !top.contains(text)) {
        top[std::move(text)] = number(alternative.logprob);
      }
    }
    if (std::string text = printable_token(token.text); !top.contains(text))
      top[std::move(text)] = number(*token.logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ResponseWriter::chat_logprobs(const std::vector<actors::TokenLogprob>& tokens) const {
  Json content = Json::array();
  for (const auto& token : tokens) {
    Json entry = chat_token(token.text, token.logprob.value_or(0));
    Json top = Json::array();
    for (const auto& alternative : token.top) top.push_back(chat_token(alternative.text, alternative.logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json ResponseWriter::choice_json(Choice& choice, const actors::ChoiceDelta& delta, bool is_chunk) {
  Json json = {{"index", delta.index}};
  if (!shape_.chat) {
    json["text"] = delta.text;
  } else if (is_chunk) {
    json["delta"] = delta.text.empty() ? Json::object() : Json{{"content", delta.text}};
  } else {
    json["message"] = {{"role", "assistant"}, {"content", delta.text}, {"refusal", nullptr}};
  }
  const bool has_logprobs = shape_.logprobs && (!is_chunk || !delta.logprobs.empty());
  json["logprobs"] = !has_logprobs ? Json(nullptr)
                     : shape_.chat ? chat_logprobs(delta.logprobs)
                                   : completion_logprobs(delta.logprobs);
  json["finish_reason"] = finish_json(delta.finish);
  add_token_ids(json, choice, delta);
  return json;
}

std::vector<std::string> ResponseWriter::first_chunks() {
  std::vector<std::string> chunks;
  if (!shape_.chat) return chunks;
  for (Choice& choice : choices_) {
    Json json = envelope(true);
    actors::ChoiceDelta nothing;
    nothing.index = choice.sum.index;
    Json first = choice_json(choice, nothing, true);
    first["delta"] = {{"role", "assistant"}, {"content", ""}};
    json["choices"].push_back(std::move(first));
    if (shape_.include_usage) json["usage"] = nullptr;
    chunks.push_back(to_text(json));
  }
  return chunks;
}

std::optional<std::string> ResponseWriter::chunk(const actors::ChoiceDelta& delta) {
  if (delta.index < 0 || delta.index >= shape_.choices) return std::nullopt;
  const bool wanted = !delta.text.empty() || delta.finish || (shape_.logprobs && !delta.logprobs.empty()) ||
                      (shape_.return_token_ids && !delta.token_ids.empty());
  if (!wanted) return std::nullopt;
  Json json = envelope(true);
  json["choices"].push_back(choice_json(choices_[static_cast<std::size_t>(delta.index)], delta, true));
  if (shape_.include_usage) json["usage"] = nullptr;
  return to_text(json);
}

std::optional<std::string> ResponseWriter::usage_chunk(const actors::GenerationUsage& usage) const {
  if (!shape_.include_usage) return std::nullopt;
  Json json = envelope(true);
  json["usage"] = usage_json(usage, shape_.kv_usage);
  return to_text(json);
}

bool ResponseWriter::collect(actors::ChoiceDelta delta) {
  if (delta.index < 0 || delta.index >= shape_.choices) return false;
  auto& sum = choices_[static_cast<std::size_t>(delta.index)].sum;
  sum.text += delta.text;
  sum.token_ids.insert(sum.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(sum.logprobs));
  if (delta.finish) sum.finish = delta.finish;
  return true;
}

std::string ResponseWriter::whole(const actors::GenerationUsage& usage) {
  Json json = envelope(false);
  for (Choice& choice : choices_) json["choices"].push_back(choice_json(choice, choice.sum, false));
  json["usage"] = usage_json(usage, shape_.kv_usage);
  return to_text(json);
}

}  // namespace hotset::api
