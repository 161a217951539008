// Expressions: the other half of the interpreter.
#include "core/concat.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/operators.h"
#include "model/jinja/print.h"
#include "model/jinja/text_operations.h"

namespace hotset::model::jinja {
namespace {

// "'dict object'": what Python's template errors call a value.
std::string describe(const Value& value) {
  return value.is_none() ? std::string("'None'") : concat("'", type_name(value), " object'");
}

bool changes_its_object(const Value& value, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [&](const auto& names) {
    for (const std::string_view other : names) {
      if (other == name) return true;
    }
    return false;
  };
  return (value.is(Kind::kList) && has(kList)) || (value.is(Kind::kDict) && has(kDict));
}

Value loop_attribute(const Value& value, std::string_view name);

Value loop_cycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) fail("loop.cycle needs something to cycle through");
  return arguments.positional[self.object<Loop>().index % arguments.positional.size()];
}

Value loop_changed(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  auto& loop = self.object<Loop>();
  Value now = Value::tuple(arguments.positional);
  const bool changed = loop.changed.is_missing() || !equal(loop.changed, now, interpreter.budget());
  if (changed) loop.changed = std::move(now);
  return Value::boolean(changed);
}

Value loop_attribute(const Value& value, std::string_view name) {
  const auto& loop = value.object<Loop>();
  const auto& items = loop.items->items;
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto length = static_cast<std::int64_t>(items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "length") return Value::integer(length);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "depth") return Value::integer(loop.depth);
  if (name == "depth0") return Value::integer(loop.depth - 1);
  if (name == "previtem") return index == 0 ? Value::undefined("there is no previous item") : items[loop.index - 1];
  if (name == "nextitem") {
    return index + 1 == length ? Value::undefined("there is no next item") : items[loop.index + 1];
  }
  if (name == "cycle") return Value::function(loop_cycle, value);
  if (name == "changed") return Value::function(loop_changed, value);
  return {};
}

Value cycler_next(Interpreter&, const Value& self, const Arguments&) {
  auto& cycler = self.object<Cycler>();
  Value value = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return value;
}
Value cycler_reset(Interpreter&, const Value& self, const Arguments&) {
  self.object<Cycler>().position = 0;
  return Value::none();
}

}  // namespace

Value Interpreter::text(std::string bytes) {
  budget_.bytes(static_cast<std::int64_t>(bytes.size() + sizeof(Text)));
  return Value::text(std::move(bytes));
}
Value Interpreter::list(Values items) {
  budget_.bytes(static_cast<std::int64_t>(items.size() * sizeof(Value) + sizeof(Sequence)));
  return Value::list(std::move(items));
}
Value Interpreter::iterator(Values items) {
  budget_.bytes(static_cast<std::int64_t>(items.size() * sizeof(Value) + sizeof(Sequence)));
  return Value::iterator(std::move(items));
}

Value Interpreter::evaluate(const Expression& expression) {
  const Depth depth(*this);
  budget_.step();
  switch (expression.op) {
    case Op::kConstant: return expression.value;
    case Op::kName: return evaluate_name(expression);
    case Op::kList:
    case Op::kTuple: return evaluate_list(expression);
    case Op::kDict: return evaluate_dict(expression);
    case Op::kAttribute: return attribute(evaluate(*expression.items[0]), expression.name);
    case Op::kItem: {
      const Value holder = evaluate(*expression.items[0]);
      return item(holder, evaluate(*expression.items[1]), expression.items[1]->op == Op::kConstant);
    }
    case Op::kSlice: return evaluate_slice(expression);
    case Op::kCall: {
      const Value callee = evaluate(*expression.items[0]);
      return call(callee, evaluate_arguments(expression));
    }
    case Op::kFilter:
    case Op::kTest: return evaluate_native(expression);
    case Op::kCompare: return evaluate_compare(expression);
    case Op::kAnd: {
      Value left = evaluate(*expression.items[0]);
      return truth(left) ? evaluate(*expression.items[1]) : left;
    }
    case Op::kOr: {
      Value left = evaluate(*expression.items[0]);
      return truth(left) ? left : evaluate(*expression.items[1]);
    }
    case Op::kNot: return Value::boolean(!truth(evaluate(*expression.items[0])));
    case Op::kNegate: return negate(evaluate(*expression.items[0]));
    case Op::kPlus: return plus(evaluate(*expression.items[0]));
    case Op::kConcat: return evaluate_concat(expression);
    case Op::kConditional: return evaluate_conditional(expression);
    default: return evaluate_arithmetic(expression);
  }
}

