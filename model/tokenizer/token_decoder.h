// From a token's spelling in the vocabulary to the bytes it stands for. Runs once per token, at load.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"
#include "model/tokenizer/normalizer.h"

namespace hotset::model {

struct ByteLevelDecode {};     // printable spelling -> bytes; a token with other characters keeps its text
struct ByteFallbackDecode {};  // "<0x0A>" -> that byte; anything else, "<0x-1>" too, keeps its text
// Drops `content` up to `start` times in front and `stop` times behind.
struct StripDecode {
  std::string content;
  int start = 0;
  int stop = 0;
};
using TokenDecodeStep = std::variant<ByteLevelDecode, ByteFallbackDecode, ReplaceStep, StripDecode>;

class TokenDecoder {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  [[nodiscard]] bool empty() const { return steps_.empty(); }
  [[nodiscard]] Result<std::string> bytes_of(std::string_view token) const;

 private:
  std::vector<TokenDecodeStep> steps_;
};

}  // namespace hotset::model
