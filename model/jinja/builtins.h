// Tables of the built-in filters, tests, methods and global functions, and what they share.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"

namespace hotset::model::jinja {

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Null when there is none.
[[nodiscard]] Native find_filter(std::string_view name);
[[nodiscard]] Native find_test(std::string_view name);
[[nodiscard]] Native find_text_method(std::string_view name);
[[nodiscard]] Native find_container_method(Kind kind, std::string_view name);

struct NamedNative {
  std::string_view name;
  Native native;
};
[[nodiscard]] const std::vector<NamedNative>& text_filters();
[[nodiscard]] const std::vector<NamedNative>& sequence_filters();
[[nodiscard]] const std::vector<NamedNative>& selection_filters();
[[nodiscard]] const std::vector<NamedNative>& number_filters();
[[nodiscard]] const std::vector<NamedNative>& global_functions();

// The arguments in the order of `names`, missing where not given. Fails on unknown, repeated and surplus arguments and
// when one of the first `required` is absent.
[[nodiscard]] Values bind(const Arguments& arguments, std::string_view function,
                          std::initializer_list<std::string_view> names, std::size_t required = 0);

// Reading one argument; each fails with the name of its Python type when it has another.
[[nodiscard]] std::int64_t int_argument(const Value& value, std::int64_t otherwise);
[[nodiscard]] bool flag_argument(const Value& value, bool otherwise);
[[nodiscard]] const std::string& text_argument(const Value& value);

// 'text' % value, and 'text'.format(...).
[[nodiscard]] std::string percent_format(Interpreter& interpreter, std::string_view format, const Value& value);
[[nodiscard]] std::string brace_format(Interpreter& interpreter, std::string_view format, const Arguments& arguments);

}  // namespace hotset::model::jinja
