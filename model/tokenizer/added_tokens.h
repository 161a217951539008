// Tokens that are found in the text itself, before BPE: control tokens and others that a model's makers added.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/result.h"
#include "model/tokenizer/normalizer.h"

namespace hotset::model {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in normalised text
};

class AddedTokens {
 public:
  // A stretch of text, or the token that takes its place.
  struct Segment {
    std::string_view text;
    std::optional<std::int32_t> id;
  };

  // Contents are not empty and distinct. Fails when a content can't be normalised.
  [[nodiscard]] static Result<AddedTokens> build(std::vector<AddedToken> tokens, const Normalizer& normalizer);

  // Cuts `text` at the leftmost longest matches of the tokens whose `normalized` flag is the one given; the segments
  // cover the text and none is empty. Special tokens are plain text unless `parse_special`.
  void split(std::string_view text, bool normalized, bool parse_special, std::vector<Segment>& out) const;

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view content) const;
  [[nodiscard]] const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // A byte trie.
  class Trie {
   public:
    Trie() : nodes_(1) { first_.fill(-1); }
    void insert(std::string_view content, std::int32_t token);
    // Index of the longest token that starts at text[at] and where it ends.
    [[nodiscard]] std::optional<std::pair<std::int32_t, std::size_t>> longest(std::string_view text,
                                                                              std::size_t at) const;
    [[nodiscard]] bool empty() const { return nodes_.size() == 1; }

   private:
    struct Node {
      std::int32_t token = -1;
      std::vector<std::pair<unsigned char, std::int32_t>> children;
    };
    [[nodiscard]] std::int32_t child(std::int32_t node, unsigned char byte) const;
    std::vector<Node> nodes_;
    std::array<std::int32_t, 256> first_;  // the root's children
  };

  std::vector<AddedToken> tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace hotset::model
