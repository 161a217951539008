#include "model/tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

bool is_space(char32_t point) { return u_hasBinaryProperty(static_cast<UChar32>(point), UCHAR_WHITE_SPACE); }

bool is_word(char32_t point) {
  const auto c = static_cast<UChar32>(point);
  const int mask = U_GET_GC_MASK(c);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

// Start of the character that ends at `end` > 0.
std::size_t previous_character(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = previous_character(text, at);
  return is_word(next_code_point(text, begin));
}

bool word_after(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_code_point(text, at));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at, std::size_t lowest) {
  while (at > lowest) {
    const std::size_t begin = previous_character(text, at);
    std::size_t next = begin;
    if (!is_space(next_code_point(text, next))) break;
    at = begin;
  }
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

}  // namespace

std::int32_t AddedTokens::Trie::child(std::int32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  for (const auto& [key, target] : nodes_[static_cast<std::size_t>(node)].children) {
    if (key == byte) return target;
  }
  return -1;
}

void AddedTokens::Trie::insert(std::string_view content, std::int32_t token) {
  std::int32_t node = 0;
  for (const unsigned char byte : content) {
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0) {
        first_[byte] = next;
      } else {
        nodes_[static_cast<std::size_t>(node)].children.emplace_back(byte, next);
      }
    }
    node = next;
  }
  std::int32_t& slot = nodes_[static_cast<std::size_t>(node)].token;
  if (slot < 0) slot = token;
}

std::optional<std::pair<std::int32_t, std::size_t>> AddedTokens::Trie::longest(std::string_view text,
                                                                               std::size_t at) const {
  std::optional<std::pair<std::int32_t, std::size_t>> best;
  std::int32_t node = 0;
  while (at < text.size()) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    ++at;
    const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token;
    if (token >= 0) best = {token, at};
  }
  return best;
}

Result<AddedTokens> AddedTokens::build(std::vector<AddedToken> tokens, const Normalizer& normalizer) {
  AddedTokens out;
  out.tokens_ = std::move(tokens);
  // Special tokens come first, so that they win when two tokens are normalised to the same text.
  for (const bool special : {true, false}) {
    for (std::size_t i = 0; i < out.tokens_.size(); ++i) {
      const AddedToken& token = out.tokens_[i];
      if (token.special != special) continue;
      out.ids_.emplace(token.content, token.id);
      if (!token.normalized) {
        out.raw_.insert(token.content, static_cast<std::int32_t>(i));
        continue;
      }
      auto content = normalizer.run(token.content);
      if (!content) return content.error();
      if (!content.value().empty()) out.normalized_.insert(content.value(), static_cast<std::int32_t>(i));
    }
  }
  return out;
}

void AddedTokens::split(std::string_view text, bool normalized, bool parse_special, std::vector<Segment>& out) const {
  const Trie& trie = normalized ? normalized_ : raw_;
  std::size_t done = 0;  // everything before it lies in a segment
  for (std::size_t at = trie.empty() ? text.size() : 0; at < text.size();) {
    const auto match = trie.longest(text, at);
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match->first)];
    std::size_t begin = at;
    std::size_t end = match->second;
    at = end;  // a match that is turned down is still not searched again
    if (token.special && !parse_special) continue;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip) begin = skip_spaces_back(text, begin, std::min(done, begin));
    if (token.rstrip) end = skip_spaces(text, end);
    if (done < begin) out.push_back({text.substr(done, begin - done), std::nullopt});
    out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({text.substr(done), std::nullopt});
}

std::optional<std::int32_t> AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace hotset::model
