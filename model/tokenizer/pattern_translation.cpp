#include <unicode/uchar.h>

#include <algorithm>
#include <optional>

#include "core/concat.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/utf8.h"

namespace hotset::model {
namespace {

// PCRE2's own \s also holds U+180E, its \w lacks marks and its [:punct:] most symbols, so they are spelled out.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9A-Fa-f";
constexpr int kMaxClassDepth = 8;

// [:name:] inside a class; empty = not supported.
std::string_view bracket_set(std::string_view name) {
  if (name == "punct") return R"(\p{P}\p{S})";
  if (name == "space") return kSpace;
  if (name == "alpha") return R"(\p{Alphabetic})";
  if (name == "digit") return R"(\p{Nd})";
  if (name == "alnum") return R"(\p{Alphabetic}\p{Nd})";
  if (name == "upper") return R"(\p{Uppercase})";
  if (name == "lower") return R"(\p{Lowercase})";
  if (name == "word") return kWord;
  if (name == "xdigit") return kHex;
  return {};
}

// The name of \\p{..}. A script's name means the script to Oniguruma, but its wider extensions to PCRE2.
std::string property_name(std::string_view name) {
  const bool negated = name.starts_with('^');
  if (negated) name.remove_prefix(1);
  const bool script =
      name.size() > 2 && u_getPropertyValueEnum(UCHAR_SCRIPT, std::string(name).c_str()) != UCHAR_INVALID_CODE;
  return concat(negated ? "^" : "", script ? "sc:" : "", name);
}

struct Interval {
  std::string text;  // with the lower bound written out
  bool fixed = false;
};

class Translator {
 public:
  explicit Translator(std::string_view source) : source_(source) {}

