#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <functional>

#include "model/tokenizer/tokenizer_parts.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;

// The ids of pieces that were met before in the same stretch of text. One entry per hash: bounded, and most words of a
// text repeat. It holds places in the text and in the ids, never copies.
class PieceCache {
 public:
  explicit PieceCache(std::size_t text_bytes) {
    // Below a few pages of text the table costs more than it saves.
    if (text_bytes >= 2048) entries_.resize(text_bytes >= 65536 ? 8192 : 1024);
  }

  // Appends the ids of `piece` if it is known. Otherwise the caller appends them and then calls store().
  bool append_known(std::string_view text, Span piece, std::vector<std::int32_t>& ids) {
    const std::string_view bytes = text.substr(piece.begin, piece.end - piece.begin);
    if (entries_.empty() || bytes.size() > kMaxPieceBytes) {
      slot_ = nullptr;
      return false;
    }
    slot_ = &entries_[std::hash<std::string_view>{}(bytes) % entries_.size()];
    const Span known = slot_->piece;
    if (known.end - known.begin != bytes.size() || text.substr(known.begin, bytes.size()) != bytes) return false;
    for (std::size_t i = slot_->ids.begin; i < slot_->ids.end; ++i) ids.push_back(ids[i]);
    return true;
  }
  void store(Span piece, Span ids) {
    if (slot_ != nullptr) *slot_ = {piece, ids};
  }

 private:
  static constexpr std::size_t kMaxPieceBytes = 64;
  struct Entry {
    Span piece, ids;  // empty: unused (no piece is empty)
  };
  std::vector<Entry> entries_;
  Entry* slot_ = nullptr;
};

// One call of encode().
class Encoder {
 public:
  Encoder(const TokenizerParts& parts, bool parse_special) : parts_(parts), parse_special_(parse_special) {}

  Result<void> run(std::string_view text) {
    std::vector<AddedTokens::Segment> segments;
    parts_.added.split(text, false, parse_special_, segments);
    bool at_start = true;
    for (const auto& segment : segments) {
      if (segment.id) {
        ids_.push_back(*segment.id);
      } else {
        auto done = encode_segment(segment.text, at_start);
        if (!done) return done;
      }
      at_start = false;
    }
    return {};
  }
  std::vector<std::int32_t>& ids() { return ids_; }

 private:
  Result<void> encode_segment(std::string_view text, bool at_start) {
    std::string normalized;
    if (!parts_.normalizer.empty()) {
      auto result = parts_.normalizer.run(text);
      if (!result) return result.error();
      normalized = std::move(result).value();
      text = normalized;
    }
    std::vector<AddedTokens::Segment> segments;
    parts_.added.split(text, true, parse_special_, segments);
    for (const auto& segment : segments) {
      if (segment.id) {
        ids_.push_back(*segment.id);
      } else {
        auto done = encode_text(segment.text, at_start);
        if (!done) return done;
      }
      at_start = false;
    }
    return {};
  }

  Result<void> encode_text(std::string_view text, bool at_start) {
    auto cut = parts_.pre_tokenizer.run(text, at_start, list_);
    if (!cut) return cut;
    PieceCache cache(list_.text.size());
    for (const Span& piece : list_.pieces) {
      const std::size_t begin = ids_.size();
      if (cache.append_known(list_.text, piece, ids_)) continue;
      parts_.bpe.encode(list_.text.substr(piece.begin, piece.end - piece.begin), scratch_, ids_);
      cache.store(piece, {begin, ids_.size()});
    }
    return {};
  }

  const TokenizerParts& parts_;
  const bool parse_special_;
  PieceList list_;
  Bpe::Scratch scratch_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::make_unique<const TokenizerParts>(std::move(parts))) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view utf8, EncodeOptions options) const {
  if (utf8.size() > kMaxTextBytes) return invalid_argument("the text is larger than 1 GiB");
  // Everything below trusts this, PCRE2 above all.
  if (!is_valid_utf8(utf8)) return invalid_argument("the text is not valid UTF-8");
  Encoder encoder(*parts_, options.parse_special);
  auto& ids = encoder.ids();
  if (options.add_special_tokens) ids = parts_->prefix;
  auto done = encoder.run(utf8);
  if (!done) return done.error();
  if (options.add_special_tokens) ids.insert(ids.end(), parts_->suffix.begin(), parts_->suffix.end());
  return std::move(ids);
}

int Tokenizer::leading_strip_count() const { return parts_->leading_strip.count; }

void Tokenizer::append_bytes(std::int32_t id, bool skip_special, int& strips_left, std::string& out) const {
  if (skip_special && is_special(id)) return;
  std::string_view bytes = token_bytes(id);
  while (strips_left > 0 && !bytes.empty()) {
    if (!bytes.starts_with(parts_->leading_strip.content)) {
      strips_left = 0;
      break;
    }
    bytes.remove_prefix(parts_->leading_strip.content.size());
    --strips_left;
  }
  out += bytes;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special, TextPosition position) const {
  std::string out;
  int strips_left = position == TextPosition::kStart ? leading_strip_count() : 0;
  for (const std::int32_t id : ids) append_bytes(id, skip_special, strips_left, out);
  return out;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const { return parts_->bytes.get(id); }

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary_size() && parts_->special[static_cast<std::size_t>(id)];
}

std::int32_t Tokenizer::vocabulary_size() const { return parts_->bytes.size(); }

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto added = parts_->added.find(token);
  return added ? added : parts_->vocabulary->find(token);
}

std::optional<std::int32_t> Tokenizer::bos() const { return parts_->bos; }
std::optional<std::int32_t> Tokenizer::eos() const { return parts_->eos; }

bool Tokenizer::adds_bos() const {
  return parts_->bos && !parts_->prefix.empty() && parts_->prefix.front() == *parts_->bos;
}

}  // namespace hotset::model
