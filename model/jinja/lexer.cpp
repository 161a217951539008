#include "model/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/concat.h"
#include "model/jinja/budget.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

std::string with_unix_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return is_digit_char(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}
int digit_value(char c) {
  if (is_digit_char(c)) return c - '0';
  const char low = static_cast<char>(c | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_unix_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void error(std::string message) const { throw TemplateError{std::move(message), false, line_}; }
  [[nodiscard]] bool starts_with(std::size_t at, std::string_view text) const {
    return source_.compare(at, text.size(), text) == 0;
  }
  Token& push(TokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text)});
    return tokens_.back();
  }
  // Moves on, counting lines.
  void advance_to(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
    line_starting_ = to > 0 && source_[to - 1] == '\n';
  }
  [[nodiscard]] std::size_t skip_space(std::size_t at) const {
    const std::string_view rest = std::string_view(source_).substr(at);
    return at + (rest.size() - strip_space(rest, true, false).size());
  }
  [[nodiscard]] std::size_t find_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i != std::string::npos && i + 1 < source_.size();
         i = source_.find('{', i + 1)) {
      if (source_[i + 1] == '%' || source_[i + 1] == '{' || source_[i + 1] == '#') return i;
    }
    return std::string::npos;
  }

  // Data before a tag whose sign is `sign` ('-', '+' or 0).
  void data_before_tag(std::size_t end, char sign, bool is_print) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = strip_space(text, false, true);
    } else if (sign != '+' && !is_print) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      const bool at_line_start = line_start > 0 || line_starting_;
      if (at_line_start && strip_space(text.substr(line_start), true, false).empty()) text = text.substr(0, line_start);
    }
    if (!text.empty()) push(TokenKind::kData, std::string(text));
    advance_to(end);
  }

  void root() {
    const std::size_t tag = find_tag(at_);
    if (tag == std::string::npos) {
      push(TokenKind::kData, source_.substr(at_));
      advance_to(source_.size());
      return;
    }
    const char kind = source_[tag + 1];
    std::size_t inside = tag + 2;
    char sign = 0;
    if (inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+')) sign = source_[inside++];
    if (kind == '%' && raw(tag, inside, sign)) return;
    data_before_tag(tag, sign, kind == '{');
    advance_to(inside);
    if (kind == '#') {
      comment();
    } else {
      push(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, {});
      expression(kind == '{');
    }
  }

  void comment() {
    const std::size_t close = source_.find("#}", at_);
    if (close == std::string::npos) error("a comment is not closed");
    const char sign = close > at_ ? source_[close - 1] : 0;
    advance_to(after_block_end(close, sign));
  }

  // Where the text goes on after "%}" or "#}" at `close`, with `sign` ('-', '+' or another) before it.
  [[nodiscard]] std::size_t after_block_end(std::size_t close, char sign) const {
    const std::size_t after = close + 2;
    if (sign == '-') return skip_space(after);
    return sign != '+' && after < source_.size() && source_[after] == '\n' ? after + 1 : after;
  }

  // {% raw %} ... {% endraw %}; false when the tag at `tag` is another one.
  bool raw(std::size_t tag, std::size_t inside, char sign) {
    std::size_t at = skip_space(inside);
    if (!starts_with(at, "raw")) return false;
    at = skip_space(at + 3);
    if (starts_with(at, "-%}")) {
      at = skip_space(at + 3);
    } else if (starts_with(at, "%}")) {
      at += 2;
    } else {
      return false;
    }
    data_before_tag(tag, sign, false);
    advance_to(at);
    for (std::size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 1)) {
      std::size_t p = end + 2;
      char end_sign = 0;
      if (p < source_.size() && (source_[p] == '-' || source_[p] == '+')) end_sign = source_[p++];
      p = skip_space(p);
      if (!starts_with(p, "endraw")) continue;
      p = skip_space(p + 6);
      char close_sign = 0;
      if (starts_with(p, "-%}") || starts_with(p, "+%}")) close_sign = source_[p++];
      if (!starts_with(p, "%}")) continue;
      data_before_tag(end, end_sign, false);
      advance_to(after_block_end(p, close_sign));
      return true;
    }
    error("a raw block is not closed");
  }

  // Tokens up to the end of a print or block tag.
  void expression(bool is_print) {
    std::string closers;  // of the open brackets
    const std::string_view end_mark = is_print ? "}}" : "%}";
    while (at_ < source_.size()) {
      if (closers.empty() && end_of_tag(is_print, end_mark)) return;
      const std::size_t after_space = skip_space(at_);
      if (after_space != at_) {
        advance_to(after_space);
      } else {
        token(closers);
      }
    }
  }

  bool end_of_tag(bool is_print, std::string_view end_mark) {
    std::size_t at = at_;
    char sign = 0;
    if (source_[at] == '-' || (source_[at] == '+' && !is_print)) sign = source_[at++];
    if (!starts_with(at, end_mark)) return false;
    push(is_print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, {});
    if (is_print) {
      advance_to(sign == '-' ? skip_space(at + 2) : at + 2);
    } else {
      advance_to(after_block_end(at, sign));
    }
    return true;
  }

  void token(std::string& closers) {
    const char c = source_[at_];
    if (is_digit_char(c)) {
      number();
    } else if (is_name_char(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      push(TokenKind::kName, source_.substr(at_, end - at_));
      advance_to(end);
    } else if (c == '"' || c == '\'') {
      text(c);
    } else {
      operation(closers);
    }
  }

  void operation(std::string& closers) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kShort = "+-*/%~[](){}><=.:|,;";
    for (const std::string_view op : kLong) {
      if (!starts_with(at_, op)) continue;
      push(TokenKind::kOperator, std::string(op));
      advance_to(at_ + 2);
      return;
    }
    const char c = source_[at_];
    if (kShort.find(c) == std::string_view::npos) error("there is a character that no expression may hold");
    if (c == '(') closers.push_back(')');
    if (c == '[') closers.push_back(']');
    if (c == '{') closers.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (closers.empty()) error(concat("unexpected '", c, "'"));
      if (closers.back() != c) error(concat("unexpected '", c, "', expected '", closers.back(), "'"));
      closers.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    advance_to(at_ + 1);
  }

  // Digits that may be grouped by single underscores.
  [[nodiscard]] std::size_t digits_end(std::size_t at, int base) const {
    std::size_t end = at;
    while (end < source_.size()) {
      if (digit_value(source_[end]) < base) {
        ++end;
      } else if (source_[end] == '_' && end > at && end + 1 < source_.size() && digit_value(source_[end + 1]) < base) {
        ++end;
      } else {
        break;
      }
    }
    return end;
  }

  void number() {
    const std::size_t end = digits_end(at_, 10);
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    std::size_t float_end = end;
    if (!after_dot) {
      if (float_end + 1 < source_.size() && source_[float_end] == '.' && is_digit_char(source_[float_end + 1])) {
        float_end = digits_end(float_end + 1, 10);
      }
      if (float_end < source_.size() && (source_[float_end] | 0x20) == 'e') {
        std::size_t exponent = float_end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit_char(source_[exponent])) float_end = digits_end(exponent, 10);
      }
    }
    if (float_end != end) {
      std::string digits = source_.substr(at_, float_end - at_);
      std::erase(digits, '_');
      push(TokenKind::kFloat, {}).real = std::strtod(digits.c_str(), nullptr);
      advance_to(float_end);
      return;
    }
    integer(end);
  }

  void integer(std::size_t decimal_end) {
    int base = 10;
    std::size_t begin = at_;
    std::size_t end = decimal_end;
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      const char mark = static_cast<char>(source_[at_ + 1] | 0x20);
      const int wanted = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      const std::size_t first = at_ + 2 + (source_[at_ + 2] == '_' ? 1 : 0);
      if (wanted != 10 && first < source_.size() && digit_value(source_[first]) < wanted) {
        base = wanted;
        begin = first;
        end = digits_end(first, base);
      }
    }
    std::string digits = source_.substr(begin, end - begin);
    std::erase(digits, '_');
    if (base == 10 && digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos) {
      error("a whole number starts with 0");
    }
    Token& token = push(TokenKind::kInteger, {});
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (result.ec != std::errc{}) error("a whole number does not fit 64 bits");
    advance_to(end);
  }

  void text(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) error("a text in quotes is not closed");
    push(TokenKind::kText, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance_to(end + 1);
  }

  std::string unescape(std::string_view text) const {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out.push_back(text[i]);
        continue;
      }
      const char c = text[++i];
      static constexpr std::string_view kPlain = "\\'\"abfnrtv";
      static constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
      const std::size_t plain = kPlain.find(c);
      if (plain != std::string_view::npos) {
        out.push_back(kMeaning[plain]);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_escaped(out, text.substr(std::min(i + 1, text.size()), digits), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        std::size_t length = 1;
        while (length < 3 && i + length < text.size() && text[i + length] >= '0' && text[i + length] <= '7') ++length;
        append_escaped(out, text.substr(i, length), length, 8);
        i += length - 1;
      } else if (c == 'N') {
        error("a text names a character by \\N, which is not supported");
      } else if (c != '\n') {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  void append_escaped(std::string& out, std::string_view digits, std::size_t wanted, int base) const {
    char32_t code_point = 0;
    for (const char c : digits) {
      if (digit_value(c) >= base) error("an escape in a text is cut short");
      code_point = code_point * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(c));
    }
    if (digits.size() != wanted) error("an escape in a text is cut short");
    if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
      error("an escape in a text is no character");
    }
    append_code_point(out, code_point);
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (!is_valid_utf8(source)) throw TemplateError{"the template is not valid UTF-8", false, 1};
  return Lexer(source).run();
}

}  // namespace hotset::model::jinja
