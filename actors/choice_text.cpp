#include "actors/choice_text.h"

#include <utility>

#include "core/concat.h"

namespace hotset::actors {

ChoiceText::ChoiceText(std::int32_t index, std::shared_ptr<const GenerationRequest> request,
                       std::shared_ptr<const std::vector<std::int32_t>> prompt,
                       std::shared_ptr<const model::Tokenizer> tokenizer)
    : index_(index),
      request_(std::move(request)),
      prompt_(std::move(prompt)),
      tokenizer_(std::move(tokenizer)),
      matcher_(request_->stop, request_->include_stop_str_in_output),
      echo_due_(request_->echo) {
  if (tokenizer_ == nullptr) return;
  const auto position = request_->echo ? model::TextPosition::kStart : model::TextPosition::kContinuation;
  decoder_.emplace(tokenizer_, request_->skip_special_tokens, position);
}

std::optional<ChoiceDelta> ChoiceText::start() {
  if (!echo_due_ || wants_logprobs()) return std::nullopt;
  ChoiceDelta delta;
  delta.index = index_;
  echo_prompt(delta);
  return delta;
}

std::optional<ChoiceDelta> ChoiceText::add(const SequenceOutput& news) {
  if (finished_) return std::nullopt;
  ChoiceDelta delta;
  delta.index = index_;
  prompt_scores_.insert(prompt_scores_.end(), news.prompt_logprobs.begin(), news.prompt_logprobs.end());
  const bool prompt_done = !news.tokens.empty() || news.end != OutputEnd::kNone;
  if (!prompt_done) return std::nullopt;
  if (echo_due_) echo_prompt(delta);
  for (std::size_t i = 0; i < news.tokens.size() && !finished_; ++i) {
    const bool is_last = i + 1 == news.tokens.size();
    add_token(news.tokens[i], is_last && news.end == OutputEnd::kStopToken, delta);
  }
  if (!finished_ && news.end != OutputEnd::kNone) {
    finished_ = true;
    delta.finish = news.end == OutputEnd::kStopToken ? FinishReason::kStop : FinishReason::kLength;
    const bool stopped = decoder_ && matcher_.add(decoder_->flush(), delta.text);
    if (stopped) delta.finish = FinishReason::kStop;
    if (!stopped) matcher_.finish(delta.text);
  }
  return delta;
}

void ChoiceText::echo_prompt(ChoiceDelta& delta) {
  echo_due_ = false;
  if (decoder_) {
    for (const std::int32_t token : *prompt_) delta.text += decoder_->push(token);
  }
  if (!wants_logprobs()) return;
  TokenLogprob first;
  first.token = prompt_->front();
  first.text = text_of(first.token);
  delta.logprobs.push_back(std::move(first));
  for (const model::SampledToken& score : prompt_scores_) delta.logprobs.push_back(describe(score));
  prompt_scores_ = {};
}

void ChoiceText::add_token(const model::SampledToken& token, bool is_stop_token, ChoiceDelta& delta) {
  ++completion_tokens_;
  delta.token_ids.push_back(token.token);
  if (wants_logprobs()) delta.logprobs.push_back(describe(token));
  const bool silent = is_stop_token && !request_->include_stop_str_in_output;
  if (!decoder_ || silent) return;
  if (!matcher_.add(decoder_->push(token.token), delta.text)) return;
  finished_ = true;
  delta.finish = FinishReason::kStop;
}

TokenLogprob ChoiceText::describe(const model::SampledToken& token) const {
  TokenLogprob out;
  out.token = token.token;
  out.text = text_of(token.token);
  out.logprob = token.logprob;
  out.top.reserve(token.top.size());
  for (const model::TokenAlternative& other : token.top) {
    out.top.push_back({.token = other.token, .text = text_of(other.token), .logprob = other.logprob});
  }
  return out;
}

std::string ChoiceText::text_of(std::int32_t token) const {
  if (tokenizer_ == nullptr) return concat("token_id:", token);
  return std::string(tokenizer_->token_bytes(token));
}

}  // namespace hotset::actors