Value Interpreter::evaluate_name(const Expression& expression) {
  if (const Value* value = scope_->find(expression.name_id)) return *value;
  return Value::undefined(concat("'", program_.names[static_cast<std::size_t>(expression.name_id)], "' is undefined"));
}

Value Interpreter::evaluate_list(const Expression& expression) {
  Values items;
  items.reserve(expression.items.size());
  for (const auto& item : expression.items) items.push_back(evaluate(*item));
  budget_.bytes(static_cast<std::int64_t>(items.size() * sizeof(Value) + sizeof(Sequence)));
  return expression.op == Op::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  auto dict = std::make_shared<Dict>();
  budget_.bytes(sizeof(Dict));
  for (std::size_t i = 0; i < expression.items.size(); i += 2) {
    Value key = evaluate(*expression.items[i]);
    dict->set(std::move(key), evaluate(*expression.items[i + 1]), budget_);
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value holder = evaluate(*expression.items[0]);
  SliceBounds bounds;
  std::optional<std::int64_t>* parts[] = {&bounds.start, &bounds.stop, &bounds.step};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!expression.items[i + 1]) continue;
    const Value part = evaluate(*expression.items[i + 1]);
    if (part.is_none()) continue;
    if (part.is_undefined()) fail_undefined(part);
    if (!part.is_integral()) fail("slice indices must be integers or None");
    *parts[i] = part.as_int();
  }
  line_ = expression.line;
  return slice(holder, bounds, budget_);
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.items[0]);
  for (std::size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = evaluate(*expression.items[i + 1]);
    line_ = expression.line;
    bool holds = false;
    switch (expression.comparisons[i]) {
      case Comparison::kEqual: holds = equal(left, right, budget_); break;
      case Comparison::kNotEqual: holds = !equal(left, right, budget_); break;
      case Comparison::kLess: holds = compare(left, right, budget_) < 0; break;
      case Comparison::kLessEqual: holds = compare(left, right, budget_) <= 0; break;
      case Comparison::kGreater: holds = compare(left, right, budget_) > 0; break;
      case Comparison::kGreaterEqual: holds = compare(left, right, budget_) >= 0; break;
      case Comparison::kIn: holds = contains(right, left); break;
      case Comparison::kNotIn: holds = !contains(right, left); break;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concat(const Expression& expression) {
  std::string out;
  for (const auto& item : expression.items) append_text(out, evaluate(*item), budget_);
  return Value::text(std::move(out));
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (truth(evaluate(*expression.items[1]))) return evaluate(*expression.items[0]);
  if (expression.items[2]) return evaluate(*expression.items[2]);
  return Value::undefined("an inline if without else was false");
}

Value Interpreter::evaluate_arithmetic(const Expression& expression) {
  const Value left = evaluate(*expression.items[0]);
  const Value right = evaluate(*expression.items[1]);
  line_ = expression.line;
  switch (expression.op) {
    case Op::kAdd: return add(left, right);
    case Op::kMultiply: return multiply(left, right, budget_);
    case Op::kModulo:
      if (left.is_text()) return text(percent_format(*this, left.bytes(), right));
      return arithmetic(Op::kModulo, left, right);
    default: return arithmetic(expression.op, left, right);
  }
}

Value Interpreter::add(const Value& a, const Value& b) { return jinja::add(a, b, budget_); }

Value Interpreter::evaluate_native(const Expression& expression) {
  const Value input = expression.items[0] ? evaluate(*expression.items[0]) : block_text_;
  const Arguments arguments = evaluate_arguments(expression);
  line_ = expression.line;
  if (expression.native == nullptr) {
    fail(concat("no ", expression.op == Op::kFilter ? "filter" : "test", " named '", expression.name, "'"));
  }
  return expression.native(*this, input, arguments);
}

Arguments Interpreter::evaluate_arguments(const Expression& call) {
  Arguments arguments;
  arguments.positional.reserve(call.positional.size());
  for (const auto& argument : call.positional) arguments.positional.push_back(evaluate(*argument));
  for (const auto& [name, argument] : call.named) arguments.named.emplace_back(name, evaluate(*argument));
  if (call.star) {
    const auto more = iterate(evaluate(*call.star), budget_);
    budget_.bytes(static_cast<std::int64_t>(more->items.size() * sizeof(Value)));
    arguments.positional.insert(arguments.positional.end(), more->items.begin(), more->items.end());
  }
  if (call.star_star) {
    const Value more = evaluate(*call.star_star);
    if (!more.is(Kind::kDict)) fail("the argument after ** must be a mapping");
    for (const auto& [name, value] : more.entries().entries) {
      if (!name.is_text()) fail("keywords must be strings");
      budget_.bytes(static_cast<std::int64_t>(name.bytes().size() + sizeof(Value)));
      arguments.named.emplace_back(name.bytes(), value);
    }
  }
  return arguments;
}

Value Interpreter::call(const Value& callee, Arguments arguments) {
  budget_.step();
  switch (callee.kind()) {
    case Kind::kFunction: {
      const auto& function = callee.object<Function>();
      return function.call(*this, function.self, arguments);
    }
    case Kind::kMacro: return call_macro(callee.object<BoundMacro>(), std::move(arguments));
    case Kind::kLoop: return call_loop(callee, bind(arguments, "loop", {"iterable"}, 1)[0]);
    case Kind::kJoiner: {
      auto& joiner = callee.object<Joiner>();
      return text(std::exchange(joiner.used, true) ? joiner.separator : std::string());
    }
    case Kind::kUndefined: fail_undefined(callee);
    default: fail(concat("'", type_name(callee), "' object is not callable"));
  }
}

Value Interpreter::own_attribute(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kText: {
      const Native method = find_text_method(name);
      return method != nullptr ? Value::function(method, value) : Value();
    }
    case Kind::kTuple:
      if (value.object<Sequence>().is_group && (name == "grouper" || name == "list")) {
        return value.items()[name == "list" ? 1 : 0];
      }
      [[fallthrough]];
    case Kind::kList:
    case Kind::kRange:
    case Kind::kDict: {
      if (value.is(Kind::kRange)) {
        const auto& range = value.object<Range>();
        if (name == "start") return Value::integer(range.start);
        if (name == "stop") return Value::integer(range.stop);
        if (name == "step") return Value::integer(range.step);
      }
      const Native method = find_container_method(value.kind(), name);
      return method != nullptr ? Value::function(method, value) : Value();
    }
    case Kind::kNamespace: {
      const Value* found = value.object<Namespace>().find(name);
      return found != nullptr ? *found : Value();
    }
    case Kind::kLoop: return loop_attribute(value, name);
    case Kind::kMacro: {
      const Macro& macro = *value.object<BoundMacro>().macro;
      if (name == "name") return text(macro.name);
      if (name == "catch_kwargs") return Value::boolean(macro.uses_kwargs);
      if (name == "catch_varargs") return Value::boolean(macro.uses_varargs);
      if (name == "caller") return Value::boolean(macro.uses_caller);
      if (name != "arguments") return {};
      Values names;
      for (const auto& parameter : macro.parameter_names) names.push_back(text(parameter));
      return Value::tuple(std::move(names));
    }
    case Kind::kCycler:
      if (name == "current") return value.object<Cycler>().items[value.object<Cycler>().position];
      if (name == "next") return Value::function(cycler_next, value);
      if (name == "reset") return Value::function(cycler_reset, value);
      return {};
    default: return {};
  }
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) fail_undefined(value);
  if (changes_its_object(value, name)) {
    return Value::undefined(concat("a template may not change a ", type_name(value), ", so '", name, "' is unsafe"));
  }
  Value own = own_attribute(value, name);
  if (!own.is_missing()) return own;
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.entries().find(name)) return *found;
  }
  return Value::undefined(concat(describe(value), " has no attribute '", name, "'"));
}

