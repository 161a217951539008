#include "actors/choice_text.h"

#include <algorithm>
#include <utility>

#include "core/concat.h"

namespace hotset::actors {
namespace {

// `text` is valid UTF-8.
std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

}  // namespace

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
  release_logprobs(delta);
  return delta;
}

void ChoiceText::echo_prompt(ChoiceDelta& delta) {
  echo_due_ = false;
  std::vector<std::int64_t> offsets;
  for (const std::int32_t token : *prompt_) {
    if (wants_logprobs()) offsets.push_back(next_offset(token));
    delta.text += decode(token);
  }
  if (!wants_logprobs()) return;
  TokenLogprob first;
  first.token = prompt_->front();
  first.text = text_of(first.token);
  unplaced_.push_back(std::move(first));
  for (std::size_t i = 0; i < prompt_scores_.size(); ++i) {
    unplaced_.push_back(describe(prompt_scores_[i], offsets.at(i + 1)));
  }
  prompt_scores_ = {};
}

void ChoiceText::add_token(const model::SampledToken& token, bool is_stop_token, ChoiceDelta& delta) {
  ++completion_tokens_;
  delta.token_ids.push_back(token.token);
  if (wants_logprobs()) unplaced_.push_back(describe(token, next_offset(token.token)));
  const bool silent = is_stop_token && !request_->include_stop_str_in_output;
  if (!decoder_ || silent) return;
  if (!matcher_.add(decode(token.token), delta.text)) return;
  finished_ = true;
  delta.finish = FinishReason::kStop;
}

std::string ChoiceText::decode(std::int32_t token) {
  if (!decoder_) return {};
  std::string text = decoder_->push(token);
  if (wants_logprobs()) {
    std::string ignored;
    if (is_visible(token)) unfinished_.append(tokenizer_->token_bytes(token), ignored);
    decoded_characters_ += characters(text);
  }
  return text;
}

std::int64_t ChoiceText::next_offset(std::int32_t token) const {
  if (!decoder_ || !is_visible(token)) return decoded_characters_;
  // The first byte either continues the half character that the text ends with, or begins one after it.
  std::string end;
  model::Utf8Assembler probe = unfinished_;
  probe.append(tokenizer_->token_bytes(token).substr(0, 1), end);
  probe.finish(end);
  return decoded_characters_ + std::max<std::int64_t>(characters(end), 1) - 1;
}

void ChoiceText::release_logprobs(ChoiceDelta& delta) {
  if (!wants_logprobs()) return;
  sent_characters_ += characters(delta.text);
  while (!unplaced_.empty() && (finished_ || unplaced_.front().text_offset <= sent_characters_)) {
    TokenLogprob& entry = unplaced_.front();
    entry.text_offset = std::min(entry.text_offset, sent_characters_);
    delta.logprobs.push_back(std::move(entry));
    unplaced_.pop_front();
  }
}

bool ChoiceText::is_visible(std::int32_t token) const {
  return !(request_->skip_special_tokens && tokenizer_->is_special(token));
}

TokenLogprob ChoiceText::describe(const model::SampledToken& token, std::int64_t text_offset) const {
  TokenLogprob out;
  out.token = token.token;
  out.text = text_of(token.token);
  out.text_offset = text_offset;
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
