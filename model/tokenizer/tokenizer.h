// Text <-> token ids: byte-pair encoding as the `tokenizers` library does it, from a tokenizer.json or from GGUF
// metadata. A Tokenizer never changes after loading and may be used by any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace hotset::model {

struct TokenizerParts;  // model/tokenizer/tokenizer_parts.h

struct EncodeOptions {
  // Adds what the tokenizer puts around a plain prompt (BOS, EOS). Rendered chat prompts carry theirs: leave it off
  // there.
  bool add_special_tokens = false;
  // Off: the text of a special token (control tokens such as <|im_end|>) is encoded as plain text. Added tokens that
  // are not special stay tokens, because they also stand for ordinary text (runs of spaces).
  bool parse_special = true;
};

// SentencePiece-like tokenizers drop the space in front of a text's first word; in the middle of a text it stays.
enum class TextPosition { kStart, kContinuation };

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerParts parts);  // for the loaders below
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Fails with kInvalidArgument when the text isn't valid UTF-8 or is larger than 1 GiB. Linear in the length for each
  // supported pattern; a word of n bytes costs O(n log n).
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view utf8, EncodeOptions options = {}) const;

  // The tokens' bytes joined; valid UTF-8 only if the tokens end on character boundaries (StreamDecoder and
  // replace_invalid_utf8 repair that). Ids outside the vocabulary give nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special,
                                   TextPosition position = TextPosition::kStart) const;

  // Exact bytes that the token stands for; for special and added tokens their text. Empty outside the vocabulary.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const;
  [[nodiscard]] bool is_special(std::int32_t id) const;
  [[nodiscard]] std::int32_t vocabulary_size() const;  // largest id + 1
  // By the token's spelling in the vocabulary ("<|im_end|>", "\u0120hello").
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view token) const;

  [[nodiscard]] std::optional<std::int32_t> bos() const;
  [[nodiscard]] std::optional<std::int32_t> eos() const;
  [[nodiscard]] bool adds_bos() const;  // whether add_special_tokens puts BOS first

 private:
  friend class StreamDecoder;
  // decode() of one token; `strips_left` starts as leading_strip_count() at the start of a text, else as 0.
  void append_bytes(std::int32_t id, bool skip_special, int& strips_left, std::string& out) const;
  [[nodiscard]] int leading_strip_count() const;

  std::unique_ptr<const TokenizerParts> parts_;
};

// From tokenizer_config.json, which outranks tokenizer.json. Empty or absent: as tokenizer.json says.
struct TokenizerSettings {
  std::string bos_token;  // text
  std::string eos_token;
  std::optional<bool> add_bos;  // add_bos_token
  std::optional<bool> add_eos;
};

// Errors: kCorrupt with the entry that breaks the format; kInvalidArgument naming a kind of tokenizer or step that
// isn't supported (Unigram, WordPiece, ...): such a model can be served by token ids only.
[[nodiscard]] Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(std::string_view json_text,
                                                                           const TokenizerSettings& settings = {});

// The tokenizer.ggml.* keys of a GGUF file, as found there.
struct GgufTokenizerData {
  std::string model;                // "gpt2" is byte-level BPE; others ("llama", "bert", ...) are refused by name
  std::string pre;                  // name of the pre-tokenizer pattern; empty = "default"
  std::vector<std::string> tokens;  // by id
  std::vector<std::int32_t>
      token_types;                  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string> merges;  // "left right", best first
  std::optional<std::int64_t> bos_id;
  std::optional<std::int64_t> eos_id;
  std::optional<bool> add_bos;  // add_bos_token; absent = what the pre-tokenizer's family does
  std::optional<bool> add_eos;
};
[[nodiscard]] Result<std::shared_ptr<const Tokenizer>> load_gguf_tokenizer(const GgufTokenizerData& data);

}  // namespace hotset::model
