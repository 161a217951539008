// One choice of a request: turns the engine's tokens into the deltas that its client sees, in one way for streamed and
// whole answers. Stop strings, half characters, the echoed prompt, log-probabilities, the finish reason.
// Thread: one owner.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/requests.h"
#include "actors/stop_matcher.h"
#include "actors/wire_messages.h"
#include "model/sampler.h"
#include "model/tokenizer/stream_decoder.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::actors {

class ChoiceText {
 public:
  // `request` and `prompt` (the tokens) are shared by all choices of a prompt. `tokenizer` null: text stays empty.
  ChoiceText(std::int32_t index, std::shared_ptr<const GenerationRequest> request,
             std::shared_ptr<const std::vector<std::int32_t>> prompt,
             std::shared_ptr<const model::Tokenizer> tokenizer);

  // What can be said before the first token: the echoed prompt, unless its log-probabilities have to come with it.
  std::optional<ChoiceDelta> start();

  // The stop token itself counts as a completion token and is in token_ids and logprobs, but its text is left out
  // unless include_stop_str_in_output. `news` has not failed. Nothing is to be added after the delta with the finish
  // reason. nullopt: nothing to send.
  std::optional<ChoiceDelta> add(const SequenceOutput& news);

  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] std::int64_t completion_tokens() const { return completion_tokens_; }

 private:
  void echo_prompt(ChoiceDelta& delta);
  void add_token(const model::SampledToken& token, bool is_stop_token, ChoiceDelta& delta);
  // The characters that the token completes.
  std::string decode(std::int32_t token);
  // text_offset of the next token to decode.
  [[nodiscard]] std::int64_t next_offset(std::int32_t token) const;
  // Moves the entries whose offset is sure into `delta`, which has all of its text.
  void release_logprobs(ChoiceDelta& delta);
  [[nodiscard]] TokenLogprob describe(const model::SampledToken& token, std::int64_t text_offset) const;
  [[nodiscard]] bool is_visible(std::int32_t token) const;
  [[nodiscard]] std::string text_of(std::int32_t token) const;
  [[nodiscard]] bool wants_logprobs() const { return request_->sampling.logprobs >= 0; }

  std::int32_t index_;
  std::shared_ptr<const GenerationRequest> request_;
  std::shared_ptr<const std::vector<std::int32_t>> prompt_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::optional<model::StreamDecoder> decoder_;
  StopMatcher matcher_;
  bool echo_due_;
  bool finished_ = false;
  std::int64_t completion_tokens_ = 0;
  std::vector<model::SampledToken> prompt_scores_;  // gathered until the whole prompt is scored

  // For text_offset.
  model::Utf8Assembler unfinished_;  // holds the same half character as the decoder
  std::int64_t decoded_characters_ = 0;
  std::int64_t sent_characters_ = 0;   // fewer while a part of a stop string is withheld
  std::deque<TokenLogprob> unplaced_;  // a stop string may still cut the text before them
};

}  // namespace hotset::actors
