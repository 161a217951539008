// Turns the prompts of a request into token ids: text, ids as they are, or messages through the chat template.
// Thread: immutable after construction.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/content_guard.h"
#include "actors/requests.h"
#include "core/result.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::actors {

struct PromptEncoderParts {
  std::shared_ptr<const model::Tokenizer> tokenizer;  // null: token ids only
  // Renders messages; its error is the answer when the template raises one. Empty: chat is refused.
  std::function<Result<std::string>(const ChatPrompt&)> render;
  std::string no_chat_reason;   // why `render` is empty
  std::int64_t vocabulary = 0;  // of the model
  bool content_special_tokens = true;
};

// How much text a prompt may have to be worth encoding: megabytes take seconds.
struct TextLimit {
  std::int64_t bytes = std::numeric_limits<std::int64_t>::max();  // longer text does not fit the context in any case
  std::int64_t context = 0;                                       // tokens, for the message
};

class PromptEncoder {
 public:
  explicit PromptEncoder(PromptEncoderParts parts);

  // Every id is inside the vocabulary; empty for an empty text without BOS. kInvalidArgument for other ids, text
  // without a tokenizer, a chat that the template refuses. kContextLengthExceeded for text beyond the limit, of a chat
  // for what the template made of it; such text does not reach the tokenizer.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(const Prompt& prompt, TextLimit limit = {}) const;

  [[nodiscard]] const std::shared_ptr<const model::Tokenizer>& tokenizer() const { return parts_.tokenizer; }
  [[nodiscard]] std::int64_t vocabulary() const { return parts_.vocabulary; }

 private:
  [[nodiscard]] Result<std::vector<std::int32_t>> encode_text(const TextPrompt& prompt, TextLimit limit) const;
  [[nodiscard]] Result<std::vector<std::int32_t>> encode_chat(const ChatPrompt& prompt, TextLimit limit) const;

  PromptEncoderParts parts_;
  std::optional<ContentGuard> guard_;
};

}  // namespace hotset::actors
