// The parsed template. Immutable after parsing, read by many threads. Every node knows its height, and none is higher
// than kMaxHeight, so evaluating or destroying a tree cannot overflow the stack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace hotset::model::jinja {

// Filters, tests (which return a boolean), methods and global functions all have this form. `self` is the filtered
// value or the method's object; missing for global functions.
using Native = Function::Call;

inline constexpr int kMaxHeight = 300;

using NameId = std::int32_t;  // index into Program::names

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class Op : std::uint8_t {
  kConstant,   // value
  kName,       // name_id
  kList,       // items
  kTuple,      // items
  kDict,       // items: key, value, key, value, ...
  kAttribute,  // items[0] . name
  kItem,       // items[0] [ items[1] ]
  kSlice,      // items[0] [ items[1] : items[2] : items[3] ], absent parts null
  kCall,       // items[0] ( arguments )
  kFilter,     // items[0] | name ( arguments ); items[0] null inside a filter block
  kTest,       // items[0] is name ( arguments )
  kCompare,    // items[0] comparisons[0] items[1] comparisons[1] items[2] ...
  kAnd,
  kOr,
  kNot,
  kNegate,
  kPlus,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcat,       // items
  kConditional,  // items[0] if items[1] else items[2]; items[2] may be null
};
enum class Comparison : std::uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Expression {
  Op op = Op::kConstant;
  int line = 0;
  int height = 1;
  NameId name_id = -1;
  Native native = nullptr;  // of a filter or test; null when the name is unknown (an error only when reached)
  Value value;
  std::string name;
  std::vector<ExpressionPtr> items;
  std::vector<Comparison> comparisons;
  // Arguments of kCall, kFilter, kTest.
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star, star_star;
};

// What an assignment writes to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  NameId name_id = -1;
  std::string attribute;  // not empty: attribute of the namespace `name_id`
  std::vector<Target> parts;
  bool is_tuple = false;
};

// Parameters and body of a macro or of a call block's caller.
struct Macro {
  std::string name;
  NameId name_id = -1;
  std::vector<std::string> parameter_names;
  std::vector<NameId> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
  NameId caller_id = -1, varargs_id = -1, kwargs_id = -1;
  Body body;
};

enum class Action : std::uint8_t {
  kData,         // text
  kPrint,        // expression
  kIf,           // branches, otherwise
  kFor,          // target, expression, condition, body, otherwise
  kSet,          // target = expression
  kSetBlock,     // target = body through the filter in `expression`, if any
  kMacro,        // macro
  kCallBlock,    // expression (a call) with macro as caller
  kFilterBlock,  // body through the filter in `expression`
  kWith,         // assignments, body
  kScope,        // body with names of its own (generation, block)
  kBreak,
  kContinue,
};

struct Statement {
  Action action = Action::kData;
  int line = 0;
  std::string text;
  ExpressionPtr expression, condition;
  Target target;
  Body body, otherwise;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  std::unique_ptr<Macro> macro;
  bool is_recursive = false;  // kFor
  bool sees_outer = true;     // kScope: false for a block, which sees the names of the template's top only
};

struct Program {
  Body body;
  std::vector<std::string> names;
  NameId loop_id = -1;
};

}  // namespace hotset::model::jinja
