#include "model/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/concat.h"
#include "model/jinja/unicode.h"

namespace hotset::model::jinja {
namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kAdd: return "+";
    case Op::kSubtract: return "-";
    case Op::kMultiply: return "*";
    case Op::kDivide: return "/";
    case Op::kFloorDivide: return "//";
    case Op::kModulo: return "%";
    default: return "**";
  }
}

[[noreturn]] void fail_operands(Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail(concat("unsupported operand types for ", symbol(op), ": '", type_name(a), "' and '", type_name(b), "'"));
}

// By reference: the operation in the first argument may be evaluated after the second.
Value checked(bool overflow, const std::int64_t& result) {
  if (overflow) fail("a whole number does not fit 64 bits");
  return Value::integer(result);
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  bool overflow = false;
  while (exponent > 0 && !overflow) {
    if ((exponent & 1) != 0) overflow = __builtin_mul_overflow(result, base, &result);
    exponent >>= 1;
    if (exponent > 0) overflow |= __builtin_mul_overflow(base, base, &base);
  }
  return checked(overflow, result);
}

Value integer_arithmetic(Op op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case Op::kAdd: return checked(__builtin_add_overflow(a, b, &result), result);
    case Op::kSubtract: return checked(__builtin_sub_overflow(a, b, &result), result);
    case Op::kMultiply: return checked(__builtin_mul_overflow(a, b, &result), result);
    case Op::kPower: return integer_power(a, b);
    default: break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::kDivide) return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == Op::kModulo ? Value::integer(0) : negate(Value::integer(a));
  std::int64_t quotient = a / b;
  std::int64_t rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    --quotient;
  }
  return Value::integer(op == Op::kModulo ? rest : quotient);
}

Value real_arithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd: return Value::real(a + b);
    case Op::kSubtract: return Value::real(a - b);
    case Op::kMultiply: return Value::real(a * b);
    case Op::kPower: {
      if (a == 0 && b < 0) fail("0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("a power is no real number");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("a power is too large");
      return Value::real(result);
    }
    default: break;
  }
  if (b == 0) fail("division by zero");
  if (op == Op::kDivide) return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == Op::kModulo) return Value::real(rest);
  const double quotient = (a - rest) / b;
  return Value::real(quotient == 0 ? std::copysign(0.0, a / b) : std::floor(quotient + 0.5));
}

bool is_list_like(const Value& value) { return value.is(Kind::kList) || value.is(Kind::kTuple); }

struct ResolvedSlice {
  std::int64_t start, step, count;
};

ResolvedSlice resolve(const SliceBounds& bounds, std::int64_t length) {
  const std::int64_t step = bounds.step.value_or(1);
  if (step == 0) fail("a slice's step cannot be zero");
  const std::int64_t lowest = step > 0 ? 0 : -1;
  const std::int64_t highest = step > 0 ? length : length - 1;
  const auto place = [&](const std::optional<std::int64_t>& bound, std::int64_t otherwise) {
    if (!bound) return otherwise;
    const std::int64_t at = *bound < 0 ? std::max(*bound, -length - 1) + length : *bound;
    return std::clamp(at, lowest, highest);
  };
  const std::int64_t start = place(bounds.start, step > 0 ? lowest : highest);
  const std::int64_t stop = place(bounds.stop, step > 0 ? highest : lowest);
  Range range;
  range.start = start;
  range.stop = stop;
  range.step = step;
  return {start, step, range.size()};
}

Value slice_text(const Value& value, const ResolvedSlice& part, Budget& budget) {
  const std::string& bytes = value.bytes();
  budget.scan(static_cast<std::int64_t>(bytes.size()));
  const bool ascii = value.text_length() == static_cast<std::int64_t>(bytes.size());
  if (part.step == 1) {
    const std::size_t begin = ascii ? static_cast<std::size_t>(part.start) : byte_offset(bytes, part.start);
    const std::string_view rest = std::string_view(bytes).substr(begin);
    const std::size_t size = ascii ? static_cast<std::size_t>(part.count) : byte_offset(rest, part.count);
    budget.bytes(static_cast<std::int64_t>(size));
    return Value::text(std::string(rest.substr(0, size)));
  }
  std::vector<std::size_t> starts;  // of every code point, and the end
  budget.bytes((value.text_length() + 1) * static_cast<std::int64_t>(sizeof(std::size_t)));
  for (std::size_t at = 0; at < bytes.size(); next_code_point(bytes, at)) starts.push_back(at);
  starts.push_back(bytes.size());
  std::string out;
  for (std::int64_t i = 0; i < part.count; ++i) {
    const auto index = static_cast<std::size_t>(part.start + i * part.step);
    out.append(bytes, starts[index], starts[index + 1] - starts[index]);
  }
  return Value::text(std::move(out));
}

}  // namespace

Value negate(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is(Kind::kFloat)) return Value::real(-value.as_double());
  if (!value.is_integral()) fail(concat("bad operand type for unary -: '", type_name(value), "'"));
  std::int64_t result = 0;
  return checked(__builtin_sub_overflow(std::int64_t{0}, value.as_int(), &result), result);
}

