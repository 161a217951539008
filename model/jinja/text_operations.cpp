#include "model/jinja/text_operations.h"

#include <algorithm>

#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// The word at the right end of `text`, which has no trailing space.
std::string_view last_word(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    const std::size_t start = previous_start(text.substr(0, begin), begin);
    std::size_t at = start;
    if (is_space(next_code_point(text, at))) break;
    begin = start;
  }
  return text.substr(begin);
}

std::string_view first_word(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size()) {
    std::size_t at = end;
    if (is_space(next_code_point(text, at))) break;
    end = at;
  }
  return text.substr(0, end);
}

}  // namespace

std::size_t find_text(std::string_view text, std::string_view wanted, bool from_right, Budget& budget) {
  if (wanted.size() > text.size()) return std::string_view::npos;
  constexpr std::size_t kComparedBytes = std::size_t{64} << 10;  // at most, for each step that is paid
  const std::size_t places = text.size() - wanted.size() + 1;
  const std::size_t group = std::max<std::size_t>(1, kComparedBytes / std::max<std::size_t>(wanted.size(), 1));
  for (std::size_t done = 0; done < places;) {
    const std::size_t count = std::min(group, places - done);
    const std::size_t begin = from_right ? places - done - count : done;
    const std::string_view part = text.substr(begin, count + wanted.size() - 1);
    const std::size_t at = from_right ? part.rfind(wanted) : part.find(wanted);
    const bool found = at != std::string_view::npos;
    const std::size_t passed = !found ? count : from_right ? count - 1 - at : at;
    budget.step(static_cast<std::int64_t>(1 + passed / 64 + wanted.size() / kComparedBytes));
    if (found) return begin + at;
    done += count;
  }
  return std::string_view::npos;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, std::int64_t limit,
                                       bool from_right, Budget& budget) {
  std::vector<std::string_view> pieces;
  for (std::int64_t cuts = 0; cuts < limit; ++cuts) {
    const std::size_t at = find_text(text, separator, from_right, budget);
    if (at == std::string_view::npos) break;
    pieces.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  pieces.push_back(text);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t limit, bool from_right) {
  std::vector<std::string_view> pieces;
  text = strip_space(text, !from_right, from_right);
  for (std::int64_t cuts = 0; cuts < limit && !text.empty(); ++cuts) {
    const std::string_view word = from_right ? last_word(text) : first_word(text);
    pieces.push_back(word);
    const std::size_t rest = text.size() - word.size();
    text = from_right ? text.substr(0, rest) : text.substr(word.size());
    text = strip_space(text, !from_right, from_right);
  }
  if (!text.empty()) pieces.push_back(text);  // with the space at its far side, as Python
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!ends_line(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace_all(std::string_view text, std::string_view old_part, std::string_view new_part, std::int64_t count,
                        Budget& budget) {
  budget.bytes(static_cast<std::int64_t>(text.size()));
  std::string out;
  std::size_t at = 0;
  for (std::int64_t done = 0; count < 0 || done < count; ++done) {
    if (old_part.empty()) {
      // Before every code point and at the end.
      budget.bytes(static_cast<std::int64_t>(new_part.size()) + 1);
      out += new_part;
      if (at >= text.size()) return out;
      const std::size_t start = at;
      next_code_point(text, at);
      out += text.substr(start, at - start);
      continue;
    }
    const std::size_t distance = find_text(text.substr(at), old_part, false, budget);
    if (distance == std::string_view::npos) break;
    const std::size_t found = at + distance;
    budget.bytes(static_cast<std::int64_t>(new_part.size()) + 1);
    out += text.substr(at, distance);
    out += new_part;
    at = found + old_part.size();
  }
  out += text.substr(at);
  return out;
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  std::size_t at = 0;
  next_code_point(text, at);
  return to_upper(text.substr(0, at)) + to_lower(text.substr(at));
}

bool has_only_case(std::string_view text, bool upper) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (upper ? is_lower(c) : is_upper(c)) return false;
    any |= upper ? is_upper(c) : is_lower(c);
  }
  return any;
}

std::string padded(std::string_view text, std::int64_t length, std::int64_t width, std::string_view fill,
                   Alignment alignment, Budget& budget) {
  if (width <= length) return std::string(text);
  const std::int64_t missing = width - length;
  if (missing > (std::int64_t{1} << 40)) fail("the template uses too much memory");
  budget.bytes(missing * static_cast<std::int64_t>(fill.size()) + static_cast<std::int64_t>(text.size()));
  const std::int64_t left = alignment == Alignment::kLeft    ? 0
                            : alignment == Alignment::kRight ? missing
                                                             : missing / 2 + (missing & width & 1);
  std::string out;
  for (std::int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (std::int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace hotset::model::jinja
