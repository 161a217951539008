// For --content-special-tokens off: only the template's own text may become control tokens, never what a client wrote
// into messages, tools or template arguments.
//
// How: before rendering, every place in the client's strings where a special token's text begins (or, at a string's
// end, might begin) gets a mark after its first character: a private-use character that the client's strings do not
// hold. The mark survives rendering. A special token's text in the rendered prompt is the template's own exactly if no
// mark is in it; marks are taken out before encoding. Thread: immutable after construction.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/requests.h"
#include "core/result.h"
#include "model/tokenizer/tokenizer.h"

namespace hotset::actors {

struct GuardedChat {
  ChatPrompt prompt;
  std::string mark;  // UTF-8 of the private-use character; empty: nothing had to be marked
};

class ContentGuard {
 public:
  explicit ContentGuard(std::shared_ptr<const model::Tokenizer> tokenizer);

  // kInvalidArgument for JSON that can't be read or is nested too deeply.
  [[nodiscard]] Result<GuardedChat> protect(const ChatPrompt& prompt) const;

  // Token ids of the prompt rendered from protect()'s result.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view rendered, std::string_view mark) const;

 private:
  [[nodiscard]] std::size_t special_at(std::string_view text, std::size_t position, std::string_view mark) const;
  [[nodiscard]] bool may_begin_special(std::string_view text, std::size_t position) const;
  [[nodiscard]] std::string marked(std::string_view text, std::string_view mark) const;

  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::vector<std::string> specials_by_first_byte_[256];  // longest first
};

}  // namespace hotset::actors