Value Interpreter::item(const Value& value, const Value& key, bool show_key) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.entries().find(key, budget_)) return *found;
  } else if (key.is_integral()) {
    Value found = item_at(value, key.as_int(), budget_);
    if (!found.is_missing()) return found;
  }
  if (key.is_text()) {
    if (!changes_its_object(value, key.bytes())) {
      Value own = own_attribute(value, key.bytes());
      if (!own.is_missing()) return own;
    }
    if (show_key) return Value::undefined(concat(describe(value), " has no attribute '", key.bytes(), "'"));
  }
  return Value::undefined(concat(describe(value), " has no such element"));
}

bool Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_text()) {
    if (item.is_undefined()) fail_undefined(item);
    if (!item.is_text()) fail(concat("'in <string>' requires string as left operand, not ", type_name(item)));
    return find_text(container.bytes(), item.bytes(), false, budget_) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) {
    if (!is_hashable(item, budget_)) fail(concat("unhashable type: '", type_name(item), "'"));
    return container.entries().find(item, budget_) != nullptr;
  }
  if (!is_iterable(container)) fail(concat("argument of type '", type_name(container), "' is not iterable"));
  const auto items = iterate(container, budget_);
  for (const Value& candidate : items->items) {
    if (equal(candidate, item, budget_)) return true;
  }
  return false;
}

}  // namespace hotset::model::jinja
