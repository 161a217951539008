// Turns generated tokens into text as they come.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {

// Appends `bytes` to UTF-8 text piece by piece. What can't become valid any more turns into U+FFFD, one per maximal
// broken part, exactly as if the whole byte string were decoded at once; an incomplete tail is held back (at most 3
// bytes).
class Utf8Assembler {
 public:
  void append(std::string_view bytes, std::string& out);
  void finish(std::string& out);  // an incomplete tail becomes U+FFFD

 private:
  std::string tail_;
};

[[nodiscard]] std::string replace_invalid_utf8(std::string_view bytes);

// One per generated sequence; owned and used by one thread at a time. The concatenated results of push() and flush()
// are replace_invalid_utf8(tokenizer.decode(all tokens, skip_special, position)).
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                TextPosition position = TextPosition::kContinuation);

  // The complete characters that this token finishes; often empty.
  [[nodiscard]] std::string push(std::int32_t id);
  // What is still held back, at the end of the sequence.
  [[nodiscard]] std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  Utf8Assembler assembler_;
  bool skip_special_;
  int strips_left_;
};

}  // namespace hotset::model
