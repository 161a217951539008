// Request bodies of the OpenAI endpoints as plain values. Every field is checked for type and range (docs/api.md lists
// them); unknown fields are ignored. Errors name the field and never repeat the input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/requests.h"
#include "api/openai_json.h"
#include "core/result.h"

namespace hotset::api {

struct RequestLimits {
  std::int32_t vocabulary = 0;       // token ids are below it
  std::int64_t max_choices = 1'024;  // prompts * n of one request
};

struct OpenAiRequest {
  actors::GenerationRequest generation;
  bool chat = false;
  bool stream = false;
  bool include_usage = false;     // one more chunk with the token counts at the end of a stream
  bool return_token_ids = false;  // prompt_token_ids and token_ids in each choice
  bool logprobs = false;
  bool kv_usage = false;  // what the cache spent on the request, beside the token counts
};

// A request without a seed gets a random one.
[[nodiscard]] Result<OpenAiRequest> parse_completion_request(const Json& body, const RequestLimits& limits);
[[nodiscard]] Result<OpenAiRequest> parse_chat_request(const Json& body, const RequestLimits& limits);

// {prompt, add_special_tokens} or {messages, add_generation_prompt, tools, chat_template_kwargs}.
[[nodiscard]] Result<actors::TokenizeRequest> parse_tokenize_request(const Json& body);
// {tokens}
[[nodiscard]] Result<std::vector<std::int32_t>> parse_detokenize_request(const Json& body, const RequestLimits& limits);

// The requested model's name, empty when absent.
[[nodiscard]] Result<std::string> parse_model(const Json& body);

}  // namespace hotset::api
