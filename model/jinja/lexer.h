// Splits a template into tokens as jinja2 does with trim_blocks and lstrip_blocks on: line ends become \n, one newline
// at the end of the source is dropped, white space control is applied to the data tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::model::jinja {

enum class TokenKind : std::uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kText,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, decoded text, operator
  std::int64_t integer = 0;
  double real = 0;

  [[nodiscard]] bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  [[nodiscard]] bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
};

// The last token is kEnd. Throws TemplateError with the line.
[[nodiscard]] std::vector<Token> tokenize(std::string_view source);

}  // namespace hotset::model::jinja