  Result<std::string> run() {
    while (at_ < source_.size()) {
      auto step = next();
      if (!step) return step.error();
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool starts_with(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  static Error unsupported(std::string_view what) {
    return invalid_argument(concat("the tokenizer's pattern uses ", what, ", which is not supported"));
  }

  std::string take_character() {
    const std::size_t length = std::min(character_bytes(source_[at_]), source_.size() - at_);
    const auto text = source_.substr(at_, length);
    at_ += length;
    return std::string(text);
  }

  Result<void> next() {
    switch (source_[at_]) {
      case '\\': return outside_escape();
      case '[': {
        auto set = character_class(0);
        if (!set) return set.error();
        put_atom(set.value());
        return {};
      }
      case '(': return open_group();
      case ')':
        ++at_;
        out_ += ')';
        if (groups_.empty()) return unsupported("an unbalanced parenthesis");
        atom_ = groups_.back();
        groups_.pop_back();
        return {};
      case '^':
        ++at_;
        put_atom("(?m:^)");
        return {};
      case '$':
        ++at_;
        put_atom("(?m:$)");
        return {};
      case '*':
      case '+':
      case '?':
      case '|': out_ += source_[at_++]; return {};
      case '{': interval_or_brace(); return {};
      default: put_atom(take_character()); return {};
    }
  }

  void put_atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  Result<void> open_group() {
    groups_.push_back(out_.size());
    out_ += source_[at_++];
    if (peek() != '?') return {};
    out_ += source_[at_++];
    if (peek() == '#' || peek() == '(') return unsupported("a comment or conditional group");
    // Options: Ruby's m is "dot matches newline", which PCRE2 calls s.
    while (peek() == 'i' || peek() == 'm' || peek() == '-') {
      out_ += peek() == 'm' ? 's' : peek();
      ++at_;
    }
    if (peek() == 'x') return unsupported("the option x");
    while (at_ < source_.size() && std::string_view(":=!<>").find(peek()) != std::string_view::npos)
      out_ += source_[at_++];
    return {};
  }

  // The value of \p{..}, \P{..}, \x{..}, \uHHHH and the plain escapes that mean the same in and outside classes.
  std::optional<std::string> common_escape() {
    const char kind = peek(1);
    if (kind == 'p' || kind == 'P' || (kind == 'x' && peek(2) == '{')) {
      const auto close = source_.find('}', at_);
      if (close == std::string_view::npos) return std::nullopt;
      std::string text(source_.substr(at_, close + 1 - at_));
      if (kind != 'x' && peek(2) == '{') {
        text = concat("\\", kind, "{", property_name(source_.substr(at_ + 3, close - at_ - 3)), "}");
      }
      at_ = close + 1;
      return text;
    }
    if (kind == 'u' && at_ + 6 <= source_.size()) {
      std::string text = concat("\\x{", source_.substr(at_ + 2, 4), "}");
      at_ += 6;
      return text;
    }
    if (kind == 'v') {
      at_ += 2;
      return "\\x0b";
    }
    const bool letter = (kind >= 'a' && kind <= 'z') || (kind >= 'A' && kind <= 'Z') || (kind >= '0' && kind <= '9');
    if (letter && std::string_view("dDnrtfaex0").find(kind) == std::string_view::npos) return std::nullopt;
    if (at_ + 1 >= source_.size()) return std::nullopt;
    ++at_;
    return "\\" + take_character();
  }

  Result<void> outside_escape() {
    switch (peek(1)) {
      case 's':
        at_ += 2;
        put_atom(concat("[", kSpace, "]"));
        return {};
      case 'S':
        at_ += 2;
        put_atom(concat("[^", kSpace, "]"));
        return {};
      case 'w':
        at_ += 2;
        put_atom(concat("[", kWord, "]"));
        return {};
      case 'W':
        at_ += 2;
        put_atom(concat("[^", kWord, "]"));
        return {};
      case 'h':
        at_ += 2;
        put_atom(concat("[", kHex, "]"));
        return {};
      case 'H':
        at_ += 2;
        put_atom(concat("[^", kHex, "]"));
        return {};
      case 'b':
      case 'B': {
        const bool edge = peek(1) == 'b';
        at_ += 2;
        const std::string word = concat("[", kWord, "]");
        put_atom(concat("(?:(?<=", word, ")(?", edge ? '!' : '=', word, ")|(?<!", word, ")(?", edge ? '=' : '!', word,
                        "))"));
        return {};
      }
      case 'A':
      case 'z':
      case 'Z':
        put_atom(source_.substr(at_, 2));
        at_ += 2;
        return {};
      default: break;
    }
    auto text = common_escape();
    if (!text) return unsupported("an escape");
    put_atom(*text);
    return {};
  }

  // At a '{'. Ruby reads {n,m}+ as a repeated interval and {n}? as an optional one.
  void interval_or_brace() {
    const auto interval = parse_interval();
    if (!interval || !atom_) {
      ++at_;
      put_atom("\\{");
      return;
    }
    const bool wraps = peek() == '+' || (peek() == '?' && interval->fixed);
    if (wraps) out_.insert(*atom_, "(?:");
    out_ += interval->text;
    if (wraps) out_ += ')';
  }

  std::optional<Interval> parse_interval() {
    std::size_t i = at_ + 1;
    const auto digits = [&] {
      const std::size_t begin = i;
      while (i < source_.size() && source_[i] >= '0' && source_[i] <= '9') ++i;
      return std::string(source_.substr(begin, i - begin));
    };
    std::string low = digits();
    const bool comma = i < source_.size() && source_[i] == ',';
    if (comma) ++i;
    const std::string high = comma ? digits() : std::string();
    if (i >= source_.size() || source_[i] != '}' || (low.empty() && high.empty())) return std::nullopt;
    at_ = i + 1;
    if (low.empty()) low = "0";
    return Interval{concat("{", low, comma ? "," : "", high, "}"), !comma};
  }

  // At a '['. Returns a PCRE2 class, or a group where the class is an intersection.
  Result<std::string> character_class(int depth) {
    if (depth > kMaxClassDepth) return unsupported("deeply nested character classes");
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::string items;
    while (at_ < source_.size() && peek() != ']') {
      if (starts_with("&&")) {
        at_ += 2;
        if (negated || items.empty()) return unsupported("an intersection in a negated class");
        return intersection(items, depth);
      }
      auto item = class_item(depth);
      if (!item) return item.error();
      items += item.value();
    }
    if (at_ >= source_.size() || items.empty()) return unsupported("an unfinished or empty character class");
    ++at_;
    return concat("[", negated ? "^" : "", items, "]");
  }

  // Behind "&&": the rest of the class is one set, in brackets of its own or not.
  Result<std::string> intersection(const std::string& left, int depth) {
    std::string right;
    if (peek() == '[' && peek(1) != ':') {
      auto set = character_class(depth + 1);
      if (!set) return set.error();
      right = set.value();
    } else {
      std::string items;
      while (at_ < source_.size() && peek() != ']' && !starts_with("&&")) {
        auto item = class_item(depth);
        if (!item) return item.error();
        items += item.value();
      }
      if (items.empty()) return unsupported("an empty intersection");
      right = concat("[", items, "]");
    }
    if (peek() != ']') return unsupported("an intersection of more than two sets");
    ++at_;
    return concat("(?:(?=", right, ")[", left, "])");
  }

  Result<std::string> class_item(int depth) {
    if (peek() == '[') {
      if (peek(1) == ':') {
        const auto close = source_.find(":]", at_);
        const auto set = close == std::string_view::npos ? std::string_view()
                                                         : bracket_set(source_.substr(at_ + 2, close - at_ - 2));
        if (set.empty()) return unsupported("a bracket expression");
        at_ = close + 2;
        return std::string(set);
      }
      auto nested = character_class(depth + 1);
      if (!nested) return nested.error();
      const std::string& text = nested.value();
      if (text[0] != '[' || text[1] == '^') return unsupported("a nested character class that isn't a plain union");
      return text.substr(1, text.size() - 2);
    }
    if (peek() != '\\') return take_character();
    std::string_view set;
    switch (peek(1)) {
      case 's': set = kSpace; break;
      case 'S': set = kNotSpace; break;
      case 'w': set = kWord; break;
      case 'h': set = kHex; break;
      case 'b': set = R"(\x08)"; break;
      default: {
        auto text = common_escape();
        if (!text) return unsupported("an escape in a character class");
        return *text;
      }
    }
    at_ += 2;
    if (peek() != '-' || peek(1) == ']') return std::string(set);
    ++at_;  // a hyphen behind a set is a hyphen
    return concat(set, "\\-");
  }

  std::string_view source_;
  std::size_t at_ = 0;
  std::string out_;
  std::optional<std::size_t> atom_;  // where the last atom starts in out_: what a quantifier applies to
  std::vector<std::size_t> groups_;
};

}  // namespace

Result<std::string> translate_regex(std::string_view oniguruma) { return Translator(oniguruma).run(); }

}  // namespace hotset::model
