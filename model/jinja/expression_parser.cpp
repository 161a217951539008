#include "model/jinja/expression_parser.h"

#include <algorithm>
#include <unordered_set>

#include "core/concat.h"
#include "model/jinja/builtins.h"

namespace hotset::model::jinja {
namespace {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd: return "the end of the template";
    case TokenKind::kPrintEnd: return "'}}'";
    case TokenKind::kBlockEnd: return "'%}'";
    case TokenKind::kName:
    case TokenKind::kOperator: return concat("'", token.text, "'");
    case TokenKind::kText: return "a text";
    case TokenKind::kInteger:
    case TokenKind::kFloat: return "a number";
    default: return "template text";
  }
}

std::vector<ExpressionPtr> list_of(ExpressionPtr a, ExpressionPtr b) {
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(a));
  items.push_back(std::move(b));
  return items;
}
std::vector<ExpressionPtr> list_of(ExpressionPtr a) {
  std::vector<ExpressionPtr> items;
  items.push_back(std::move(a));
  return items;
}

}  // namespace

void ExpressionParser::error(std::string message) const {
  throw TemplateError{std::move(message), false, current().line};
}
void ExpressionParser::error_expected(std::string_view what) const {
  error(concat("expected ", what, ", found ", describe(current())));
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}
bool ExpressionParser::skip_operator(std::string_view op) {
  if (!current().is_operator(op)) return false;
  take();
  return true;
}
void ExpressionParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) error_expected(concat("'", op, "'"));
}
std::string ExpressionParser::expect_any_name() {
  if (current().kind != TokenKind::kName) error_expected("a name");
  return take().text;
}

NameId ExpressionParser::name_id(const std::string& name) {
  const auto [entry, is_new] = name_ids_.try_emplace(name, static_cast<NameId>(program_.names.size()));
  if (is_new) program_.names.push_back(name);
  return entry->second;
}

void ExpressionParser::raise_height(Expression& parent, const ExpressionPtr& child) {
  if (!child) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) throw TemplateError{"the template is nested too deeply", false, child->line};
}

ExpressionPtr ExpressionParser::make(Op op, int line, std::vector<ExpressionPtr> items) {
  auto node = std::make_unique<Expression>();
  node->op = op;
  node->line = line;
  node->items = std::move(items);
  for (const ExpressionPtr& item : node->items) raise_height(*node, item);
  return node;
}

