// What a loader puts together and Tokenizer runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/pre_tokenizer.h"

namespace hotset::model {

// Bytes of every token, by id.
class TokenBytes {
 public:
  void resize(std::int32_t tokens) { ranges_.resize(static_cast<std::size_t>(tokens)); }
  void set(std::int32_t id, std::string_view bytes) {
    ranges_[static_cast<std::size_t>(id)] = {arena_.size(), arena_.size() + bytes.size()};
    arena_ += bytes;
  }
  [[nodiscard]] std::string_view get(std::int32_t id) const {
    if (id < 0 || id >= size()) return {};
    const Span range = ranges_[static_cast<std::size_t>(id)];
    return std::string_view(arena_).substr(range.begin, range.end - range.begin);
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ranges_.size()); }

 private:
  std::string arena_;
  std::vector<Span> ranges_;
};

// Dropped from the front of a whole decoded text, up to `count` times.
struct LeadingStrip {
  std::string content;
  int count = 0;
};

struct TokenizerParts {
  std::unique_ptr<const Vocabulary> vocabulary;  // bpe points to it
  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  TokenBytes bytes;
  std::vector<bool> special;  // [bytes.size()]
  LeadingStrip leading_strip;
  std::vector<std::int32_t> prefix;  // what add_special_tokens puts before the text
  std::vector<std::int32_t> suffix;  // and behind it
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
};

}  // namespace hotset::model
