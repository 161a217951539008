// The expression half of the parser; also owns the token stream and the table of names.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace hotset::model::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& look_ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  bool skip_name(std::string_view name);
  bool skip_operator(std::string_view op);
  void expect_operator(std::string_view op);
  std::string expect_any_name();
  [[noreturn]] void error(std::string message) const;
  [[noreturn]] void error_expected(std::string_view what) const;
  NameId name_id(const std::string& name);

  ExpressionPtr parse_expression(bool with_conditional = true);
  // One expression, or a tuple when there are commas. `stop`: a name that ends it.
  ExpressionPtr parse_tuple(bool with_conditional, std::string_view stop = {}, bool in_parentheses = false);
  ExpressionPtr parse_unary(bool with_filter = true);
  // One filter's name and arguments on `input`, which may be null.
  ExpressionPtr parse_filter(ExpressionPtr input);
  ExpressionPtr make(Op op, int line, std::vector<ExpressionPtr> items = {});

  // Guards the parser's own recursion.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting) parser_.error("the template is nested too deeply");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };
  static constexpr int kMaxNesting = 150;

  Program program_;
  std::vector<Macro*> open_macros_;  // being parsed, for their use of caller, varargs and kwargs
  bool may_be_skipped_ = false;      // inside a branch: an unknown filter or test is an error only when reached

 private:
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  ExpressionPtr parse_attribute(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_call(ExpressionPtr node);
  void parse_arguments(Expression& call);
  std::string dotted_name();
  void raise_height(Expression& parent, const ExpressionPtr& child);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace hotset::model::jinja
