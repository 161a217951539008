#include "model/jinja/interpreter.h"

#include <algorithm>
#include <unordered_map>

#include "core/concat.h"
#include "model/jinja/print.h"

namespace hotset::model::jinja {

const Value* Scope::find(NameId name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [id, value] : scope->values) {
      if (id == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(NameId name, Value value) {
  for (auto& [id, old] : values) {
    if (id == name) {
      old = std::move(value);
      return;
    }
  }
  values.emplace_back(name, std::move(value));
}

Interpreter::~Interpreter() {
  // Namespaces, macros and loops may hold each other; what is cut here is still owned by kept_, so nothing recurses.
  for (const auto& object : kept_) object->clear();
}

void Interpreter::keep(std::shared_ptr<Object> object) {
  budget_.bytes(128);
  kept_.push_back(std::move(object));
}

std::string Interpreter::render(const Context& context) {
  std::unordered_map<std::string_view, NameId> ids;
  for (std::size_t i = 0; i < program_.names.size(); ++i) ids[program_.names[i]] = static_cast<NameId>(i);
  auto outside = std::make_shared<Scope>();
  for (const auto& [name, function] : global_functions()) {
    if (const auto id = ids.find(name); id != ids.end()) outside->set(id->second, Value::function(function, {}));
  }
  for (const auto& [name, value] : context) {
    if (const auto id = ids.find(name); id != ids.end()) outside->set(id->second, value);
  }
  root_ = std::make_shared<Scope>();
  root_->parent = std::move(outside);
  scope_ = root_;
  std::string out;
  out_ = &out;
  run(program_.body);
  return out;
}

void Interpreter::print(const Value& value) { append_text(*out_, value, budget_); }

Interpreter::Flow Interpreter::run(const Body& body) {
  const Depth depth(*this);
  for (const auto& statement : body) {
    const Flow flow = run_one(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_one(const Statement& statement) {
  budget_.step();
  line_ = statement.line;
  Flow flow = Flow::kNext;
  switch (statement.action) {
    case Action::kData:
      budget_.bytes(static_cast<std::int64_t>(statement.text.size()));
      *out_ += statement.text;
      break;
    case Action::kPrint: print(evaluate(*statement.expression)); break;
    case Action::kIf: return run_if(statement);
    case Action::kFor: run_for(statement); break;
    case Action::kSet: assign(statement.target, evaluate(*statement.expression)); break;
    case Action::kSetBlock: {
      std::string text = capture(statement.body, flow);
      assign(statement.target, statement.expression ? filter_block(*statement.expression, std::move(text))
                                                    : Value::text(std::move(text)));
      break;
    }
    case Action::kMacro: scope_->set(statement.macro->name_id, make_macro(*statement.macro)); break;
    case Action::kCallBlock: run_call_block(statement); break;
    case Action::kFilterBlock: {
      std::string text = capture(statement.body, flow);
      print(filter_block(*statement.expression, std::move(text)));
      break;
    }
    case Action::kWith: return run_with(statement);
    case Action::kScope: return run_scoped(statement.body, statement.sees_outer ? scope_ : root_);
    case Action::kBreak: return Flow::kBreak;
    case Action::kContinue: return Flow::kContinue;
  }
  return flow;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    if (truth(evaluate(*condition))) return run(body);
  }
  return run(statement.otherwise);
}

Interpreter::Flow Interpreter::run_scoped(const Body& body, std::shared_ptr<Scope> parent) {
  budget_.bytes(sizeof(Scope));
  auto scope = std::make_shared<Scope>();
  scope->parent = std::move(parent);
  std::swap(scope, scope_);
  const Flow flow = run(body);
  scope_ = std::move(scope);
  return flow;
}

Interpreter::Flow Interpreter::run_with(const Statement& statement) {
  budget_.bytes(sizeof(Scope));
  // The values are read outside: {% with a = 1, b = a %} does not see the new a.
  Values values;
  for (const auto& [target, expression] : statement.assignments) values.push_back(evaluate(*expression));
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>();
  scope_->parent = outer;
  for (std::size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i]);
  const Flow flow = run(statement.body);
  scope_ = outer;
  return flow;
}

std::string Interpreter::capture(const Body& body, Flow& flow) {
  std::string text;
  std::string* const outer = out_;
  out_ = &text;
  flow = run_scoped(body, scope_);
  out_ = outer;
  return text;
}

Value Interpreter::filter_block(const Expression& filters, std::string text) {
  Value outer = std::move(block_text_);
  block_text_ = Value::text(std::move(text));
  Value result = evaluate(filters);
  block_text_ = std::move(outer);
  return result;
}

void Interpreter::run_for(const Statement& statement) {
  run_loop(statement, scope_, evaluate(*statement.expression), 1);
}

std::shared_ptr<const Sequence> Interpreter::loop_items(const Statement& statement, const Value& iterable) {
  auto all = iterate(iterable, budget_);
  if (!statement.condition) return all;
  auto chosen = std::make_shared<Sequence>();
  const std::shared_ptr<Scope> outer = scope_;
  for (const Value& item : all->items) {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    budget_.bytes(sizeof(Scope));
    assign(statement.target, item);
    if (truth(evaluate(*statement.condition))) chosen->items.push_back(item);
  }
  scope_ = outer;
  return chosen;
}

void Interpreter::run_loop(const Statement& statement, std::shared_ptr<Scope> around, const Value& iterable,
                           int depth) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = around;
  auto items = loop_items(statement, iterable);
  if (items->items.empty()) {
    run_scoped(statement.otherwise, around);
    scope_ = outer;
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->statement = &statement;
  loop->scope = around;
  loop->items = items;
  loop->depth = depth;
  for (std::size_t i = 0; i < items->items.size(); ++i) {
    budget_.bytes(sizeof(Scope));
    loop->index = i;
    scope_ = std::make_shared<Scope>();
    scope_->parent = around;
    scope_->set(program_.loop_id, Value(Kind::kLoop, loop));
    assign(statement.target, items->items[i]);
    if (run(statement.body) == Flow::kBreak) break;
  }
  scope_ = outer;
  if (loop.use_count() > 1) keep(loop);  // somebody still knows it: it may be part of a cycle
}

Value Interpreter::call_loop(const Value& value, const Value& items) {
  const auto& loop = value.object<Loop>();
  if (!loop.statement->is_recursive) fail("a loop that is called must be marked 'recursive'");
  if (++calls_ > budget_.limits().call_depth) fail("the template calls itself too deeply");
  std::string text;
  std::string* const outer = out_;
  out_ = &text;
  run_loop(*loop.statement, loop.scope, items, loop.depth + 1);
  out_ = outer;
  --calls_;
  return Value::text(std::move(text));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const auto sequence = iterate(value, budget_);
    if (sequence->items.size() != target.parts.size()) {
      fail(concat("cannot unpack ", sequence->items.size(), " values into ", target.parts.size(), " names"));
    }
    for (std::size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], sequence->items[i]);
    return;
  }
  if (target.attribute.empty()) {
    scope_->set(target.name_id, value);
    return;
  }
  const Value* holder = scope_->find(target.name_id);
  if (holder == nullptr || !holder->is(Kind::kNamespace)) {
    fail(concat("'", program_.names[static_cast<std::size_t>(target.name_id)],
                "' is no namespace, so its attributes cannot be set"));
  }
  budget_.bytes(64);
  holder->object<Namespace>().set(target.attribute, value);
}

Value Interpreter::make_macro(const Macro& macro) {
  auto bound = std::make_shared<BoundMacro>();
  bound->macro = &macro;
  bound->scope = scope_;
  keep(bound);
  return Value(Kind::kMacro, std::move(bound));
}

void Interpreter::run_call_block(const Statement& statement) {
  const Expression& call_expression = *statement.expression;
  const Value callee = evaluate(*call_expression.items[0]);
  Arguments arguments = evaluate_arguments(call_expression);
  arguments.named.emplace_back("caller", make_macro(*statement.macro));
  print(call(callee, std::move(arguments)));
}

void Interpreter::bind_parameters(const Macro& macro, Arguments& arguments, Scope& scope) {
  const auto take_named = [&](std::string_view name) {
    budget_.step(static_cast<std::int64_t>(arguments.named.size()));
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& argument) { return argument.first == name; });
    if (found == arguments.named.end()) return Value();
    Value value = std::move(found->second);
    arguments.named.erase(found);
    return value;
  };
  const std::size_t count = macro.parameters.size();
  bool has_caller_parameter = false;
  for (std::size_t i = 0; i < count; ++i) {
    has_caller_parameter |= macro.parameters[i] == macro.caller_id;
    Value value = i < arguments.positional.size() ? arguments.positional[i] : take_named(macro.parameter_names[i]);
    const std::size_t first_default = count - macro.defaults.size();
    if (value.is_missing() && i >= first_default) value = evaluate(*macro.defaults[i - first_default]);
    if (value.is_missing()) {
      value = Value::undefined(concat("parameter '", macro.parameter_names[i], "' was not provided"));
    }
    scope.set(macro.parameters[i], std::move(value));
  }
  if (macro.uses_caller && !has_caller_parameter) {
    Value caller = take_named("caller");
    scope.set(macro.caller_id, caller.is_missing() ? Value::undefined("no caller is defined") : std::move(caller));
  }
  if (macro.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (auto& [name, value] : arguments.named) rest->set(text(name), std::move(value), budget_);
    scope.set(macro.kwargs_id, Value::dict(std::move(rest)));
  } else if (!arguments.named.empty()) {
    fail(concat("macro '", macro.name, "' takes no argument of the name that it is called with"));
  }
  if (macro.uses_varargs) {
    const auto first = std::min(count, arguments.positional.size());
    scope.set(macro.varargs_id, Value::tuple(Values(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first),
                                                    arguments.positional.end())));
  } else if (arguments.positional.size() > count) {
    fail(concat("macro '", macro.name, "' takes at most ", count, " arguments"));
  }
}

Value Interpreter::call_macro(const BoundMacro& bound, Arguments arguments) {
  if (++calls_ > budget_.limits().call_depth) fail("the template calls itself too deeply");
  budget_.bytes(sizeof(Scope));
  const std::shared_ptr<Scope> outer = scope_;
  std::string* const outer_out = out_;
  std::string text;
  scope_ = std::make_shared<Scope>();
  scope_->parent = bound.scope;
  out_ = &text;
  bind_parameters(*bound.macro, arguments, *scope_);
  run(bound.macro->body);
  out_ = outer_out;
  scope_ = outer;
  --calls_;
  return Value::text(std::move(text));
}

}  // namespace hotset::model::jinja
