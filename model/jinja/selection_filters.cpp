// Filters that apply other filters and tests to every item, and the ones on undefined values and attributes.
#include "core/concat.h"
#include "model/jinja/attribute_path.h"
#include "model/jinja/interpreter.h"

namespace hotset::model::jinja {
namespace {

// What is left of `arguments` after the first `skip` positional ones.
Arguments rest_of(const Arguments& arguments, std::size_t skip) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(skip), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

Value map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  Values out;
  if (!truth(self)) return interpreter.iterator({});
  if (arguments.positional.empty()) {
    const Values a = bind(arguments, "map", {"attribute", "default"});
    if (a[0].is_missing()) fail("map needs a filter or an attribute");
    const AttributePath path(a[0], interpreter.budget());
    for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
      out.push_back(path.read(interpreter, item, a[1]));
    }
    return interpreter.iterator(std::move(out));
  }
  const std::string& name = text_argument(arguments.positional[0]);
  const Native filter = find_filter(name);
  if (filter == nullptr) fail("map is given an unknown filter");
  const Arguments rest = rest_of(arguments, 1);
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    interpreter.budget().step();
    out.push_back(filter(interpreter, item, rest));
  }
  return interpreter.iterator(std::move(out));
}

Value select(Interpreter& interpreter, const Value& self, const Arguments& arguments, bool by_attribute, bool wanted) {
  if (!truth(self)) return interpreter.iterator({});
  const std::size_t offset = by_attribute ? 1 : 0;
  if (arguments.positional.size() < offset) fail("an attribute's name is needed");
  const AttributePath path(by_attribute ? arguments.positional[0] : Value(), interpreter.budget());
  Native test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > offset) {
    test = find_test(text_argument(arguments.positional[offset]));
    if (test == nullptr) fail("an unknown test is named");
    rest = rest_of(arguments, offset + 1);
  }
  Values out;
  for (const auto sequence = iterate(self, interpreter.budget()); const Value& item : sequence->items) {
    interpreter.budget().step();
    const Value value = path.read(interpreter, item);
    if (truth(test != nullptr ? test(interpreter, value, rest) : value) == wanted) out.push_back(item);
  }
  return interpreter.iterator(std::move(out));
}

Value otherwise(Interpreter&, const Value& self, const Arguments& arguments) {
  const Values a = bind(arguments, "default", {"default_value", "boolean"});
  if (!self.is_undefined() && (truth(self) || !flag_argument(a[1], false))) return self;
  return a[0].is_missing() ? Value::text({}) : a[0];
}

// Attributes only: a key of a mapping does not count.
Value attr(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const std::string& name = text_argument(bind(arguments, "attr", {"name"}, 1)[0]);
  if (self.is(Kind::kDict) && find_container_method(Kind::kDict, name) == nullptr) {
    return Value::undefined(concat("'dict object' has no attribute '", name, "'"));
  }
  return interpreter.attribute(self, name);
}

}  // namespace

const std::vector<NamedNative>& selection_filters() {
  using I = Interpreter&;
  using V = const Value&;
  using A = const Arguments&;
  static const std::vector<NamedNative> kFilters = {
      {"map", map},
      {"select", [](I i, V s, A a) { return select(i, s, a, false, true); }},
      {"reject", [](I i, V s, A a) { return select(i, s, a, false, false); }},
      {"selectattr", [](I i, V s, A a) { return select(i, s, a, true, true); }},
      {"rejectattr", [](I i, V s, A a) { return select(i, s, a, true, false); }},
      {"default", otherwise},
      {"d", otherwise},
      {"attr", attr},
  };
  return kFilters;
}

}  // namespace hotset::model::jinja