ExpressionPtr ExpressionParser::parse_expression(bool with_conditional) {
  const Nesting nesting(*this);
  if (!with_conditional) return parse_or();
  const int line = current().line;
  // Whether the value is used is known only behind it, at the `if`: look-ahead is not needed, because an unknown filter
  // before an `if` is rare and then merely reported early.
  ExpressionPtr node = parse_or();
  while (skip_name("if")) {
    const bool outer = may_be_skipped_;
    may_be_skipped_ = true;
    auto items = list_of(std::move(node), parse_or());
    items.push_back(skip_name("else") ? parse_expression() : nullptr);
    may_be_skipped_ = outer;
    node = make(Op::kConditional, line, std::move(items));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (current().is_name("or")) {
    const int line = take().line;
    left = make(Op::kOr, line, list_of(std::move(left), parse_and()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (current().is_name("and")) {
    const int line = take().line;
    left = make(Op::kAnd, line, list_of(std::move(left), parse_not()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = take().line;
  return make(Op::kNot, line, list_of(parse_not()));
}

ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  const int line = current().line;
  ExpressionPtr first = parse_sum();
  std::vector<ExpressionPtr> items;
  std::vector<Comparison> comparisons;
  while (true) {
    const Token& token = current();
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](const auto& entry) { return token.is_operator(entry.first); });
    if (op != std::end(kOperators)) {
      take();
      comparisons.push_back(op->second);
    } else if (skip_name("in")) {
      comparisons.push_back(Comparison::kIn);
    } else if (token.is_name("not") && look_ahead().is_name("in")) {
      take();
      take();
      comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    items.push_back(parse_sum());
  }
  if (items.empty()) return first;
  items.insert(items.begin(), std::move(first));
  ExpressionPtr node = make(Op::kCompare, line, std::move(items));
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concat();
  while (current().is_operator("+") || current().is_operator("-")) {
    const Token op = take();
    left = make(op.text == "+" ? Op::kAdd : Op::kSubtract, op.line, list_of(std::move(left), parse_concat()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  auto items = list_of(parse_product());
  while (skip_operator("~")) items.push_back(parse_product());
  if (items.size() == 1) return std::move(items[0]);
  return make(Op::kConcat, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (true) {
    const Token& token = current();
    const Op op = token.is_operator("*")    ? Op::kMultiply
                  : token.is_operator("/")  ? Op::kDivide
                  : token.is_operator("//") ? Op::kFloorDivide
                  : token.is_operator("%")  ? Op::kModulo
                                            : Op::kConstant;
    if (op == Op::kConstant) return left;
    const int line = take().line;
    left = make(op, line, list_of(std::move(left), parse_power()));
  }
}

// Left to right, unlike Python: 2 ** 3 ** 2 is 64 in jinja2.
ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (current().is_operator("**")) {
    const int line = take().line;
    left = make(Op::kPower, line, list_of(std::move(left), parse_unary()));
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr node;
  if (current().is_operator("-") || current().is_operator("+")) {
    const Token op = take();
    node = make(op.text == "-" ? Op::kNegate : Op::kPlus, op.line, list_of(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_name() {
  const int line = current().line;
  const std::string name = take().text;
  ExpressionPtr node = make(Op::kConstant, line);
  if (name == "true" || name == "True") {
    node->value = Value::boolean(true);
  } else if (name == "false" || name == "False") {
    node->value = Value::boolean(false);
  } else if (name == "none" || name == "None") {
    node->value = Value::none();
  } else {
    node->op = Op::kName;
    node->name_id = name_id(name);
    for (Macro* macro : open_macros_) {
      macro->uses_caller |= name == "caller";
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  if (token.kind == TokenKind::kName) return parse_name();
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  if (token.is_operator("(")) {
    take();
    ExpressionPtr node = parse_tuple(true, {}, true);
    expect_operator(")");
    return node;
  }
  ExpressionPtr node = make(Op::kConstant, line);
  if (token.kind == TokenKind::kText) {
    std::string text = take().text;
    while (current().kind == TokenKind::kText) text += take().text;
    node->value = Value::text(std::move(text));
  } else if (token.kind == TokenKind::kInteger) {
    node->value = Value::integer(take().integer);
  } else if (token.kind == TokenKind::kFloat) {
    node->value = Value::real(take().real);
  } else {
    error_expected("an expression");
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view stop, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    const Token& token = current();
    const bool at_end = token.kind == TokenKind::kPrintEnd || token.kind == TokenKind::kBlockEnd ||
                        token.is_operator(")") || (!stop.empty() && token.is_name(stop));
    if (at_end) break;
    items.push_back(parse_expression(with_conditional));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) error_expected("an expression");
  return make(Op::kTuple, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_list() {
  const int line = take().line;
  std::vector<ExpressionPtr> items;
  while (!current().is_operator("]")) {
    items.push_back(parse_expression());
    if (!current().is_operator("]")) expect_operator(",");
  }
  take();
  return make(Op::kList, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_dict() {
  const int line = take().line;
  std::vector<ExpressionPtr> items;
  while (!current().is_operator("}")) {
    items.push_back(parse_expression());
    expect_operator(":");
    items.push_back(parse_expression());
    if (!current().is_operator("}")) expect_operator(",");
  }
  take();
  return make(Op::kDict, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (current().is_operator(".")) {
      node = parse_attribute(std::move(node));
    } else if (current().is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr node) {
  while (true) {
    if (skip_operator("|")) {
      node = parse_filter(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr node) {
  const int line = take().line;
  if (current().kind == TokenKind::kInteger) {
    ExpressionPtr index = make(Op::kConstant, line);
    index->value = Value::integer(take().integer);
    return make(Op::kItem, line, list_of(std::move(node), std::move(index)));
  }
  if (current().kind != TokenKind::kName) error_expected("a name or number");
  ExpressionPtr attribute = make(Op::kAttribute, line, list_of(std::move(node)));
  attribute->name = take().text;
  attribute->value = Value::text(attribute->name);
  return attribute;
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr node) {
  const int line = take().line;
  auto items = list_of(std::move(node));
  bool is_slice = current().is_operator(":");
  items.push_back(is_slice ? nullptr : parse_expression());
  if (current().is_operator(",")) {
    // x[1, 2] reads the key (1, 2).
    auto parts = list_of(std::move(items[1]));
    while (skip_operator(",")) parts.push_back(parse_expression());
    items[1] = make(Op::kTuple, line, std::move(parts));
  }
  while (items.size() < 4 && skip_operator(":")) {
    is_slice = true;
    const bool absent = current().is_operator(":") || current().is_operator("]");
    items.push_back(absent ? nullptr : parse_expression());
  }
  expect_operator("]");
  if (is_slice) items.resize(4);
  return make(is_slice ? Op::kSlice : Op::kItem, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr node) {
  ExpressionPtr call = make(Op::kCall, current().line, list_of(std::move(node)));
  parse_arguments(*call);
  return call;
}

void ExpressionParser::parse_arguments(Expression& call) {
  expect_operator("(");
  std::unordered_set<std::string> names;
  while (!current().is_operator(")")) {
    if (skip_operator("*")) {
      if (call.star || call.star_star) error("the arguments of a call are out of order");
      call.star = parse_expression();
      raise_height(call, call.star);
    } else if (skip_operator("**")) {
      if (call.star_star) error("the arguments of a call are out of order");
      call.star_star = parse_expression();
      raise_height(call, call.star_star);
    } else if (current().kind == TokenKind::kName && look_ahead().is_operator("=")) {
      if (call.star_star) error("the arguments of a call are out of order");
      std::string name = take().text;
      take();
      if (!names.insert(name).second) error("a call names an argument twice");
      call.named.emplace_back(std::move(name), parse_expression());
      raise_height(call, call.named.back().second);
    } else {
      if (call.star || call.star_star || !call.named.empty()) error("the arguments of a call are out of order");
      call.positional.push_back(parse_expression());
      raise_height(call, call.positional.back());
    }
    if (!current().is_operator(")")) expect_operator(",");
  }
  take();
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_any_name();
  while (skip_operator(".")) name += concat('.', expect_any_name());
  return name;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  ExpressionPtr node = make(Op::kFilter, current().line, list_of(std::move(input)));
  node->name = dotted_name();
  node->native = find_filter(node->name);
  if (node->native == nullptr && !may_be_skipped_) {
    throw TemplateError{concat("no filter named '", node->name, "'"), false, node->line};
  }
  if (current().is_operator("(")) parse_arguments(*node);
  return node;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
  const int line = take().line;
  const bool negated = skip_name("not");
  ExpressionPtr node = make(Op::kTest, line, list_of(std::move(input)));
  node->name = dotted_name();
  node->native = find_test(node->name);
  if (node->native == nullptr && !may_be_skipped_) {
    throw TemplateError{concat("no test named '", node->name, "'"), false, line};
  }
  const Token& token = current();
  const bool is_value = token.kind == TokenKind::kName || token.kind == TokenKind::kText ||
                        token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
                        token.is_operator("[") || token.is_operator("{");
  const bool is_keyword = token.is_name("else") || token.is_name("or") || token.is_name("and");
  if (token.is_operator("(")) {
    parse_arguments(*node);
  } else if (is_value && !is_keyword) {
    if (token.is_name("is")) error("tests cannot be chained with 'is'");
    const Nesting nesting(*this);
    node->positional.push_back(parse_postfix(parse_primary()));
    raise_height(*node, node->positional.back());
  }
  return negated ? make(Op::kNot, line, list_of(std::move(node))) : std::move(node);
}

}  // namespace hotset::model::jinja
