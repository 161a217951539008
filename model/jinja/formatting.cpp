#include "model/jinja/formatting.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

constexpr std::int64_t kMaxPrecision = 400;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 32;

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

std::int64_t read_number(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  while (at < text.size() && is_digit_char(text[at])) {
    number = number * 10 + (text[at++] - '0');
    if (number > kMaxWidth) fail("a width or precision in a format is too large");
  }
  return number;
}

std::string group_digits(const std::string& digits, char separator, std::size_t every) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string printf_double(double value, char type, std::int64_t precision, bool alternate) {
  const char format[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : type, alternate ? type : '\0', '\0'};
  std::string buffer(1024, '\0');
  const int size = std::snprintf(buffer.data(), buffer.size(), format, static_cast<int>(precision), value);
  buffer.resize(static_cast<std::size_t>(std::clamp(size, 0, 1023)));
  return buffer;
}

// Digits of |value| without sign.
std::string real_digits(double value, const FormatSpec& spec) {
  if (spec.precision > kMaxPrecision) fail("a precision in a format is too large");
  const double magnitude = std::abs(value);
  if (std::isnan(value)) return spec.type == 'F' || spec.type == 'E' || spec.type == 'G' ? "NAN" : "nan";
  if (std::isinf(value)) return spec.type == 'F' || spec.type == 'E' || spec.type == 'G' ? "INF" : "inf";
  if (spec.type == 0 && spec.precision < 0) return float_repr(magnitude);
  if (spec.type == '%')
    return printf_double(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, false) + '%';
  const char type = spec.type == 0 || spec.type == 'n' ? 'g' : spec.type;
  std::string digits = printf_double(magnitude, type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  if (spec.type == 0 && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

std::string integer_digits(std::int64_t value, const FormatSpec& spec, std::string& prefix) {
  const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  const std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  char buffer[72];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (spec.type == 'X') digits = to_upper(digits);
  if (spec.alternate && base != 10) prefix = {'0', spec.type};
  return digits;
}

std::string laid_out(const std::string& sign, std::string digits, const FormatSpec& spec, Budget& budget) {
  const char align = spec.align != 0 ? spec.align : '>';
  if (spec.grouping != 0) {
    const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = group_digits(digits.substr(0, whole), spec.grouping, 3) + digits.substr(whole);
  }
  const auto length = static_cast<std::int64_t>(sign.size() + digits.size());
  if (align == '=') {
    return sign + padded(digits, static_cast<std::int64_t>(digits.size()),
                         spec.width - static_cast<std::int64_t>(sign.size()), spec.fill, Alignment::kRight, budget);
  }
  const std::string text = sign + digits;
  if (align != '^') {
    return padded(text, length, spec.width, spec.fill, align == '<' ? Alignment::kLeft : Alignment::kRight, budget);
  }
  const std::int64_t left = std::max<std::int64_t>(spec.width - length, 0) / 2;
  const std::string half = padded(text, length, length + left, spec.fill, Alignment::kRight, budget);
  return padded(half, length + left, spec.width, spec.fill, Alignment::kLeft, budget);
}

std::string format_text(std::string_view text, const FormatSpec& spec, Budget& budget) {
  if (spec.type != 0 && spec.type != 's') fail(concat("unknown format code '", spec.type, "' for a text"));
  if (spec.align == '=') fail("'=' alignment is not allowed for a text");
  if (spec.precision >= 0) text = text.substr(0, byte_offset(text, spec.precision));
  const std::int64_t length = count_code_points(text);
  budget.bytes(static_cast<std::int64_t>(text.size()));
  if (spec.align == '^') {
    const std::int64_t left = std::max<std::int64_t>(spec.width - length, 0) / 2;
    const std::string half = padded(text, length, length + left, spec.fill, Alignment::kRight, budget);
    return padded(half, length + left, spec.width, spec.fill, Alignment::kLeft, budget);
  }
  return padded(text, length, spec.width, spec.fill, spec.align == '>' ? Alignment::kRight : Alignment::kLeft, budget);
}

}  // namespace

FormatSpec parse_format_spec(std::string_view text) {
  FormatSpec spec;
  std::size_t at = 0;
  const auto is_align = [&](std::size_t i) {
    return i < text.size() && (text[i] == '<' || text[i] == '>' || text[i] == '^' || text[i] == '=');
  };
  if (!text.empty()) {
    std::size_t after_fill = 0;
    next_code_point(text, after_fill);
    if (is_align(after_fill)) {
      spec.fill = std::string(text.substr(0, after_fill));
      spec.align = text[after_fill];
      at = after_fill + 1;
    } else if (is_align(0)) {
      spec.align = text[at++];
    }
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') {
    spec.alternate = true;
    ++at;
  }
  if (at < text.size() && text[at] == '0') {
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    ++at;
  }
  spec.width = read_number(text, at);
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) spec.grouping = text[at++];
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (at >= text.size() || !is_digit_char(text[at])) fail("a format misses its precision");
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail("a format specification is invalid");
  return spec;
}

std::string format_value(const Value& value, const FormatSpec& spec, Budget& budget) {
  const bool wants_real = spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  const bool is_plain_bool = value.is(Kind::kBool) && spec.type == 0;
  if (!value.is_number() || is_plain_bool) {
    const bool is_empty_spec = spec.width == 0 && spec.type == 0 && spec.precision < 0 && spec.align == 0;
    if (!value.is_text() && !is_plain_bool && !is_empty_spec) {
      fail(concat("a value of type '", type_name(value), "' takes no format specification"));
    }
    FormatSpec text_spec = spec;
    if (is_plain_bool && text_spec.align == 0) text_spec.align = is_empty_spec ? '<' : '>';
    return format_text(to_text(value, budget), text_spec, budget);
  }
  std::string prefix;
  std::string digits;
  bool negative = false;
  if (value.is(Kind::kFloat) || wants_real) {
    if (spec.type != 0 && spec.type != 'n' && !wants_real)
      fail(concat("unknown format code '", spec.type, "' for a float"));
    negative = std::signbit(value.as_double()) && !std::isnan(value.as_double());
    digits = real_digits(value.as_double(), spec);
  } else {
    if (spec.type == 'c') {
      std::string out;
      if (value.as_int() < 0 || value.as_int() > 0x10FFFF) fail("%c needs a code point");
      append_code_point(out, static_cast<char32_t>(value.as_int()));
      return out;
    }
    static constexpr std::string_view kTypes = "dnxXob";
    if (spec.type != 0 && kTypes.find(spec.type) == std::string_view::npos) {
      fail(concat("unknown format code '", spec.type, "' for a whole number"));
    }
    if (spec.precision >= 0) fail("a whole number takes no precision");
    negative = value.as_int() < 0;
    digits = integer_digits(value.as_int(), spec, prefix);
  }
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return laid_out(sign + prefix, std::move(digits), spec, budget);
}

namespace {

// One rendering of 'format' % values.
class PercentFormat {
 public:
  PercentFormat(Interpreter& interpreter, std::string_view format, const Value& value)
      : budget_(interpreter.budget()), format_(format), value_(value) {}

  std::string run() {
    budget_.bytes(static_cast<std::int64_t>(format_.size()));
    while (at_ < format_.size()) {
      const std::size_t percent = std::min(format_.find('%', at_), format_.size());
      out_ += format_.substr(at_, percent - at_);
      at_ = percent;
      if (at_ < format_.size()) conversion();
    }
    const bool is_tuple = value_.is(Kind::kTuple);
    const bool unused =
        is_tuple ? next_ < value_.items().size() : next_ == 0 && !value_.is(Kind::kDict) && !value_.is(Kind::kList);
    if (unused) fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  Value next_value() {
    if (value_.is(Kind::kTuple)) {
      if (next_ >= value_.items().size()) fail("not enough arguments for format string");
      return value_.items()[next_++];
    }
    if (next_++ > 0) fail("not enough arguments for format string");
    return value_;
  }

  std::int64_t number_or_star() {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      const std::int64_t number = int_argument(next_value(), 0);
      if (number > kMaxWidth || number < -kMaxWidth) fail("a width or precision in a format is too large");
      return number;
    }
    return read_number(format_, at_);
  }

  void conversion() {
    ++at_;
    Value value;
    if (at_ < format_.size() && format_[at_] == '(') {
      const std::size_t close = format_.find(')', at_);
      if (close == std::string_view::npos) fail("incomplete format key");
      if (!value_.is(Kind::kDict)) fail("format requires a mapping");
      const Value* found = value_.entries().find(format_.substr(at_ + 1, close - at_ - 1));
      if (found == nullptr) fail("a key of a format is not in its mapping");
      value = *found;
      at_ = close + 1;
    }
    FormatSpec spec;
    bool zero = false;
    for (; at_ < format_.size() && std::string_view("-+ #0").find(format_[at_]) != std::string_view::npos; ++at_) {
      const char flag = format_[at_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      spec.alternate |= flag == '#';
      zero |= flag == '0';
    }
    spec.width = number_or_star();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = std::max<std::int64_t>(number_or_star(), 0);
    }
    while (at_ < format_.size() && std::string_view("hlL").find(format_[at_]) != std::string_view::npos) ++at_;
    if (at_ >= format_.size()) fail("incomplete format");
    const char type = format_[at_++];
    if (type == '%') {
      out_.push_back('%');
      return;
    }
    if (value.is_missing()) value = next_value();
    convert(value, type, spec, zero);
  }

  void convert(const Value& value, char type, FormatSpec spec, bool zero) {
    if (type == 's' || type == 'r' || type == 'a') {
      if (spec.align == 0) spec.align = '>';
      const bool quoted = type != 's' && value.is_text();
      out_ += format_text(quoted ? text_repr(value.bytes()) : to_text(value, budget_), spec, budget_);
      return;
    }
    if (zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    if (type == 'c' && value.is_text()) {
      if (value.text_length() != 1) fail("%c requires int or char");
      if (spec.align == 0) spec.align = '>';
      out_ += format_text(value.bytes(), spec, budget_);
      return;
    }
    if (value.is_undefined()) fail_undefined(value);
    if (!value.is_number()) fail(concat("%", type, " format: a real number is required, not ", type_name(value)));
    static constexpr std::string_view kReal = "eEfFgG";
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (kReal.find(type) != std::string_view::npos) {
      out_ += format_value(value, spec, budget_);
      return;
    }
    if (std::string_view("dxXoc").find(spec.type) == std::string_view::npos) fail("unsupported format character");
    Value whole = value;
    if (value.is(Kind::kFloat)) {
      if (spec.type != 'd') fail(concat("%", type, " format: an integer is required, not float"));
      if (!(std::abs(value.as_double()) < 9.2e18)) fail("a whole number does not fit 64 bits");
      whole = Value::integer(static_cast<std::int64_t>(value.as_double()));
    }
    const std::int64_t digits = std::exchange(spec.precision, -1);
    if (digits > 20) fail("a precision in a format is too large");
    if (digits > 0) {
      // The precision of a whole number is its least number of digits.
      FormatSpec inner;
      inner.type = spec.type;
      inner.sign = spec.sign;
      inner.alternate = spec.alternate;
      inner.fill = "0";
      inner.align = '=';
      inner.width =
          digits + (whole.as_int() < 0 || spec.sign != '-' ? 1 : 0) + (spec.alternate && spec.type != 'd' ? 2 : 0);
      spec.type = 's';
      if (spec.align == 0 || spec.align == '=') spec.align = '>';
      out_ += format_text(format_value(whole, inner, budget_), spec, budget_);
      return;
    }
    out_ += format_value(whole, spec, budget_);
  }

  Budget& budget_;
  std::string_view format_;
  const Value& value_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t next_ = 0;
};

// One rendering of 'format'.format(...).
class BraceFormat {
 public:
  BraceFormat(Interpreter& interpreter, const Arguments& arguments)
      : interpreter_(interpreter), arguments_(arguments) {}

  std::string run(std::string_view format, int depth) {
    if (depth > 1) fail("a format specification is nested too deeply");
    interpreter_.budget().bytes(static_cast<std::int64_t>(format.size()));
    std::string out;
    for (std::size_t at = 0; at < format.size();) {
      const char c = format[at++];
      const bool doubled = at < format.size() && format[at] == c;
      if (c != '{' && c != '}') {
        out.push_back(c);
      } else if (doubled) {
        out.push_back(c);
        ++at;
      } else if (c == '}') {
        fail("single '}' encountered in format string");
      } else {
        const std::size_t end = field_end(format, at);
        out += field(format.substr(at, end - at), depth);
        at = end + 1;
      }
    }
    return out;
  }

 private:
  static std::size_t field_end(std::string_view format, std::size_t at) {
    int open = 1;
    for (; at < format.size(); ++at) {
      if (format[at] == '{') ++open;
      if (format[at] == '}' && --open == 0) return at;
    }
    fail("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    const std::size_t mark = std::min(text.find_first_of("!:"), text.size());
    Value value = lookup(text.substr(0, mark));
    std::string_view rest = text.substr(mark);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) fail("a conversion in a format is invalid");
      if (rest[1] == 'r' || rest[1] == 'a') {
        value = interpreter_.text(value.is_text() ? text_repr(value.bytes()) : to_text(value, interpreter_.budget()));
      } else if (rest[1] == 's') {
        value = interpreter_.text(to_text(value, interpreter_.budget()));
      } else {
        fail("a conversion in a format is unknown");
      }
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    const std::string spec = rest.find('{') == std::string_view::npos ? std::string(rest) : run(rest, depth + 1);
    return format_value(value, parse_format_spec(spec), interpreter_.budget());
  }

  Value lookup(std::string_view name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, at));
    while (at < name.size()) {
      const bool is_item = name[at] == '[';
      const std::size_t end = is_item ? name.find(']', at) : std::min(name.find_first_of(".[", at + 1), name.size());
      if (end == std::string_view::npos) fail("missing ']' in format string");
      const std::string_view part = name.substr(at + 1, end - at - 1);
      if (part.empty()) fail("empty attribute in format string");
      std::int64_t index = 0;
      const auto number = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool is_index = is_item && number.ec == std::errc{} && number.ptr == part.data() + part.size();
      value = is_index  ? interpreter_.item(value, Value::integer(index))
              : is_item ? interpreter_.item(value, interpreter_.text(std::string(part)))
                        : interpreter_.attribute(value, part);
      at = is_item ? end + 1 : end;
    }
    return value;
  }

  Value argument(std::string_view name) {
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), is_digit_char);
    if (name.empty() || is_number) {
      std::size_t at = 0;
      const auto index =
          static_cast<std::size_t>(name.empty() ? static_cast<std::int64_t>(next_++) : read_number(name, at));
      if (index >= arguments_.positional.size()) fail("a field of a format has no argument");
      return arguments_.positional[index];
    }
    for (const auto& [other, value] : arguments_.named) {
      if (other == name) return value;
    }
    fail("a named field of a format has no argument");
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
};

}  // namespace

std::string percent_format(Interpreter& interpreter, std::string_view format, const Value& value) {
  return PercentFormat(interpreter, format, value).run();
}

std::string brace_format(Interpreter& interpreter, std::string_view format, const Arguments& arguments) {
  return BraceFormat(interpreter, arguments).run(format, 0);
}

}  // namespace hotset::model::jinja
