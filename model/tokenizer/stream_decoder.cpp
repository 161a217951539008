#include "model/tokenizer/stream_decoder.h"

#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

void Utf8Assembler::append(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!tail_.empty()) {
    joined = tail_;
    joined += bytes;
    tail_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const Utf8Sequence sequence = first_sequence(bytes);
    if (sequence.kind == Utf8Sequence::Kind::kIncomplete) {
      tail_ = bytes;
      return;
    }
    out += sequence.kind == Utf8Sequence::Kind::kCharacter ? bytes.substr(0, sequence.bytes) : kReplacement;
    bytes.remove_prefix(sequence.bytes);
  }
}

void Utf8Assembler::finish(std::string& out) {
  if (!tail_.empty()) out += kReplacement;
  tail_.clear();
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  Utf8Assembler assembler;
  assembler.append(bytes, out);
  assembler.finish(out);
  return out;
}

StreamDecoder::StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special, TextPosition position)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      strips_left_(position == TextPosition::kStart ? tokenizer_->leading_strip_count() : 0) {}

std::string StreamDecoder::push(std::int32_t id) {
  std::string bytes;
  tokenizer_->append_bytes(id, skip_special_, strips_left_, bytes);
  std::string out;
  assembler_.append(bytes, out);
  return out;
}

std::string StreamDecoder::flush() {
  std::string out;
  assembler_.finish(out);
  return out;
}

}  // namespace hotset::model