Value plus(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) fail(concat("bad operand type for unary +: '", type_name(value), "'"));
  return value.is(Kind::kFloat) ? value : Value::integer(value.as_int());
}

Value arithmetic(Op op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) fail_operands(op, a, b);
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.as_int(), b.as_int());
  return real_arithmetic(op, a.as_double(), b.as_double());
}

Value add(const Value& a, const Value& b, Budget& budget) {
  if (a.is_text() && b.is_text()) {
    budget.bytes(static_cast<std::int64_t>(a.bytes().size() + b.bytes().size() + sizeof(Text)));
    std::string out;
    out.reserve(a.bytes().size() + b.bytes().size());
    out += a.bytes();
    out += b.bytes();
    return Value::text(std::move(out));
  }
  if (is_list_like(a) && a.kind() == b.kind()) {
    const std::size_t count = a.items().size() + b.items().size();
    budget.bytes(static_cast<std::int64_t>(count * sizeof(Value) + sizeof(Sequence)));
    Values items;
    items.reserve(count);
    items.insert(items.end(), a.items().begin(), a.items().end());
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  if (a.is_text() && !b.is_undefined()) fail(concat("can only concatenate str (not \"", type_name(b), "\") to str"));
  return arithmetic(Op::kAdd, a, b);
}

Value multiply(const Value& a, const Value& b, Budget& budget) {
  const bool a_repeats = a.is_text() || is_list_like(a);
  const Value& repeated = a_repeats ? a : b;
  const Value& times = a_repeats ? b : a;
  if (!(repeated.is_text() || is_list_like(repeated)) || !times.is_integral()) {
    return arithmetic(Op::kMultiply, a, b);
  }
  const std::int64_t count = std::max<std::int64_t>(times.as_int(), 0);
  const auto unit =
      static_cast<std::int64_t>(repeated.is_text() ? repeated.bytes().size() : repeated.items().size() * sizeof(Value));
  std::int64_t size = 0;
  if (__builtin_mul_overflow(unit, count, &size)) fail("the template uses too much memory");
  budget.bytes(size);
  if (unit == 0 || count == 0)
    return repeated.is_text() ? Value::text({}) : repeated.is(Kind::kList) ? Value::list({}) : Value::tuple({});
  if (repeated.is_text()) {
    std::string out;
    out.reserve(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < count; ++i) out += repeated.bytes();
    return Value::text(std::move(out));
  }
  Values items;
  items.reserve(repeated.items().size() * static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), repeated.items().begin(), repeated.items().end());
  }
  return repeated.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value slice(const Value& value, const SliceBounds& bounds, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  const auto length = length_of(value);
  if (!length || value.is(Kind::kDict) || value.is(Kind::kView)) {
    fail(concat("'", type_name(value), "' object cannot be sliced"));
  }
  const ResolvedSlice part = resolve(bounds, *length);
  if (value.is_text()) return slice_text(value, part, budget);
  if (value.is(Kind::kRange)) {
    const auto& source = value.object<Range>();
    auto range = std::make_shared<Range>();
    const __int128 start = source.start + static_cast<__int128>(part.start) * source.step;
    const __int128 step = static_cast<__int128>(source.step) * part.step;
    const __int128 stop = start + part.count * step;
    for (const __int128 number : {start, step, stop}) {
      if (number > INT64_MAX || number < INT64_MIN) fail("a whole number does not fit 64 bits");
    }
    range->start = static_cast<std::int64_t>(start);
    range->step = static_cast<std::int64_t>(step);
    range->stop = static_cast<std::int64_t>(stop);
    return Value(Kind::kRange, std::move(range));
  }
  budget.bytes(part.count * static_cast<std::int64_t>(sizeof(Value)));
  Values items;
  items.reserve(static_cast<std::size_t>(part.count));
  for (std::int64_t i = 0; i < part.count; ++i) {
    items.push_back(value.items()[static_cast<std::size_t>(part.start + i * part.step)]);
  }
  return value.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value item_at(const Value& value, std::int64_t index, Budget& budget) {
  const auto length = length_of(value);
  if (!length || value.is(Kind::kDict) || value.is(Kind::kView)) return {};
  if (index < -*length || index >= *length) return {};
  const std::int64_t at = index < 0 ? index + *length : index;
  if (value.is_text()) return slice(value, {at, at + 1, std::nullopt}, budget);
  if (value.is(Kind::kRange)) return Value::integer(value.object<Range>().at(at));
  return value.items()[static_cast<std::size_t>(at)];
}

double round_to(double value, std::int64_t digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits < 0) {
    const double scale = std::pow(10.0, -static_cast<double>(std::max<std::int64_t>(digits, -308)));
    return std::nearbyint(value / scale) * scale;
  }
  // Decimal rounding of the exact binary value, as Python does.
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
  return std::strtod(buffer, nullptr);
}

}  // namespace hotset::model::jinja
