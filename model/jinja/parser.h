// Turns a template's source into a Program. Grammar and precedence are jinja2's; nesting is limited.
#pragma once

#include <string_view>

#include "model/jinja/ast.h"

namespace hotset::model::jinja {

// Throws TemplateError with the line.
[[nodiscard]] Program parse(std::string_view source);

}  // namespace hotset::model::jinja
