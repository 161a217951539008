#include "model/jinja/unicode.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

namespace hotset::model::jinja {
namespace {

bool is_ascii(std::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || u_istitle(static_cast<UChar32>(c)); }

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}
std::string from_icu(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto lead = static_cast<unsigned char>(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 && lead < 0xF5 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC2 ? 1 : 0;
  if (more == 0 || lead >= 0xF5 || at + static_cast<std::size_t>(more) > text.size()) return 0xDC00 + lead;
  char32_t code_point = lead & (0x3F >> more);
  for (int i = 0; i < more; ++i) {
    const char c = text[at + static_cast<std::size_t>(i)];
    if (!is_continuation(c)) return 0xDC00 + lead;
    code_point = (code_point << 6) | (static_cast<unsigned char>(c) & 0x3F);
  }
  const bool overlong = (more == 2 && code_point < 0x800) || (more == 3 && code_point < 0x10000);
  if (overlong || code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) return 0xDC00 + lead;
  at += static_cast<std::size_t>(more);
  return code_point;
}

std::size_t previous_start(std::string_view text, std::size_t end) {
  // The longest code point has four bytes; a start counts only when decoding from it ends exactly at `end`.
  for (std::size_t back = 1; back <= std::min<std::size_t>(4, end); ++back) {
    std::size_t at = end - back;
    next_code_point(text, at);
    if (at == end && !is_continuation(text[end - back])) return end - back;
  }
  return end - 1;
}

void append_code_point(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    if (c >= 0xDC00 && c < 0xE000 && at == start + 1) return false;
  }
  return true;
}

std::int64_t count_code_points(std::string_view text) {
  if (is_ascii(text)) return static_cast<std::int64_t>(text.size());
  std::int64_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) next_code_point(text, at);
  return count;
}

std::size_t byte_offset(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (std::int64_t i = 0; i < index && at < text.size(); ++i) next_code_point(text, at);
  return at;
}

bool is_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_alpha(char32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}
bool is_decimal(char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : u_isdigit(static_cast<UChar32>(c)) != 0; }
bool is_digit(char32_t c) {
  if (is_decimal(c)) return true;
  const int type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DIGIT || type == U_NT_DECIMAL;
}
bool is_numeric(char32_t c) {
  return is_decimal(c) || u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool is_upper(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0; }
bool is_lower(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0; }

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  constexpr std::uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

std::string to_upper(std::string_view text) {
  if (!is_ascii(text)) return from_icu(to_icu(text).toUpper(icu::Locale::getRoot()));
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return out;
}
std::string to_lower(std::string_view text) {
  if (!is_ascii(text)) return from_icu(to_icu(text).toLower(icu::Locale::getRoot()));
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view piece = text.substr(start, at - start);
    out += after_cased ? to_lower(piece) : to_upper(piece);
    after_cased = is_cased(c);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t c = next_code_point(text, at);
    const std::string_view piece = text.substr(start, at - start);
    out += is_upper(c) ? to_lower(piece) : is_lower(c) ? to_upper(piece) : std::string(piece);
  }
  return out;
}

namespace {
template <class Drop>
std::string_view strip_if(std::string_view text, bool left, bool right, Drop drop) {
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (left && begin < end) {
    std::size_t at = begin;
    if (!drop(next_code_point(text, at))) break;
    begin = at;
  }
  while (right && end > begin) {
    const std::size_t start = previous_start(text.substr(0, end), end);
    std::size_t at = start;
    if (start < begin || !drop(next_code_point(text, at))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}
}  // namespace

std::string_view strip_space(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, is_space);
}

std::string_view strip_chars(std::string_view text, std::string_view chars, bool left, bool right, Budget& budget) {
  return strip_if(text, left, right, [&](char32_t c) {
    budget.scan(static_cast<std::int64_t>(chars.size()));
    for (std::size_t at = 0; at < chars.size();) {
      if (next_code_point(chars, at) == c) return true;
    }
    return false;
  });
}

}  // namespace hotset::model::jinja
