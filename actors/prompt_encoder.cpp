#include "actors/prompt_encoder.h"

#include <string_view>
#include <utility>
#include <variant>

#include "core/concat.h"

namespace hotset::actors {
namespace {

// `text` without the marks that ContentGuard put into it.
std::int64_t bytes_without(std::string_view text, std::string_view mark) {
  std::size_t bytes = text.size();
  if (mark.empty()) return static_cast<std::int64_t>(bytes);
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string_view::npos; at += mark.size()) {
    bytes -= mark.size();
  }
  return static_cast<std::int64_t>(bytes);
}

Result<void> check_size(std::int64_t bytes, TextLimit limit, const char* field) {
  if (bytes <= limit.bytes) return {};
  return Error{ErrorCode::kContextLengthExceeded,
               concat("the context holds ", limit.context, " tokens, the prompt has ", bytes,
                      " bytes, which are more in any case: at most ", limit.bytes, " are read"),
               field};
}

}  // namespace

PromptEncoder::PromptEncoder(PromptEncoderParts parts) : parts_(std::move(parts)) {
  if (parts_.tokenizer != nullptr && !parts_.content_special_tokens) guard_.emplace(parts_.tokenizer);
}

Result<std::vector<std::int32_t>> PromptEncoder::encode(const Prompt& prompt, TextLimit limit) const {
  Result<std::vector<std::int32_t>> tokens = std::vector<std::int32_t>{};
  const char* field = "prompt";
  if (const auto* ids = std::get_if<TokenPrompt>(&prompt)) {
    tokens = ids->tokens;
  } else if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    tokens = encode_text(*text, limit);
  } else {
    field = "messages";
    tokens = encode_chat(std::get<ChatPrompt>(prompt), limit);
  }
  if (!tokens) return tokens;
  for (const std::int32_t token : tokens.value()) {
    if (token >= 0 && token < parts_.vocabulary) continue;
    return invalid_argument(concat("a token id of the prompt is outside the vocabulary of ", parts_.vocabulary), field);
  }
  return tokens;
}

Result<std::vector<std::int32_t>> PromptEncoder::encode_text(const TextPrompt& prompt, TextLimit limit) const {
  if (parts_.tokenizer == nullptr) {
    return invalid_argument("the model has no tokenizer: send the prompt as token ids", "prompt");
  }
  const auto bytes = static_cast<std::int64_t>(prompt.text.size());
  if (const Result<void> good = check_size(bytes, limit, "prompt"); !good) return good.error();
  auto tokens = parts_.tokenizer->encode(prompt.text, {.add_special_tokens = prompt.add_special_tokens});
  if (!tokens || !prompt.add_special_tokens || !parts_.tokenizer->adds_bos()) return tokens;
  // Text that brings its own BOS: exactly one.
  std::vector<std::int32_t>& ids = tokens.value();
  const std::optional<std::int32_t> bos = parts_.tokenizer->bos();
  if (bos && ids.size() >= 2 && ids[0] == *bos && ids[1] == *bos) ids.erase(ids.begin());
  return tokens;
}

Result<std::vector<std::int32_t>> PromptEncoder::encode_chat(const ChatPrompt& prompt, TextLimit limit) const {
  if (parts_.tokenizer == nullptr) {
    return invalid_argument("the model has no tokenizer: chat is not possible, send token ids to /v1/completions",
                            "messages");
  }
  if (!parts_.render) return invalid_argument(parts_.no_chat_reason, "messages");
  if (!guard_) {
    auto text = parts_.render(prompt);
    if (!text) return text.error();
    const auto bytes = static_cast<std::int64_t>(text.value().size());
    if (const Result<void> good = check_size(bytes, limit, "messages"); !good) return good.error();
    return parts_.tokenizer->encode(text.value());
  }
  auto guarded = guard_->protect(prompt);
  if (!guarded) return guarded.error();
  const std::string& mark = guarded.value().mark;
  auto text = parts_.render(guarded.value().prompt);
  if (!text) {
    Error error = text.error();  // a message that quotes the client's text must not show marks
    for (std::size_t at = 0; !mark.empty() && (at = error.message.find(mark)) != std::string::npos;) {
      error.message.erase(at, mark.size());
    }
    return error;
  }
  const std::int64_t bytes = bytes_without(text.value(), mark);
  if (const Result<void> good = check_size(bytes, limit, "messages"); !good) return good.error();
  return guard_->encode(text.value(), mark);
}

}  // namespace hotset::actors
