// The tests of `is`.
#include <algorithm>

#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"

namespace hotset::model::jinja {
namespace {

using I = Interpreter&;
using V = const Value&;
using A = const Arguments&;

template <Kind... kinds>
Value is_kind(Interpreter&, const Value& self, const Arguments& arguments) {
  (void)bind(arguments, "test", {});
  return Value::boolean(((self.kind() == kinds) || ...));
}

template <Kind... kinds>
Value is_not_kind(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return Value::boolean(!truth(is_kind<kinds...>(interpreter, self, arguments)));
}

Value has_rest(Interpreter& interpreter, const Value& self, std::int64_t divisor, std::int64_t rest) {
  const Value modulus = arithmetic(Op::kModulo, self, Value::integer(divisor));
  return Value::boolean(equal(modulus, Value::integer(rest), interpreter.budget()));
}

Value divisible_by(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value rest = arithmetic(Op::kModulo, self, bind(arguments, "divisibleby", {"num"}, 1)[0]);
  return Value::boolean(equal(rest, Value::integer(0), interpreter.budget()));
}

const Value& other(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) fail("a test that compares needs one argument");
  return arguments.positional[0];
}

Value same_as(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Value& wanted = other(arguments);
  if (self.kind() != wanted.kind()) return Value::boolean(false);
  const bool by_value = self.is_text() || self.is_number() || self.is_none() || self.is_undefined();
  return Value::boolean(by_value ? equal(self, wanted, interpreter.budget()) : self.pointer() == wanted.pointer());
}

template <bool upper>
Value has_case(Interpreter& interpreter, const Value& self, const Arguments&) {
  const std::string text = to_text(self, interpreter.budget());
  return Value::boolean(has_only_case(text, upper));
}

const std::vector<NamedNative>& tests() {
  static const std::vector<NamedNative> kTests = {
      {"defined", is_not_kind<Kind::kUndefined>},
      {"undefined", is_kind<Kind::kUndefined>},
      {"none", is_kind<Kind::kNone>},
      {"boolean", is_kind<Kind::kBool>},
      {"integer", is_kind<Kind::kInt>},
      {"float", is_kind<Kind::kFloat>},
      {"number", is_kind<Kind::kBool, Kind::kInt, Kind::kFloat>},
      {"string", is_kind<Kind::kText>},
      {"mapping", is_kind<Kind::kDict>},
      {"sequence", is_kind<Kind::kText, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kRange, Kind::kUndefined>},
      {"callable", is_kind<Kind::kFunction, Kind::kMacro, Kind::kLoop, Kind::kJoiner, Kind::kUndefined>},
      {"iterable", [](I, V s, A) { return Value::boolean(is_iterable(s)); }},
      {"true", [](I, V s, A) { return Value::boolean(s.is(Kind::kBool) && s.as_int() != 0); }},
      {"false", [](I, V s, A) { return Value::boolean(s.is(Kind::kBool) && s.as_int() == 0); }},
      {"odd", [](I i, V s, A) { return has_rest(i, s, 2, 1); }},
      {"even", [](I i, V s, A) { return has_rest(i, s, 2, 0); }},
      {"divisibleby", divisible_by},
      {"upper", has_case<true>},
      {"lower", has_case<false>},
      {"sameas", same_as},
      {"escaped", [](I, V, A) { return Value::boolean(false); }},
      {"filter", [](I, V s, A) { return Value::boolean(s.is_text() && find_filter(s.bytes()) != nullptr); }},
      {"test", [](I, V s, A) { return Value::boolean(s.is_text() && find_test(s.bytes()) != nullptr); }},
      {"in", [](I i, V s, A a) { return Value::boolean(i.contains(other(a), s)); }},
      {"eq", [](I i, V s, A a) { return Value::boolean(equal(s, other(a), i.budget())); }},
      {"ne", [](I i, V s, A a) { return Value::boolean(!equal(s, other(a), i.budget())); }},
      {"lt", [](I i, V s, A a) { return Value::boolean(compare(s, other(a), i.budget()) < 0); }},
      {"le", [](I i, V s, A a) { return Value::boolean(compare(s, other(a), i.budget()) <= 0); }},
      {"gt", [](I i, V s, A a) { return Value::boolean(compare(s, other(a), i.budget()) > 0); }},
      {"ge", [](I i, V s, A a) { return Value::boolean(compare(s, other(a), i.budget()) >= 0); }},
  };
  return kTests;
}

std::string_view canonical(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"==", "eq"}, {"equalto", "eq"}, {"!=", "ne"},       {">", "gt"}, {"greaterthan", "gt"},
      {">=", "ge"}, {"<", "lt"},       {"lessthan", "lt"}, {"<=", "le"}};
  for (const auto& [other_name, meant] : kOtherNames) {
    if (other_name == name) return meant;
  }
  return name;
}

}  // namespace

Native find_test(std::string_view name) {
  const auto found = std::find_if(tests().begin(), tests().end(),
                                  [wanted = canonical(name)](const auto& test) { return test.name == wanted; });
  return found != tests().end() ? found->native : nullptr;
}

}  // namespace hotset::model::jinja
