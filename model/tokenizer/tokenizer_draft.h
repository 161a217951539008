// What the two loaders read out of their formats, and the checks that hold for both.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/result.h"
#include "model/tokenizer/token_decoder.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_parts.h"

namespace hotset::model {

struct TokenizerDraft {
  std::unique_ptr<Vocabulary> vocabulary = std::make_unique<Vocabulary>();
  std::vector<Merge> merges;  // views into the loader's input
  BpeOptions bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  LeadingStrip leading_strip;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
};

// Fails with kCorrupt where ids repeat, leave gaps inside the model's vocabulary or contradict each other, and where
// merges name unknown tokens.
[[nodiscard]] Result<std::shared_ptr<const Tokenizer>> assemble_tokenizer(TokenizerDraft draft);

}  // namespace hotset::model
