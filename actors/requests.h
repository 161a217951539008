// What the API asks of the engine and what comes back: plain values, no CAF, no pointers to engine state. Strings and
// numbers were checked by the API for type and range; what needs the tokenizer or the pools is checked by the gateway
// and the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/result.h"
#include "model/sampler.h"
#include "sparse/kv_usage.h"

namespace hotset::actors {

struct TextPrompt {
  std::string text;  // valid UTF-8
  bool add_special_tokens = true;
};
struct TokenPrompt {
  std::vector<std::int32_t> tokens;
};
struct ChatPrompt {
  std::string messages_json;         // array
  std::string tools_json;            // array, or empty
  std::string template_kwargs_json;  // object, or empty
  bool add_generation_prompt = true;
};
using Prompt = std::variant<TextPrompt, TokenPrompt, ChatPrompt>;

// One HTTP request: every prompt is answered n times; choice index = prompt * n + sample.
struct GenerationRequest {
  std::vector<Prompt> prompts;
  std::int32_t n = 1;
  std::optional<std::int64_t> max_tokens;  // chat: absent = what fits; completions: the API puts 16
  model::SamplingParams sampling;          // sample i uses a seed derived from seed and i
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool echo = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<std::string> algorithm;  // selection of this request, by name; absent: the server's
  std::optional<std::int64_t> budget;    // tokens of a selection, > 0; absent: the server's
};

enum class FinishReason { kStop, kLength };

struct TokenLogprob {
  std::int32_t token = 0;
  std::string text;              // exact bytes of the token; "token_id:N" without a tokenizer; may be half a character
  std::optional<float> logprob;  // absent: first token of an echoed prompt
  // Characters of the choice's whole text before the character in which the token begins; for a token that the text
  // does not show, those before the place where it would begin. At most the length of the whole text.
  std::int64_t text_offset = 0;
  struct Alternative {
    std::int32_t token = 0;
    std::string text;
    float logprob = 0;
  };
  std::vector<Alternative> top;
};

// New output of one choice. Deltas of one choice come in order; text never splits a character or a stop string.
struct ChoiceDelta {
  std::int32_t index = 0;
  std::string text;
  std::vector<std::int32_t> token_ids;  // generated ones only
  // One per token when asked for (with echo the prompt's come first), each in the first delta at which its text_offset
  // is sure: while a token's text may be a part of a stop string, its entry waits too.
  std::vector<TokenLogprob> logprobs;
  std::optional<FinishReason> finish;  // exactly once per choice, in its last delta
};

struct GenerationStarted {
  std::vector<std::vector<std::int32_t>> prompt_token_ids;  // [prompt]
};
struct GenerationUsage {
  std::int64_t prompt_tokens = 0;  // each prompt once
  std::int64_t completion_tokens = 0;
  sparse::KvUsage kv;  // of all choices together
};

// Receives the events of one request: started, then deltas, then finished; or error at any point, which ends it (before
// started: the request was refused). Called from actor threads, one at a time; must not block.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void on_started(GenerationStarted started) = 0;
  virtual void on_delta(ChoiceDelta delta) = 0;
  virtual void on_finished(GenerationUsage usage) = 0;
  virtual void on_error(Error error) = 0;
};

struct TokenizeRequest {
  Prompt prompt;
};
struct TokenizeResponse {
  std::vector<std::int32_t> tokens;
  std::int64_t max_model_len = 0;
};

}  // namespace hotset::actors
