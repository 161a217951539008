// Answers of /v1/completions and /v1/chat/completions, as a stream of chunks or whole, from the same deltas: a whole
// answer is the sum of its deltas, formatted once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/requests.h"
#include "api/openai_json.h"
#include "api/openai_request.h"

namespace hotset::api {

// Which parts an answer has; taken from the request.
struct ResponseShape {
  std::string model;
  std::int64_t created = 0;  // unix seconds
  std::int32_t choices = 1;
  std::int32_t choices_per_prompt = 1;
  bool chat = false;
  bool include_usage = false;
  bool return_token_ids = false;
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  bool kv_usage = false;
};

[[nodiscard]] ResponseShape response_shape(const OpenAiRequest& request, std::string model, std::int64_t created);

// Thread: one at a time. Either the stream functions or collect() and whole() are used.
class ResponseWriter {
 public:
  explicit ResponseWriter(ResponseShape shape);  // makes the response id

  // Both modes, before any delta.
  void started(actors::GenerationStarted started);

  // Stream: chunks that come before any output (chat: the role of each choice).
  [[nodiscard]] std::vector<std::string> first_chunks();
  // Stream: nullopt when the delta has nothing that the client asked for.
  [[nodiscard]] std::optional<std::string> chunk(const actors::ChoiceDelta& delta);
  // Stream: nullopt unless the client asked for the counts.
  [[nodiscard]] std::optional<std::string> usage_chunk(const actors::GenerationUsage& usage) const;

  // Whole answer. False when a choice index is out of range (a bug of the engine; the delta is ignored).
  bool collect(actors::ChoiceDelta delta);
  [[nodiscard]] std::string whole(const actors::GenerationUsage& usage);

 private:
  struct Choice {
    actors::ChoiceDelta sum;
    bool prompt_ids_sent = false;
  };

  [[nodiscard]] Json envelope(bool is_chunk) const;
  [[nodiscard]] Json choice_json(Choice& choice, const actors::ChoiceDelta& delta, bool is_chunk);
  void add_token_ids(Json& json, Choice& choice, const actors::ChoiceDelta& delta) const;
  [[nodiscard]] Json completion_logprobs(const std::vector<actors::TokenLogprob>& tokens) const;
  [[nodiscard]] Json chat_logprobs(const std::vector<actors::TokenLogprob>& tokens) const;

  ResponseShape shape_;
  std::string id_;
  actors::GenerationStarted started_;
  std::vector<Choice> choices_;
};

}  // namespace hotset::api
