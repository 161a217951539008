#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "model/tokenizer/byte_level.h"

namespace hotset::model {
namespace {

struct Part {
  Span span;
  bool is_match;
};

// Matches and what lies between them, covering [begin, end) of the text.
void cover(const std::vector<Span>& matches, Span piece, bool invert, std::vector<Part>& out) {
  out.clear();
  std::size_t at = piece.begin;
  for (const Span& match : matches) {
    if (at < match.begin) out.push_back({{at, match.begin}, invert});
    out.push_back({match, !invert});
    at = match.end;
  }
  if (at < piece.end) out.push_back({{at, piece.end}, invert});
}

void append_if_any(Span span, std::vector<Span>& out) {
  if (span.begin < span.end) out.push_back(span);
}

// Joins parts into pieces. A match glued to its left neighbour ends that piece: the next match starts another.
void join_forward(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Span>& out) {
  bool previous_match = false;
  const std::size_t first = out.size();
  for (const Part& part : parts) {
    const bool joins =
        behavior == SplitBehavior::kContiguous ? part.is_match == previous_match : part.is_match && !previous_match;
    if (joins && out.size() > first) {
      out.back().end = part.span.end;
    } else {
      out.push_back(part.span);
    }
    previous_match = part.is_match;
  }
}

void join_with_next(const std::vector<Part>& parts, std::vector<Span>& out) {
  bool previous_match = false;
  const std::size_t first = out.size();
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->is_match && !previous_match && out.size() > first) {
      out.back().begin = part->span.begin;
    } else {
      out.push_back(part->span);
    }
    previous_match = part->is_match;
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

void split_piece(const SplitStep& step, const std::vector<Part>& parts, std::vector<Span>& out) {
  switch (step.behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) append_if_any(part.span, out);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.is_match) append_if_any(part.span, out);
      }
      return;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious: join_forward(parts, step.behavior, out); break;
    case SplitBehavior::kMergedWithNext: join_with_next(parts, out); break;
  }
  std::erase_if(out, [](Span span) { return span.begin >= span.end; });
}

Result<void> run_step(const SplitStep& step, bool /*at_text_start*/, PieceList& list) {
  std::vector<Span> matches;
  std::vector<Part> parts;
  std::vector<Span> pieces;
  pieces.reserve(list.pieces.size());
  for (const Span& piece : list.pieces) {
    matches.clear();
    auto found = step.pattern->find_all(list.text.substr(piece.begin, piece.end - piece.begin), piece.begin, matches);
    if (!found) return found.error();
    cover(matches, piece, step.invert, parts);
    split_piece(step, parts, pieces);
  }
  list.pieces = std::move(pieces);
  return {};
}

// Replaces each piece's text by what `rewrite(piece, index)` returns.
template <class Rewrite>
void rewrite_pieces(PieceList& list, Rewrite rewrite) {
  std::string text;
  text.reserve(list.text.size() + list.text.size() / 2);
  for (std::size_t i = 0; i < list.pieces.size(); ++i) {
    Span& piece = list.pieces[i];
    const std::size_t begin = text.size();
    text += rewrite(list.text.substr(piece.begin, piece.end - piece.begin), i);
    piece = {begin, text.size()};
  }
  list.storage = std::move(text);
  list.text = list.storage;
}

Result<void> run_step(const PrefixStep& step, bool at_text_start, PieceList& list) {
  rewrite_pieces(list, [&](std::string_view piece, std::size_t index) {
    const bool wanted =
        step.scheme == PrependScheme::kAlways || (step.scheme == PrependScheme::kFirst && at_text_start && index == 0);
    return wanted && !piece.starts_with(step.prefix) ? step.prefix + std::string(piece) : std::string(piece);
  });
  return {};
}

Result<void> run_step(const ReplaceSpacesStep& step, bool /*at_text_start*/, PieceList& list) {
  rewrite_pieces(list, [&](std::string_view piece, std::size_t) {
    std::string out;
    for (const char c : piece) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
    return out;
  });
  return {};
}

Result<void> run_step(const ByteLevelStep&, bool /*at_text_start*/, PieceList& list) {
  rewrite_pieces(list, [](std::string_view piece, std::size_t) { return to_byte_level(piece); });
  return {};
}

}  // namespace

bool PreTokenizer::drop_final_byte_level() {
  if (steps_.empty() || !std::holds_alternative<ByteLevelStep>(steps_.back())) return false;
  steps_.pop_back();
  return true;
}

Result<void> PreTokenizer::run(std::string_view text, bool at_text_start, PieceList& out) const {
  out.text = text;
  out.pieces.clear();
  if (!text.empty()) out.pieces.push_back({0, text.size()});
  for (const PreTokenizerStep& step : steps_) {
    auto applied = std::visit([&](const auto& kind) { return run_step(kind, at_text_start, out); }, step);
    if (!applied) return applied.error();
  }
  return {};
}

}  // namespace hotset::model
