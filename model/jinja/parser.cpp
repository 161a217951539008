#include "model/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/concat.h"
#include "model/jinja/expression_parser.h"

namespace hotset::model::jinja {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

class Parser final : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Program run() {
    program_.loop_id = name_id("loop");
    program_.body = parse_until({});
    return std::move(program_);
  }

 private:
  // A body with names of its own: `break` cannot leave it, and its filters count as reached.
  class OwnScope {
   public:
    OwnScope(Parser& parser, bool is_loop) : parser_(parser), loops_(parser.loops_), skipped_(parser.may_be_skipped_) {
      parser.loops_ = is_loop ? loops_ + 1 : 0;
      parser.may_be_skipped_ = false;
    }
    ~OwnScope() {
      parser_.loops_ = loops_;
      parser_.may_be_skipped_ = skipped_;
    }
    OwnScope(const OwnScope&) = delete;
    OwnScope& operator=(const OwnScope&) = delete;

   private:
    Parser& parser_;
    int loops_;
    bool skipped_;
  };

  using Ends = std::initializer_list<std::string_view>;

  static StatementPtr statement(Action action, int line) {
    auto node = std::make_unique<Statement>();
    node->action = action;
    node->line = line;
    return node;
  }

  [[nodiscard]] bool at_any(Ends ends) const {
    return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return current().is_name(end); });
  }

  // Statements up to a tag of `ends`, which is the current token then. Without ends: to the end of the template.
  Body parse_until(Ends ends) {
    const Nesting nesting(*this);
    Body body;
    while (current().kind != TokenKind::kEnd) {
      const int line = current().line;
      if (current().kind == TokenKind::kData) {
        body.push_back(statement(Action::kData, line));
        body.back()->text = take().text;
      } else if (current().kind == TokenKind::kPrintBegin) {
        take();
        body.push_back(statement(Action::kPrint, line));
        body.back()->expression = parse_tuple(true);
        if (current().kind != TokenKind::kPrintEnd) error_expected("'}}'");
        take();
      } else {
        take();
        if (at_any(ends)) return body;
        parse_tag(body, ends);
        if (current().kind != TokenKind::kBlockEnd) error_expected("'%}'");
        take();
      }
    }
    if (ends.size() != 0) error(concat("the template ends where '", *ends.begin(), "' is expected"));
    return body;
  }

  // The body of a tag whose head is read, and its end tag's name.
  Body parse_body(Ends ends) {
    skip_operator(":");
    if (current().kind != TokenKind::kBlockEnd) error_expected("'%}'");
    take();
    return parse_until(ends);
  }
  Body parse_last_body(std::string_view end) {
    Body body = parse_body({end});
    take();
    return body;
  }

  void parse_tag(Body& body, Ends ends) {
    if (current().kind != TokenKind::kName) error_expected("a tag's name");
    const Token tag = take();
    const std::string& name = tag.text;
    if (name == "print") return parse_print(body, tag.line);
    using Parse = StatementPtr (Parser::*)(int line);
    static constexpr std::pair<std::string_view, Parse> kTags[] = {
        {"if", &Parser::parse_if},           {"for", &Parser::parse_for},
        {"set", &Parser::parse_set},         {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block}, {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},       {"generation", &Parser::parse_generation},
        {"block", &Parser::parse_block},     {"break", &Parser::parse_break},
        {"continue", &Parser::parse_break},
    };
    for (const auto& [tag_name, parse] : kTags) {
      if (name == tag_name) {
        is_break_ = name == "break";
        body.push_back((this->*parse)(tag.line));
        return;
      }
    }
    std::string message = concat("the tag '", name, "' is not supported here");
    if (ends.size() != 0) message += concat("; '", *ends.begin(), "' is expected");
    throw TemplateError{std::move(message), false, tag.line};
  }

  void parse_print(Body& body, int line) {
    while (current().kind != TokenKind::kBlockEnd) {
      body.push_back(statement(Action::kPrint, line));
      body.back()->expression = parse_expression();
      if (current().kind != TokenKind::kBlockEnd) expect_operator(",");
    }
  }

  StatementPtr parse_if(int line) {
    StatementPtr node = statement(Action::kIf, line);
    const bool outer = may_be_skipped_;
    while (true) {
      ExpressionPtr condition = parse_tuple(false);
      may_be_skipped_ = true;
      node->branches.emplace_back(std::move(condition), parse_body({"endif", "elif", "else"}));
      const Token end = take();
      if (end.text == "else") node->otherwise = parse_last_body("endif");
      may_be_skipped_ = outer;
      if (end.text != "elif") return node;
    }
  }

  StatementPtr parse_for(int line) {
    StatementPtr node = statement(Action::kFor, line);
    node->target = parse_target(false);
    if (!skip_name("in")) error_expected("'in'");
    node->expression = parse_tuple(false, "recursive");
    if (skip_name("if")) node->condition = parse_expression();
    node->is_recursive = skip_name("recursive");
    {
      const OwnScope scope(*this, true);
      node->body = parse_body({"endfor", "else"});
    }
    const OwnScope scope(*this, false);
    if (take().text == "else") node->otherwise = parse_last_body("endfor");
    return node;
  }

  StatementPtr parse_set(int line) {
    StatementPtr node = statement(Action::kSet, line);
    node->target = parse_target(true);
    if (skip_operator("=")) {
      node->expression = parse_tuple(true);
      return node;
    }
    node->action = Action::kSetBlock;
    while (skip_operator("|")) node->expression = parse_filter(std::move(node->expression));
    const OwnScope scope(*this, false);
    node->body = parse_last_body("endset");
    return node;
  }

  NameId parse_target_name() {
    if (current().kind != TokenKind::kName) error_expected("a name to assign to");
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    for (const std::string_view constant : kConstants) {
      if (current().is_name(constant)) error(concat("'", constant, "' cannot be assigned to"));
    }
    return name_id(take().text);
  }

  // `a`, `a, b`, `(a, b)`, and `namespace.attribute` where `with_attribute`.
  Target parse_target(bool with_attribute) {
    const Nesting nesting(*this);
    std::vector<Target> parts;
    bool is_tuple = false;
    while (true) {
      if (is_tuple && (current().is_name("in") || current().is_operator("=") || current().is_operator(")") ||
                       current().kind == TokenKind::kBlockEnd)) {
        break;
      }
      if (skip_operator("(")) {
        parts.push_back(parse_target(false));
        expect_operator(")");
      } else {
        Target target;
        target.name_id = parse_target_name();
        if (with_attribute && skip_operator(".")) target.attribute = expect_any_name();
        parts.push_back(std::move(target));
      }
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(parts[0]);
    Target tuple;
    tuple.is_tuple = true;
    tuple.parts = std::move(parts);
    return tuple;
  }

  void parse_parameters(Macro& macro) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      const NameId id = parse_target_name();
      macro.parameters.push_back(id);
      macro.parameter_names.push_back(program_.names[static_cast<std::size_t>(id)]);
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        error("a parameter without a default follows one with a default");
      }
      if (!current().is_operator(")")) expect_operator(",");
    }
    take();
  }

  void parse_macro_body(Macro& macro, std::string_view end) {
    macro.caller_id = name_id("caller");
    macro.varargs_id = name_id("varargs");
    macro.kwargs_id = name_id("kwargs");
    const OwnScope scope(*this, false);
    open_macros_.push_back(&macro);
    macro.body = parse_last_body(end);
    open_macros_.pop_back();
  }

  StatementPtr parse_macro(int line) {
    StatementPtr node = statement(Action::kMacro, line);
    node->macro = std::make_unique<Macro>();
    node->macro->name_id = parse_target_name();
    node->macro->name = program_.names[static_cast<std::size_t>(node->macro->name_id)];
    parse_parameters(*node->macro);
    parse_macro_body(*node->macro, "endmacro");
    return node;
  }

  StatementPtr parse_call_block(int line) {
    StatementPtr node = statement(Action::kCallBlock, line);
    node->macro = std::make_unique<Macro>();
    node->macro->name = "caller";
    if (current().is_operator("(")) parse_parameters(*node->macro);
    node->expression = parse_expression();
    if (node->expression->op != Op::kCall) error("a call block needs a call");
    parse_macro_body(*node->macro, "endcall");
    return node;
  }

  StatementPtr parse_filter_block(int line) {
    StatementPtr node = statement(Action::kFilterBlock, line);
    do {
      node->expression = parse_filter(std::move(node->expression));
    } while (skip_operator("|"));
    const OwnScope scope(*this, false);
    node->body = parse_last_body("endfilter");
    return node;
  }

  StatementPtr parse_with(int line) {
    StatementPtr node = statement(Action::kWith, line);
    while (current().kind != TokenKind::kBlockEnd) {
      Target target = parse_target(false);
      expect_operator("=");
      node->assignments.emplace_back(std::move(target), parse_expression());
      if (current().kind != TokenKind::kBlockEnd) expect_operator(",");
    }
    node->body = parse_last_body("endwith");
    return node;
  }

  StatementPtr parse_generation(int line) {
    StatementPtr node = statement(Action::kScope, line);
    const OwnScope scope(*this, false);
    node->body = parse_last_body("endgeneration");
    return node;
  }

  StatementPtr parse_block(int line) {
    StatementPtr node = statement(Action::kScope, line);
    const std::string name = expect_any_name();
    node->sees_outer = skip_name("scoped");
    const OwnScope scope(*this, false);
    node->body = parse_last_body("endblock");
    skip_name(name);
    return node;
  }

  StatementPtr parse_break(int line) {
    if (loops_ == 0) throw TemplateError{"break and continue need a loop around them", false, line};
    return statement(is_break_ ? Action::kBreak : Action::kContinue, line);
  }

  int loops_ = 0;  // open loops that a break may leave
  bool is_break_ = false;
};

}  // namespace

Program parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace hotset::model::jinja
