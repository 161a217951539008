// Runs a Program once: one Interpreter per rendering and thread. Throws TemplateError, which ChatTemplate::render turns
// into a Result.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/builtins.h"
#include "model/jinja/value.h"

namespace hotset::model::jinja {

// Names of one block. An assignment goes to the innermost scope, a lookup to the nearest one that has the name.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<NameId, Value>> values;

  [[nodiscard]] const Value* find(NameId name) const;
  void set(NameId name, Value value);
};

struct BoundMacro final : Object {
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope;
  void clear() override { scope.reset(); }
};
struct Loop final : Object {
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // around the loop, for loop(...)
  std::shared_ptr<const Sequence> items;
  std::size_t index = 0;
  int depth = 1;
  Value changed;  // arguments of the last loop.changed()
  void clear() override {
    scope.reset();
    items.reset();
    changed = Value();
  }
};

class Interpreter {
 public:
  using Context = std::vector<std::pair<std::string, Value>>;

  Interpreter(const Program& program, Budget& budget) : program_(program), budget_(budget) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // `context`: the names that the template sees; a later entry replaces an earlier one of the same name.
  std::string render(const Context& context);
  [[nodiscard]] int line() const { return line_; }

  // --- for built-ins ---
  [[nodiscard]] Budget& budget() { return budget_; }
  // A new text, paid for.
  [[nodiscard]] Value text(std::string bytes);
  [[nodiscard]] Value list(Values items);
  [[nodiscard]] Value iterator(Values items);
  // value.name and value[key], undefined when absent.
  [[nodiscard]] Value attribute(const Value& value, std::string_view name);
  // `show_key`: whether an error may name the key (one that the template wrote itself).
  [[nodiscard]] Value item(const Value& value, const Value& key, bool show_key = false);
  [[nodiscard]] Value call(const Value& callee, Arguments arguments);
  [[nodiscard]] bool contains(const Value& container, const Value& item);
  [[nodiscard]] Value add(const Value& a, const Value& b);
  [[nodiscard]] Value call_loop(const Value& loop, const Value& items);
  // Keeps `object` until the end, when its references are cut: anything that may become part of a cycle.
  void keep(std::shared_ptr<Object> object);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;

  // statements (interpreter.cpp)
  Flow run(const Body& body);
  Flow run_one(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_with(const Statement& statement);
  void run_for(const Statement& statement);
  void run_loop(const Statement& statement, std::shared_ptr<Scope> around, const Value& iterable, int depth);
  [[nodiscard]] std::shared_ptr<const Sequence> loop_items(const Statement& statement, const Value& iterable);
  void run_call_block(const Statement& statement);
  Flow run_scoped(const Body& body, std::shared_ptr<Scope> parent);
  // Text that `body` prints, in a scope of its own.
  [[nodiscard]] std::string capture(const Body& body, Flow& flow);
  void assign(const Target& target, const Value& value);
  [[nodiscard]] Value make_macro(const Macro& macro);
  [[nodiscard]] Value call_macro(const BoundMacro& bound, Arguments arguments);
  void bind_parameters(const Macro& macro, Arguments& arguments, Scope& scope);
  void print(const Value& value);

  // expressions (evaluate.cpp)
  [[nodiscard]] Value evaluate(const Expression& expression);
  [[nodiscard]] Value evaluate_name(const Expression& expression);
  [[nodiscard]] Value evaluate_list(const Expression& expression);
  [[nodiscard]] Value evaluate_dict(const Expression& expression);
  [[nodiscard]] Value evaluate_slice(const Expression& expression);
  [[nodiscard]] Value evaluate_compare(const Expression& expression);
  [[nodiscard]] Value evaluate_concat(const Expression& expression);
  [[nodiscard]] Value evaluate_native(const Expression& expression);
  [[nodiscard]] Value evaluate_arithmetic(const Expression& expression);
  [[nodiscard]] Value evaluate_conditional(const Expression& expression);
  // The filters of a block tag on what the block printed.
  [[nodiscard]] Value filter_block(const Expression& filters, std::string text);
  [[nodiscard]] Arguments evaluate_arguments(const Expression& call);
  // What value.name is when it is no key of `value`; missing when there is none.
  [[nodiscard]] Value own_attribute(const Value& value, std::string_view name);

  const Program& program_;
  Budget& budget_;
  std::shared_ptr<Scope> root_;
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;
  Value block_text_;  // input of the first filter of a block tag
  std::vector<std::shared_ptr<Object>> kept_;
  int depth_ = 0;
  int calls_ = 0;
  int line_ = 0;
};

// Nesting of evaluation; fails when too deep for the stack.
class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
    if (interpreter_.depth_ >= interpreter_.budget_.limits().depth) fail("the template is nested too deeply");
    ++interpreter_.depth_;
  }
  ~Depth() { --interpreter_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& interpreter_;
};

}  // namespace hotset::model::jinja
