// Filters on numbers.
#include <charconv>
#include <cmath>
#include <optional>

#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

// Digits without single underscores between them; nothing when an underscore stands elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || !is_alnum(static_cast<unsigned char>(text[i - 1])) ||
               !is_alnum(static_cast<unsigned char>(text[i + 1]))) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::int64_t> parse_integer(std::string_view text, std::int64_t base) {
  const auto digits = without_underscores(strip_space(text, true, true));
  if (!digits || (base != 0 && (base < 2 || base > 36))) return std::nullopt;
  std::string_view rest = *digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.size() > 2 && rest[0] == '0') {
    const char mark = static_cast<char>(rest[1] | 0x20);
    const std::int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      rest.remove_prefix(2);
    }
  }
  std::int64_t number = 0;
  if (rest.empty() || rest[0] == '-') return std::nullopt;
  const auto result =
      std::from_chars(rest.data(), rest.data() + rest.size(), number, base == 0 ? 10 : static_cast<int>(base));
  if (result.ptr != rest.data() + rest.size()) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) fail("a whole number does not fit 64 bits");
  if (result.ec != std::errc{}) return std::nullopt;
  return negative ? -number : number;
}

std::optional<double> parse_real(std::string_view text) {
  const auto digits = without_underscores(strip_space(text, true, true));
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  const std::string name = to_lower(rest);
  double number = 0;
  if (name == "inf" || name == "infinity") {
    number = INFINITY;
  } else if (name == "nan") {
    number = NAN;
  } else {
    if (rest.empty() || !((rest[0] >= '0' && rest[0] <= '9') || rest[0] == '.')) return std::nullopt;
    const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::general);
    if (result.ptr != rest.data() + rest.size()) return std::nullopt;
    if (result.ec == std::errc::result_out_of_range) {
      number = std::strtod(std::string(rest).c_str(), nullptr);  // infinity or zero
    } else if (result.ec != std::errc{}) {
      return std::nullopt;
    }
  }
  return negative ? -number : number;
}

std::optional<Value> truncated(double number) {
  if (std::isnan(number)) return std::nullopt;
  if (std::isinf(number)) fail("cannot convert float infinity to integer");
  if (std::abs(number) >= 9.2e18) fail("a whole number does not fit 64 bits");
  return Value::integer(static_cast<std::int64_t>(number));
}

Value to_int(Interpreter&, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "int", {"default", "base"});
  const Value otherwise = a[0].is_missing() ? Value::integer(0) : a[0];
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_integral()) return Value::integer(self.as_int());
  if (self.is(Kind::kFloat)) return truncated(self.as_double()).value_or(otherwise);
  if (!self.is_text()) return otherwise;
  if (const auto number = parse_integer(self.bytes(), int_argument(a[1], 10))) return Value::integer(*number);
  const auto real = parse_real(self.bytes());
  return real ? truncated(*real).value_or(otherwise) : otherwise;
}

Value to_float(Interpreter&, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "float", {"default"});
  const Value otherwise = a[0].is_missing() ? Value::real(0) : a[0];
  if (self.is_undefined()) fail_undefined(self);
  if (self.is_number()) return Value::real(self.as_double());
  if (!self.is_text()) return otherwise;
  const auto real = parse_real(self.bytes());
  return real ? Value::real(*real) : otherwise;
}

Value absolute(Interpreter&, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "abs", {});
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_number()) fail(concat("bad operand type for abs(): '", type_name(self), "'"));
  if (self.is(Kind::kFloat)) return Value::real(std::abs(self.as_double()));
  return self.as_int() < 0 ? negate(self) : Value::integer(self.as_int());
}

Value rounded(Interpreter&, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "round", {"precision", "method"});
  const std::int64_t precision = int_argument(a[0], 0);
  const std::string method = a[1].is_missing() ? "common" : text_argument(a[1]);
  if (method != "common" && method != "ceil" && method != "floor") fail("round's method is common, ceil or floor");
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_number()) fail(concat("type ", type_name(self), " cannot be rounded"));
  if (method == "common") {
    if (!self.is_integral()) return Value::real(round_to(self.as_double(), precision));
    if (precision >= 0) return Value::integer(self.as_int());
    const double value = round_to(self.as_double(), precision);
    return truncated(value).value_or(Value::integer(0));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = self.as_double() * scale;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace

const std::vector<NamedNative>& number_filters() {
  static const std::vector<NamedNative> kFilters = {
      {"int", to_int}, {"float", to_float}, {"abs", absolute}, {"round", rounded}};
  return kFilters;
}

}  // namespace hotset::model::jinja
